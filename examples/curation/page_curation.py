"""Page curation: fetch a page, score it, and hand it to the service if it is worth it.

The scheduler of the pair that works on `pages`: an id, a session, a thread.
"""

from __future__ import annotations

import re

from selectolax.lexbor import LexborHTMLParser
from sqlalchemy.orm import Session

from examples.curation.models import WORDS, Page, Status
from examples.curation.scheduler import Scheduler
from examples.curation.settings import Settings
from examples.curation.web import Web
from holdfast.adopt import TableMapping, with_session

#: What a page must reach to be handed on.
ENOUGH = 5
#: Words that say that people can be reached here.
TELLING = frozenset({"contact", "address", "phone", "mail", "opening", "hours", "visit", "team"})
MOST_TEXT = 20_000


def page_curation(settings: Settings, web: Web) -> Scheduler:
    pages = TableMapping(
        Page,
        status="curation_status",
        **WORDS,
        error="curation_error",
        attempts="curation_attempts",
        max_attempts=settings.attempts,
        next_attempt="curation_next_at",
        holder="curation_by",
        heartbeat="curation_beat_at",
        created="created_at",
    )

    def curate(page_id: int, session: Session) -> None:
        url = session.get_one(Page, page_id).url
        session.commit()  # no transaction is open while the site is asked
        title, text = read(web.get(url))
        page = session.get_one(Page, page_id)
        page.title, page.text, page.score = title, text, score(title, text)
        if page.score >= ENOUGH and page.service_status is None:
            page.service_status = Status.QUEUED

    return Scheduler("page curation", pages, with_session(curate), is_async=False)


def read(body: bytes) -> tuple[str, str]:
    """Title and text of a page."""
    # A NUL is text to nobody, and PostgreSQL stores none.
    page = LexborHTMLParser(body.decode("utf-8", errors="replace").replace("\0", " "))
    for node in page.css("script, style"):
        node.decompose()
    title, text = (
        " ".join(node.text(separator=" ").split()) if node else "" for node in (page.css_first("title"), page.body)
    )
    return title, text[:MOST_TEXT]


def score(title: str, text: str) -> int:
    """A point for a title and for each thirty words, up to three; two for each telling word."""
    words = re.findall(r"\w+", text.lower())
    return bool(title) + min(3, len(words) // 30) + 2 * len(TELLING.intersection(words))
