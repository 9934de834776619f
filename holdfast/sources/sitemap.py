"""Pages of a sitemap, or of all sitemaps of an index; compressed with gzip or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import urljoin

from holdfast.model import urls
from holdfast.sources import fetch, readers, xml
from holdfast.sources.conditional_get import Documents
from holdfast.sources.contract import Found, Kept, Reader, Source, SourceFailed

#: How deep indexes may be nested; the protocol allows one level.
MAX_DEPTH = 3
PAGES = 1000


class Sitemap(Source):
    """A sitemap: each page is an item, its URL the key. Unchanged sitemaps of an index are not read."""

    kind = "sitemap"
    templates = ("sitemap",)
    options: ClassVar[Mapping[str, Reader]] = {"sitemap": urls.read_url, **fetch.OPTIONS, "pages": readers.whole_number}

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        root = self.settings["sitemap"]
        documents = Documents(self, memory, root)
        todo: list[tuple[str, int]] = [(root, 1)]
        self._known, self._most = {root}, self.settings.get("pages", PAGES)
        read = 0
        while todo:
            url, depth = todo.pop()
            below: list[str] = []
            try:
                yield from self._document(url, documents, below)
                read += not below
            except SourceFailed as error:
                if url == root:
                    raise
                # The others can be read. The items of this one have not vanished.
                self.skip(str(error))
                yield Kept(url)
            if below and depth >= MAX_DEPTH:
                raise SourceFailed(f"{urls.shown(root)}: indexes lie in one another deeper than {MAX_DEPTH} levels")
            todo += [(one, depth + 1) for one in reversed(below)]
        if len(self._known) > self._most:
            raise SourceFailed(
                f"{urls.shown(root)} leads to more than {self._most} sitemaps; if that is right, set pages"
            )
        if self.bad and not read:
            raise SourceFailed(
                f"none of the sitemaps of {urls.shown(root)} could be read; the first: {self.bad_example}"
            )
        documents.remember()

    def _document(self, url: str, documents: Documents, below: list[str]) -> Iterator[Found | Kept]:
        with documents.changed(url, accept="application/xml, text/xml, */*") as document:
            if document is None:
                yield Kept(url)
                return
            name = ""
            for record in xml.records(document.file, ("url", "sitemap"), urls.shown(url), self.check):
                if not record.name:
                    name = record.attributes["name"]
                    if name not in ("urlset", "sitemapindex"):
                        raise SourceFailed(f"{urls.shown(url)} is not a sitemap: its root is <{name[:40]}>")
                elif record.name == "sitemap" and name == "sitemapindex":
                    if (target := self._address(url, record.text("loc"))) and target not in self._known:
                        self._known.add(target)
                        if len(self._known) > self._most:
                            # The rest of the index is not read.
                            break
                        below.append(target)
                elif record.name == "url" and name == "urlset":
                    if found := self._page(url, record):
                        yield found
        if name == "sitemapindex":
            # An unchanged index says nothing about the sitemaps it names.
            documents.forget(url)

    def _page(self, sitemap: str, record: xml.Record) -> Found | None:
        address = self._address(sitemap, record.text("loc"))
        if address is None:
            return None
        data = {"url": address}
        if changed := record.text("lastmod"):
            data["lastmod"] = changed[:100]
        return Found(urls.url_key(address, fragment=False), data, part=sitemap)

    def _address(self, base: str, given: str | None) -> str | None:
        try:
            if given is None:
                raise ValueError("no address")
            address = urljoin(base, given)
            urls.normalise(address)
        except ValueError as error:
            self.skip(f"{urls.shown(base)}: {error}")
            return None
        return address
