"""Rows of a CSV file with a header line; one column has the key."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from typing import IO, Any, ClassVar

from holdfast.sources import readers
from holdfast.sources.contract import Found, Kept, Reader, Source, SourceFailed
from holdfast.sources.read_lines import is_settled, lines, notes_of, opened
from holdfast.sources.rows import BadRow, found_in


class Csv(Source):
    """A CSV file. Bytes that do not fit its encoding make a bad row, not a bad file."""

    kind = "csv"
    options: ClassVar[Mapping[str, Reader]] = {
        "csv": readers.text,
        "key": readers.text,
        "mark": readers.text,
        "delimiter": readers.one_character,
        "encoding": readers.encoding,
    }

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        path = self.folder / self.settings["csv"]
        with opened(path) as file:
            before = notes_of(file)
            if memory.get("file") == before:
                yield Kept()
                return
            wrapper = self._decoded(file)
            try:
                yield from self._rows(path.name, self._lines(wrapper))
            finally:
                wrapper.detach()
            memory["file"] = before if is_settled(before) else None

    def _decoded(self, file: IO[bytes]) -> TextIOWrapper:
        encoding = codecs.lookup(self.settings.get("encoding", "utf-8")).name
        return TextIOWrapper(file, "utf-8-sig" if encoding == "utf-8" else encoding, readers.BAD_BYTES, newline="\n")

    def _lines(self, file: TextIOWrapper) -> Iterator[str]:
        for _, line in lines(file, "\n", lambda number: self.skip(f"line {number} is too long")):
            self.check()
            yield line

    def _rows(self, name: str, texts: Iterator[str]) -> Iterator[Found]:
        rows = csv.reader(texts, delimiter=self.settings.get("delimiter", ","))
        key = self.settings.get("key", "key")
        header: list[str] | None = None
        while True:
            try:
                row = next(rows)
            except StopIteration:
                break
            except csv.Error as error:
                self.skip(f"line {rows.line_num}: {error}")
                continue
            if not row:
                continue
            if header is None:
                header = self._header(name, row, key)
                continue
            try:
                if len(row) != len(header):
                    raise BadRow(f"{len(row)} fields under {len(header)} columns")
                found = found_in(dict(zip(header, row, strict=True)), key, mark=self.settings.get("mark"))
            except BadRow as error:
                self.skip(f"line {rows.line_num}: {error}")
            else:
                yield found
        if header is None:
            raise SourceFailed(f"{name} is empty: it needs a line with the names of its columns")

    def _header(self, name: str, row: list[str], key: str) -> list[str]:
        header = [column.strip() for column in row]
        if key not in header:
            shown = ", ".join(column.encode("utf-8", "replace").decode()[:40] for column in header[:20])
            raise SourceFailed(f"{name} has no column {key!r}; its first line says: {shown}")
        if len(set(header)) < len(header):
            raise SourceFailed(f"{name} has two columns of the same name in its first line")
        return header
