"""Domain extraction: which web site a business has, and where its sitemaps are.

As it always was: it gets an id and a session, runs in a thread, and asks its robots.txt with a blocking call.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from sqlalchemy.orm import Session

from examples.curation.models import WORDS, Business, Domain, Sitemap
from examples.curation.scheduler import Scheduler
from examples.curation.settings import Settings
from examples.curation.web import Web
from holdfast import Permanent
from holdfast.adopt import TableMapping, insert_once, with_session

#: The most sitemaps taken from one robots.txt.
MOST_SITEMAPS = 20
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def domain_extraction(settings: Settings, web: Web) -> Scheduler:
    businesses = TableMapping(
        Business,
        status="extraction_status",
        **WORDS,
        error="extraction_error",
        attempts="extraction_attempts",
        max_attempts=settings.attempts,
        version="version",
        updated="updated_at",
    )

    def extract_domain(business_id: int, session: Session) -> None:
        business = session.get_one(Business, business_id)
        name = domain_of(business.website)
        session.commit()  # no transaction is open while the site is asked
        found = sitemaps_of(name, web)
        domain, _ = insert_once(session, Domain, {"name": name}, unique_on="name")
        for url in found:
            insert_once(session, Sitemap, {"url": url, "domain_id": domain.id, "depth": 0}, unique_on="url")
        business.domain_id = domain.id

    return Scheduler("domain extraction", businesses, with_session(extract_domain), is_async=False)


def domain_of(website: str | None) -> str:
    """The domain of a web address, however it was typed; Permanent if it has none."""
    if not website:
        raise Permanent("the business has no web site")
    text = website.strip()
    try:
        host = urlsplit(text if "//" in text else f"//{text}").hostname or ""
        name = host.rstrip(".").encode("idna").decode("ascii").lower()
    except ValueError:
        name = ""
    labels = name.split(".")
    if len(labels) < 2 or not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdecimal():
        raise Permanent(f"{website!r} names no domain")
    return ".".join(labels[1:] if labels[0] == "www" and len(labels) > 2 else labels)


def sitemaps_of(domain: str, web: Web) -> list[str]:
    """What the site's robots.txt names; where it names nothing, the usual place."""
    try:
        robots = web.get(f"http://{domain}/robots.txt").decode("utf-8", errors="replace")
    except Permanent:
        robots = ""
    named = re.findall(r"^[ \t]*sitemap[ \t]*:[ \t]*(\S+)", robots, re.IGNORECASE | re.MULTILINE)
    own = [url for url in dict.fromkeys(named) if is_of(domain, url)]
    return own[:MOST_SITEMAPS] or [f"http://{domain}/sitemap.xml"]


def is_of(domain: str, url: str) -> bool:
    """Whether an address is one of this domain; nobody may speak for the pages of others."""
    try:
        return urlsplit(url).scheme in ("http", "https") and domain_of(url) == domain
    except (Permanent, ValueError):
        return False
