"""Links of an HTML page, chosen by a CSS selector."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from holdfast.errors import UsageError
from holdfast.model import urls
from holdfast.sources import fetch, readers
from holdfast.sources.conditional_get import Documents
from holdfast.sources.contract import Found, Kept, Reader, Source, SourceFailed
from holdfast.sources.fetch import Document

#: A page is held in memory while it is read.
MAX_BYTES = 5 * 1000 * 1000
#: The parser's time grows with the square of the depth, and nothing can interrupt it.
MAX_DEPTH = 2000
MISSING = "the source html needs a package that is not there: pip install selectolax"
_EVERY_LINK = "a[href]"
_LONGEST = 1000
#: Where a page names its encoding, if the server does not.
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_HEAD_BYTES = 4096
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9-]*)")
#: Elements without an end tag, or with an optional one.
_ENDLESS = frozenset(
    (
        "area",
        "base",
        "body",
        "br",
        "caption",
        "circle",
        "col",
        "colgroup",
        "dd",
        "dt",
        "ellipse",
        "embed",
        "head",
        "hr",
        "html",
        "img",
        "input",
        "li",
        "line",
        "link",
        "meta",
        "optgroup",
        "option",
        "p",
        "param",
        "path",
        "polygon",
        "polyline",
        "rect",
        "source",
        "stop",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "tr",
        "track",
        "use",
        "wbr",
    )
)


class Html(Source):
    """A page: each link that the selector chooses is an item, its address the key."""

    kind = "html"
    templates = ("html",)
    options: ClassVar[Mapping[str, Reader]] = {"html": urls.read_url, **fetch.OPTIONS, "links": readers.text}

    @classmethod
    def agree(cls, settings: Mapping[str, Any], where: str, folder: Path) -> None:
        try:
            from selectolax.lexbor import LexborHTMLParser, SelectolaxError
        except ImportError:
            # Checking a job file needs no parser.
            return
        try:
            LexborHTMLParser("").css(settings.get("links", _EVERY_LINK))
        except SelectolaxError:
            raise UsageError(f"{where}: links: {settings['links']!r} is no CSS selector, like 'article h2 a'") from None

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        url = self.settings["html"]
        documents = Documents(self, memory, url, max_bytes=MAX_BYTES)
        with documents.changed(url, accept="text/html, application/xhtml+xml, */*") as document:
            if document is None:
                yield Kept()
                return
            yield from self._links(document)
        documents.remember()

    def _links(self, document: Document) -> Iterator[Found]:
        try:
            from selectolax.lexbor import LexborHTMLParser
        except ImportError:
            raise SourceFailed(MISSING) from None
        text = _text(document)
        if _depth(text) > MAX_DEPTH:
            raise SourceFailed(f"{urls.shown(document.url)} is nested deeper than {MAX_DEPTH} levels")
        page = LexborHTMLParser(text)
        base = page.css_first("base[href]")
        home = urls.joined(document.url, (base.attributes.get("href") if base else None) or "") or document.url
        selector = self.settings.get("links", _EVERY_LINK)
        chosen = page.css(selector)
        if not chosen:
            # A redesigned page must not look empty.
            raise SourceFailed(f"{urls.shown(document.url)} has nothing that {selector!r} matches")
        for element in chosen:
            self.check()
            href = element.attributes.get("href") or ""
            target = urls.joined(home, href)
            if target is None:
                self.skip(f"{urls.shown(document.url)}: <{element.tag}> without an address: {href[:80]!r}")
            elif re.match(r"https?://", target, re.IGNORECASE):
                yield from self._page(target, " ".join(element.text().split())[:_LONGEST])

    def _page(self, target: str, text: str) -> Iterator[Found]:
        try:
            key = urls.url_key(target, fragment=False)
        except ValueError as error:
            self.skip(f"{urls.shown(target)!r}: {error}")
        else:
            yield Found(key, {"url": target, "text": text} if text else {"url": target})


def _text(document: Document) -> str:
    content = document.file.read()
    named = _CHARSET.search(content[:_HEAD_BYTES])
    for name in (document.charset, named[1].decode("ascii", "ignore") if named else None):
        try:
            if name and codecs.lookup(name)._is_text_encoding:
                return content.decode(name, "replace")
        except LookupError:
            continue
    return content.decode("utf-8", "replace")


def _depth(text: str) -> int:
    """Roughly how deep elements are nested: an end tag counts if an element of its name is open."""
    opened: Counter[str] = Counter()
    depth = deepest = 0
    for tag in _TAG.finditer(text):
        name = tag[2].lower()
        if name in _ENDLESS:
            continue
        if not tag[1]:
            opened[name] += 1
            depth += 1
            deepest = max(deepest, depth)
        elif opened[name]:
            opened[name] -= 1
            depth -= 1
    return deepest
