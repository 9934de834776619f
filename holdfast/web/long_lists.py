"""Lists that are longer than a page: a page ends where its bytes are used up, and the next one begins behind its last line.

A page that has such lists makes `Line`s of its answer; its template says how each kind of them is written. Counts of lines
would not do: a key or an error may have a thousand characters, each of which may be six bytes in HTML.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile, islice
from typing import Any

from markupsafe import Markup

from holdfast.web.filters import Filter, Query

#: A page is smaller than 100 kB with what is around its lists: navigation, filters, and the address in several links.
MOST_BYTES = 85_000
LEAST_BYTES = 20_000
#: How often a page may have its own address in it.
OFTEN = 8
#: Longer places are named by their hash: a text in an address has up to nine times as many bytes as characters.
LONGEST_PLACE = 200

#: The last line of the page before.
AFTER = Filter("after", default="", is_place=True)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a list. Lines of one block, one after another, have an opening and a closing around them."""

    #: How it is written.
    kind: str
    value: Any
    #: Its place in the address of the next page: the `cursor` of an entry, or what names it on this page.
    place: str
    block: Hashable = None

    @property
    def belongs_to(self) -> tuple[str, Hashable]:
        return self.kind, self.block

    @property
    def address(self) -> str:
        """Its place, short enough for an address."""
        if len(self.place) <= LONGEST_PLACE:
            return self.place
        return hashlib.sha256(self.place.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Part:
    """The lines that a page has room for."""

    html: Markup
    #: None if all of them fit.
    next_page: str | None


#: What opens a block, what writes a line, and what closes the block: each gets the value of a line.
Writing = tuple[Callable[[Any], str], Callable[[Any], str], Callable[[Any], str]]


def in_parts(lines: Iterable[Line], query: Query) -> dict[str, Any]:
    """What the template of a page needs whose answer has all lines, and whose address says behind which one it begins."""
    return {
        "lines": partial(fit, behind(list(lines), query["after"]), query),
        "first_page": query.link() if query.given.get("after") else None,
    }


def behind(lines: Sequence[Line], address: str) -> Sequence[Line]:
    """The lines behind the one of this address; all of them if it is no longer there, so that none is passed over."""
    rest = list(islice(dropwhile(lambda one: one.address != address, lines), 1, None))
    return rest if address and any(one.address == address for one in lines) else lines


def fit(lines: Iterable[Line], query: Query, writing: Mapping[str, Writing], top: str = "") -> Part:
    """As many of the lines as a page has room for below its `top`, but at least one."""
    room = max(LEAST_BYTES, MOST_BYTES - OFTEN * len(query.text) - len(top.encode()))
    parts: list[str] = []
    last: Line | None = None
    for one in lines:
        opens, write, closes = writing[one.kind]
        is_next = last is None or last.belongs_to != one.belongs_to
        before = f"{writing[last.kind][2](last.value) if last and is_next else ''}{opens(one.value) if is_next else ''}"
        text = write(one.value)
        room -= len(before.encode()) + len(text.encode())
        if last is not None and room < len(closes(one.value).encode()):
            return Part(_closed(parts, last, writing), query.link(after=last.address))
        parts += (before, text)
        last = one
    return Part(_closed(parts, last, writing), None)


def _closed(parts: list[str], last: Line | None, writing: Mapping[str, Writing]) -> Markup:
    # Every part was made by a template, which escapes what is not its own.
    return Markup("").join(map(Markup, [*parts, writing[last.kind][2](last.value) if last else ""]))
