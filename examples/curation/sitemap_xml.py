"""Sitemaps as the protocol has them: a `urlset` of pages, or a `sitemapindex` of other sitemaps; packed or not.

They come from strangers: a document type, and with it every trick with entities, is refused.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
import zlib
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from holdfast import Permanent

#: As the protocol allows, of an unpacked sitemap.
MOST_BYTES = 50_000_000
MOST_ENTRIES = 50_000
MOST_CHARACTERS = 2048
#: The root of each kind, and what its entries are called.
KINDS = {"urlset": "url", "sitemapindex": "sitemap"}


class Entry(NamedTuple):
    url: str
    last_modified: str | None = None


class Parsed(NamedTuple):
    """What a sitemap lists: sitemaps if it is an index, otherwise pages."""

    is_index: bool
    entries: tuple[Entry, ...]


class _Builder(ET.TreeBuilder):
    def doctype(self, *_: object) -> None:
        raise ET.ParseError("a sitemap has no document type")


def parse(url: str, body: bytes) -> Parsed:
    """Read a sitemap that lies at `url`; Permanent if it is none."""
    try:
        root = ET.fromstring(_unpacked(body), ET.XMLParser(target=_Builder()))
    except (ET.ParseError, zlib.error) as error:
        raise Permanent(f"{url}: broken {'XML' if isinstance(error, ET.ParseError) else 'gzip'}: {error}") from None
    space, brace, name = root.tag.rpartition("}")
    if name not in KINDS:
        raise Permanent(f"{url}: not a sitemap: its root is <{name[:40]}>")
    # Names of the same namespace only: the `loc` of a picture is not that of its page.
    entries: dict[str, Entry] = {}
    for node in root.iterfind(f"{space}{brace}{KINDS[name]}"):
        told = (node.findtext(f"{space}{brace}loc") or "").strip()
        loc = urljoin(url, told)
        if told and len(loc) <= MOST_CHARACTERS and urlsplit(loc).scheme in ("http", "https"):
            modified = (node.findtext(f"{space}{brace}lastmod") or "").strip()
            entries.setdefault(loc, Entry(loc, modified or None))
    if len(entries) > MOST_ENTRIES:
        raise Permanent(f"{url}: more than {MOST_ENTRIES} entries")
    return Parsed(name == "sitemapindex", tuple(entries.values()))


def _unpacked(body: bytes) -> bytes:
    if not body.startswith(b"\x1f\x8b"):
        return body
    unpacking = zlib.decompressobj(wbits=31)
    found = unpacking.decompress(body, MOST_BYTES + 1)
    if len(found) > MOST_BYTES or not unpacking.eof:
        raise zlib.error(f"cut short, or more than {MOST_BYTES} bytes unpacked")
    return found
