"""How the fake paper looks: HTML, sitemaps, a feed, and answers of its search."""

from __future__ import annotations

from datetime import UTC, datetime, time
from email.utils import format_datetime
from html import escape
from typing import Any
from urllib.parse import quote

from examples.newsroom.fakes.fake_prose import SECTIONS
from examples.newsroom.fakes.fake_site import FakeArticle, FakeSite, as_date

#: Hits on a page of search results.
HITS = 15
STANDING = {
    "/standing/tides": ("Tide table", "High water at the outer quay comes fifty minutes later each day."),
    "/standing/timetable": ("Ferry timetable", "The ferry crosses at seven, noon and six, and on Sundays at noon."),
}


def article_page(article: FakeArticle, day: int, visits: int) -> str:
    text = "\n".join(f"<p>{escape(one)}</p>" for one in article.paragraphs(day))
    return _page(article.title, article.section, as_date(article.first_day).isoformat(), text, visits)


def standing_page(path: str, visits: int) -> str | None:
    if path not in STANDING:
        return None
    title, text = STANDING[path]
    return _page(title, "service", "", f"<p>{escape(text)}</p>", visits)


def empty_page(article: FakeArticle, visits: int) -> str:
    """A page on which there is no article: whoever wants one has to subscribe."""
    return f"<!doctype html><title>{escape(article.title)}</title><p>For subscribers only.</p>{_visits(visits)}"


def _page(title: str, section: str, published: str, text: str, visits: int) -> str:
    links = " ".join(f'<a href="/{one}">{one}</a>' for one in SECTIONS)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} – The Paper</title></head>\n'
        f'<body><nav>{links}</nav>\n<article data-section="{section}"><h1>{escape(title)}</h1>\n'
        f'<time datetime="{published}">{published}</time>\n{text}\n<aside>Read more in {section}.</aside>'
        f"{_visits(visits)}</article>\n<footer>The Paper</footer></body></html>\n"
    )


def _visits(visits: int) -> str:
    """Another one at every visit: the page changes, and what it says does not."""
    return f'<p class="visits">{visits} visits</p>'


# For machines ---------------------------------------------------------------------------------------------------------

_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_SITEMAP = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


def sitemap_index(base: str) -> str:
    places = "".join(f"<sitemap><loc>{base}/sitemap-{section}.xml</loc></sitemap>" for section in SECTIONS)
    return f"{_XML}<sitemapindex {_SITEMAP}>{places}</sitemapindex>"


def sitemap(site: FakeSite, section: str, base: str) -> str:
    places = "\n".join(
        f"<url><loc>{base}{one.path}</loc><lastmod>{one.changed_on(site.day)}</lastmod></url>"
        for one in site.up(section)
    )
    return f"{_XML}<urlset {_SITEMAP}>\n{places}\n</urlset>"


def feed(site: FakeSite, base: str) -> str:
    """RSS. Its entries have no id: they are known by their address, as in the sitemap."""
    entries = "\n".join(
        f"<item><title>{escape(one.title)}</title><link>{base}{one.path}</link>"
        f"<pubDate>{format_datetime(_noon(one))}</pubDate></item>"
        for one in site.newest()
    )
    return f'{_XML}<rss version="2.0"><channel><title>The Paper</title>\n{entries}\n</channel></rss>'


def _noon(article: FakeArticle) -> datetime:
    return datetime.combine(as_date(article.first_day), time(12), UTC)


def search_results(site: FakeSite, word: str, page: int, base: str) -> dict[str, Any]:
    """A page of hits, and where the next one is."""
    found = site.search(word)
    hits = found[(page - 1) * HITS : page * HITS]
    more = f"{base}/api/search?q={quote(word)}&page={page + 1}" if len(found) > page * HITS else None
    return {
        "items": [
            {
                "url": base + one.path,
                "title": one.title,
                "topics": [one.section],
                "queries": [word],
                "first_seen": as_date(one.first_day).isoformat(),
            }
            for one in hits
        ],
        "next": more,
    }
