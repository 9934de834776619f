"""XML records, streamed: the elements that matter, from a document of any size, each with the texts directly below it.

Nothing outside the document is read, and nothing in it can expand: a document type, and with it every entity definition, is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import IO
from xml.parsers import expat

from holdfast.sources.contract import SourceFailed

MAX_DEPTH = 200
#: How much text of one element is kept.
MAX_TEXT = 20_000
MAX_FIELDS = 500
#: The longest tag or comment: older parsers read it again from its beginning with every piece.
MAX_TAG = 1_000_000
_PIECE = 64 * 1024
#: Other vocabularies that are understood, with their usual prefixes.
_PREFIXES = {"http://purl.org/dc/elements/1.1/": "dc:", "http://www.itunes.com/dtds/podcast-1.0.dtd": "itunes:"}


@dataclass(slots=True)
class Element:
    """An element directly below a record: all text in it, and its attributes."""

    text: str
    attributes: dict[str, str]


@dataclass(slots=True)
class Record:
    """One element that matters, by its local name."""

    name: str
    attributes: dict[str, str]
    fields: dict[str, list[Element]] = field(default_factory=dict)

    def text(self, *names: str) -> str | None:
        """The text of the first of these elements that has any."""
        for name in names:
            for element in self.fields.get(name, ()):
                if element.text.strip():
                    return element.text.strip()
        return None


def records(
    file: IO[bytes], names: Collection[str], where: str, check: Callable[[], None] = lambda: None
) -> Iterator[Record]:
    """The records of these names, in order. The first one, named `""`, has the name of the document in `attributes`."""
    reader, size = _Reader(frozenset(names), where), 0
    try:
        while piece := file.read(_PIECE):
            reader.parser.Parse(piece, False)
            size += len(piece)
            yield from reader.take()
            check()
            if size - max(0, reader.parser.CurrentByteIndex) > MAX_TAG:
                raise SourceFailed(f"{where} has a tag or a comment of more than {MAX_TAG:,} bytes, which is not read")
        reader.parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise SourceFailed(
            f"{where} is not well-formed XML: {expat.ErrorString(error.code)}, line {error.lineno}"
        ) from None
    except (ValueError, LookupError) as error:
        # An encoding that is unknown, or uses several bytes per character.
        raise SourceFailed(f"{where} cannot be read as XML: {error}") from None
    yield from reader.take()


@dataclass(slots=True)
class _Open:
    """An element below a record that is still open."""

    element: Element
    depth: int
    pieces: list[str] = field(default_factory=list)
    room: int = MAX_TEXT


class _Reader:
    """Turns the parser's calls into records."""

    def __init__(self, names: frozenset[str], where: str) -> None:
        self._names = names
        self._where = where
        self._done: list[Record] = []
        self._depth = 0
        self._begun = False
        self._record: tuple[Record, str, int] | None = None
        self._element: _Open | None = None
        self._fields = 0
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._doctype
        self.parser.ExternalEntityRefHandler = self._doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters

    def take(self) -> list[Record]:
        done, self._done = self._done, []
        return done

    def _doctype(self, *_: object) -> int:
        raise SourceFailed(f"{self._where} has a document type of its own (<!DOCTYPE), which is not read")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        vocabulary, _, local = name.rpartition(" ")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SourceFailed(f"{self._where} is nested deeper than {MAX_DEPTH} levels")
        if not self._begun:
            self._begun = True
            self._done.append(Record("", {"name": local}))
        if self._record is None:
            if local in self._names:
                self._record, self._fields = (Record(local, attributes), vocabulary, self._depth), 0
        elif self._element is None:
            record, own, _ = self._record
            if vocabulary == own:
                self._begin_field(record, local, attributes)
            elif vocabulary in _PREFIXES:
                self._begin_field(record, f"{_PREFIXES[vocabulary]}{local}", attributes)

    def _begin_field(self, record: Record, name: str, attributes: dict[str, str]) -> None:
        self._fields += 1
        if self._fields <= MAX_FIELDS:
            element = Element("", attributes)
            record.fields.setdefault(name, []).append(element)
            self._element = _Open(element, self._depth)

    def _end(self, _name: str) -> None:
        if self._element is not None and self._element.depth == self._depth:
            self._element.element.text = "".join(self._element.pieces)
            self._element = None
        elif self._record is not None and self._record[2] == self._depth:
            self._done.append(self._record[0])
            self._record = None
        self._depth -= 1

    def _characters(self, text: str) -> None:
        if self._element is not None and self._element.room > 0:
            self._element.pieces.append(text[: self._element.room])
            self._element.room -= len(text)
