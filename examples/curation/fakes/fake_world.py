"""A small fake world of places, web sites and pages, the same at every start, with the troubles that real ones make.

Everything follows from the numbers of the place, the site and the page, so that whoever looks at the end knows what must
have come out. `FakeWorld.answer` says what a server answers to a request, the n-th one for the same address.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from urllib.parse import urlsplit

MAPS = "maps.example"
NAMES = ("harbour-books", "salt-and-rye", "north-quay", "old-mill", "fern-lane", "copper-kettle")
CITIES = ("Leith", "Whitby", "Falmouth")
SCHEMA = "http://www.sitemaps.org/schemas/sitemap/0.9"


@dataclass(frozen=True)
class FakeAnswer:
    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class FakeWorld:
    """So many places, sites, and pages of each site. Numbers of places and pages begin at 1, those of sites at 0."""

    places: int = 20
    sites: int = 6
    pages: int = 6

    # Places -----------------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[dict[str, object]]:
        """The places to begin with."""
        for place in range(1, self.places + 1):
            yield {
                "name": f"Place {place}",
                "city": CITIES[place % len(CITIES)],
                "priority": place % 2,
                "listing": self.listing(place),
            }

    def listing(self, place: int) -> str:
        return f"http://{MAPS}/places/{place}.json"

    def site_of(self, place: int) -> int:
        return (place - 1) % self.sites

    def place_fails(self, place: int) -> str | None:
        """The places whose deep scan cannot end well, and the word that must stand in their error."""
        return {8: "not JSON", 14: "answered 500"}.get(place % 20)

    def lookups(self, place: int, attempts: int) -> int:
        """How often the listing of a place is looked up if nothing happens: one that is refused at first, once more."""
        return attempts if place % 20 == 14 else 2 if place % 10 in (3, 6) else 1

    def has_website(self, place: int) -> bool:
        return place % 20 != 17

    def website(self, place: int) -> str:
        """However people type it."""
        domain = self.domain(self.site_of(place))
        return (f"http://{domain}", f"https://www.{domain}/", f"WWW.{domain.upper()}:80/shop?x=1", f" {domain}. ")[
            place % 4
        ]

    # Sites ------------------------------------------------------------------------------------------------------------

    def domain(self, site: int) -> str:
        name, again = NAMES[site % len(NAMES)], site // len(NAMES)
        return f"{name}{f'-{again}' if again else ''}.example"

    def sitemaps(self, site: int) -> dict[str, str | None]:
        """The sitemaps that an import comes by, each with the word that must stand in its error."""
        base = f"http://{self.domain(site)}"
        kind = site % len(NAMES)
        if kind == 0:
            return dict.fromkeys(f"{base}/sitemaps/{file}" for file in ("index.xml", "a.xml", "b.xml.gz"))
        if kind == 5:
            return {f"{base}/sitemap.xml": None, f"{base}/bomb.xml": "document type"}
        return {f"{base}/sitemap.xml": {2: "broken XML", 4: "answered 404"}.get(kind)}

    def has_pages(self, site: int) -> bool:
        return site % len(NAMES) not in (2, 4)

    # Pages ------------------------------------------------------------------------------------------------------------

    def page(self, site: int, page: int) -> str:
        return f"http://{self.domain(site)}/page?n={page}&lang=en"

    def page_fails(self, page: int) -> bool:
        return page % 5 == 4

    def is_worth_it(self, page: int) -> bool:
        return page % 3 != 0 and not self.page_fails(page)

    def contacts(self, site: int, page: int) -> set[tuple[str, str]]:
        return {("mail", f"desk{page}@{self.domain(site)}"), ("phone", f"+44131{site:03}{page:04}")}

    # What a server answers --------------------------------------------------------------------------------------------

    def answer(self, url: str, nth: int) -> FakeAnswer:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if host == MAPS and parts.path.startswith("/places/"):
            return self._listing(int(parts.path.removeprefix("/places/").removesuffix(".json")), nth)
        for site in range(self.sites):
            if host.removeprefix("www.") == self.domain(site):
                return self._site(site, url, parts.path, nth)
        return FakeAnswer(404)

    def _listing(self, place: int, nth: int) -> FakeAnswer:
        if place > self.places:
            return FakeAnswer(404)
        if place % 20 == 8:
            return FakeAnswer(200, b'{"name": "Pl')
        if place % 20 == 14 or (place % 10 == 6 and nth == 1):
            return FakeAnswer(500)
        if place % 10 == 3 and nth == 1:
            return FakeAnswer(503, headers=(("Retry-After", "0"),))
        found = {"name": f"Place {place} Ltd", "phone": f"+44 131 {place:06}"}
        if self.has_website(place):
            found["website"] = self.website(place)
        return FakeAnswer(200, json.dumps(found).encode())

    def _site(self, site: int, url: str, path: str, nth: int) -> FakeAnswer:
        kind, base = site % len(NAMES), f"http://{self.domain(site)}"
        if path == "/robots.txt":
            return self._robots(kind, base)
        if path == "/elsewhere.txt":
            return FakeAnswer(200, b"User-agent: *\nDisallow:\n")
        pages = [self.page(site, page) for page in range(1, self.pages + 1)]
        half = len(pages) // 2
        files: dict[str, FakeAnswer] = {}
        if kind == 0:
            below = [f"{base}/sitemaps/{file}" for file in ("a.xml", "b.xml.gz", "index.xml")]
            files["/sitemaps/index.xml"] = _xml("sitemapindex", [*below, "http://elsewhere.example/sitemap.xml"])
            files["/sitemaps/a.xml"] = _xml("urlset", pages[:half])
            files["/sitemaps/b.xml.gz"] = FakeAnswer(200, gzip.compress(_xml("urlset", pages[half:]).body, mtime=0))
        elif kind != 4:
            whole = _xml(
                "urlset", [*pages, pages[0], "http://elsewhere.example/page", "mailto:nobody@elsewhere.example"]
            )
            files["/sitemap.xml"] = FakeAnswer(200, whole.body[: len(whole.body) // 2]) if kind == 2 else whole
        if kind == 5:
            files["/bomb.xml"] = FakeAnswer(
                200, b'<!DOCTYPE urlset [<!ENTITY a "aaaa">]><urlset><url>&a;</url></urlset>'
            )
        if path in files:
            return files[path]
        return self._page(site, pages.index(url) + 1, nth) if url in pages else FakeAnswer(404)

    def _robots(self, kind: int, base: str) -> FakeAnswer:
        if kind == 0:
            return FakeAnswer(200, f"User-agent: *\nSITEMAP: {base}/sitemaps/index.xml\n".encode())
        if kind == 3:
            return FakeAnswer(302, headers=(("Location", "/elsewhere.txt"),))
        if kind == 5:
            named = [f"{base}/sitemap.xml", f"{base}/bomb.xml", "http://elsewhere.example/sitemap.xml"]
            return FakeAnswer(200, "".join(f"Sitemap: {url}\n" for url in named).encode())
        return FakeAnswer(404)

    def _page(self, site: int, page: int, nth: int) -> FakeAnswer:
        if self.page_fails(page):
            return FakeAnswer(404)
        if page % 6 == 5 and nth == 1:
            return FakeAnswer(500)
        text = "Boats, bread and books. " * 20
        if self.is_worth_it(page):
            text += f" Visit us, or contact desk{page}@{self.domain(site)}, phone +44 131 {site:03} {page:04}."
        body = f"<!doctype html><title>Page {page} &amp; more</title><style>p {{}}</style><p>{text}</p>"
        return FakeAnswer(200, body.encode())


def _xml(root: str, urls: list[str]) -> FakeAnswer:
    each = "url" if root == "urlset" else "sitemap"
    entries = "".join(f"<{each}><loc>{escape(url)}</loc><lastmod>2024-05-01</lastmod></{each}>" for url in urls)
    return FakeAnswer(
        200, f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="{SCHEMA}">{entries}</{root}>'.encode()
    )
