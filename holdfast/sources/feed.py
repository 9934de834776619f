"""Entries of a feed, RSS or Atom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from holdfast.model import urls
from holdfast.sources import fetch, xml
from holdfast.sources.conditional_get import Documents
from holdfast.sources.contract import Found, Kept, Reader, Source, SourceFailed

_ROOTS = ("rss", "RDF", "feed")
_LONGEST = 1000


class Feed(Source):
    """A feed: each entry is an item. Its id is the key, or its address if it has none."""

    kind = "feed"
    templates = ("feed",)
    options: ClassVar[Mapping[str, Reader]] = {"feed": urls.read_url, **fetch.OPTIONS}

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        url = self.settings["feed"]
        accept = "application/atom+xml, application/rss+xml, application/xml, text/xml, */*"
        documents = Documents(self, memory, url)
        with documents.changed(url, accept=accept) as document:
            if document is None:
                yield Kept()
                return
            for record in xml.records(document.file, ("item", "entry"), urls.shown(url), self.check):
                if record.name:
                    if found := self._entry(document.url, record):
                        yield found
                elif record.attributes["name"] not in _ROOTS:
                    raise SourceFailed(
                        f"{urls.shown(url)} is not a feed: its root is <{record.attributes['name'][:40]}>"
                    )
        documents.remember()

    def _entry(self, base: str, record: xml.Record) -> Found | None:
        link = _link(base, record)
        id_ = record.text("guid", "id") or record.attributes.get(_ABOUT)
        try:
            key = urls.bounded_key(id_) if id_ else urls.url_key(link or "")
        except ValueError:
            self.skip(f"an entry without an id or an address: {(record.text('title') or '')[:80]!r}")
            return None
        data = {
            "url": link,
            "id": id_,
            "title": record.text("title"),
            "summary": record.text("description", "summary"),
            "published": record.text("pubDate", "published", "dc:date"),
            "updated": record.text("updated"),
        }
        texts = {name: value[: _SIZES.get(name, _LONGEST)] for name, value in data.items() if value}
        lists = {
            "enclosures": _enclosures(base, record),
            "duration": _seconds(record.text("itunes:duration") or ""),
            "categories": _categories(record),
        }
        return Found(key, {**texts, **{name: value for name, value in lists.items() if value}})


#: The attribute that holds the id in RSS 1.0.
_ABOUT = "http://www.w3.org/1999/02/22-rdf-syntax-ns# about"
_SIZES = {"summary": xml.MAX_TEXT, "url": 8000}


def _link(base: str, record: xml.Record) -> str | None:
    """The address of an entry: in Atom an attribute of one of several links, in RSS the text."""
    best: str | None = None
    for element in record.fields.get("link", ()):
        target = (element.attributes.get("href") or element.text).strip()
        if target and (best is None or element.attributes.get("rel", "alternate") == "alternate"):
            best = target
            if element.attributes.get("rel", "alternate") == "alternate":
                break
    return urls.joined(base, best or "")


def _enclosures(base: str, record: xml.Record) -> list[dict[str, Any]]:
    """The files of an entry, such as the audio of an episode: an element in RSS, a kind of link in Atom."""
    links = [one for one in record.fields.get("link", ()) if one.attributes.get("rel") == "enclosure"]
    found = []
    for element in [*record.fields.get("enclosure", ()), *links]:
        given = element.attributes
        address = urls.joined(base, given.get("url") or given.get("href") or "")
        length = given.get("length", "").strip()
        facts = {
            "url": address and address[: _SIZES["url"]],
            "type": given.get("type", "")[:_LONGEST],
            "length": int(length) if _is_number(length) else None,
        }
        if address:
            found.append({name: value for name, value in facts.items() if value})
    return found


def _categories(record: xml.Record) -> list[str]:
    """The categories of an entry: text in RSS, an attribute in Atom, Dublin Core in RSS 1.0."""
    elements = [*record.fields.get("category", ()), *record.fields.get("dc:subject", ())]
    named = [(one.attributes.get("label") or one.attributes.get("term") or one.text).strip() for one in elements]
    return [*dict.fromkeys(name[:_LONGEST] for name in named if name)]


def _seconds(text: str) -> int | None:
    """How long an episode is: `3600`, `60:00` or `1:00:00`."""
    parts = text.split(":")
    if len(parts) > 3 or not all(map(_is_number, parts)):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
