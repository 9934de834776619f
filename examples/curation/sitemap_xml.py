"""Sitemaps as the protocol has them: a `urlset` of pages, or a `sitemapindex` of other sitemaps; packed or not.

They come from strangers: a document type, and with it every trick with entities, is refused.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
import zlib
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from holdfast import Permanent

#: As the protocol allows, of an unpacked sitemap.
MOST_BYTES = 50_000_000
MOST_ENTRIES = 50_000
MOST_CHARACTERS = 2048
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Entry:
    url: str
    last_modified: str | None = None


@dataclass(frozen=True)
class Parsed:
    """What a sitemap lists: sitemaps if it is an index, otherwise pages."""

    is_index: bool
    entries: tuple[Entry, ...]


def parse(url: str, body: bytes) -> Parsed:
    """Read a sitemap that lies at `url`; Permanent if it is none."""
    parser = ET.XMLParser(target=_Builder(url))
    try:
        parser.feed(_unpacked(url, body))
        found = parser.close()
    except ET.ParseError as error:
        raise Permanent(f"{url}: broken XML: {error}") from None
    assert isinstance(found, Parsed)
    return found


class _Builder:
    """Keeps the entries and nothing else of the document."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._path: list[str] = []
        self._text: list[str] = []
        self._fields: dict[str, str] = {}
        self._root = self._space = ""
        self._entries: dict[str, Entry] = {}

    def doctype(self, *_: object) -> None:
        raise Permanent(f"{self._url}: a sitemap has no document type")

    def start(self, tag: str, _: object) -> None:
        space, _, name = tag.rpartition("}")
        if not self._path:
            self._root, self._space = name, space
            if name not in ("urlset", "sitemapindex"):
                raise Permanent(f"{self._url}: not a sitemap: its root is <{name[:40]}>")
        # The `loc` of a picture is not that of its page.
        self._path.append(name if space == self._space else tag)
        self._text = []
        if len(self._path) == 2:
            self._fields = {}

    def data(self, text: str) -> None:
        self._text.append(text)

    def end(self, _: str) -> None:
        wanted = "sitemap" if self._root == "sitemapindex" else "url"
        if len(self._path) == 3 and self._path[1] == wanted:
            self._fields[self._path[2]] = "".join(self._text).strip()
        if len(self._path) == 2 and self._path[1] == wanted:
            self._keep()
        self._path.pop()
        self._text = []

    def close(self) -> Parsed:
        return Parsed(self._root == "sitemapindex", tuple(self._entries.values()))

    def _keep(self) -> None:
        loc = urljoin(self._url, self._fields.get("loc", ""))
        if not self._fields.get("loc") or len(loc) > MOST_CHARACTERS or urlsplit(loc).scheme not in ("http", "https"):
            return
        self._entries.setdefault(loc, Entry(loc, self._fields.get("lastmod") or None))
        if len(self._entries) > MOST_ENTRIES:
            raise Permanent(f"{self._url}: more than {MOST_ENTRIES} entries")


def _unpacked(url: str, body: bytes) -> bytes:
    if not body.startswith(_GZIP):
        return body
    unpacking = zlib.decompressobj(wbits=31)
    try:
        found = unpacking.decompress(body, MOST_BYTES + 1)
    except zlib.error as error:
        raise Permanent(f"{url}: broken gzip: {error}") from None
    if len(found) > MOST_BYTES or not unpacking.eof:
        raise Permanent(f"{url}: cut short, or more than {MOST_BYTES} bytes unpacked")
    return found
