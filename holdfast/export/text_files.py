"""Rows as JSON lines, and as CSV that no spreadsheet executes.

A CSV does not say which sign separates its cells: where the comma is the decimal sign, spreadsheets split at `;`, and a quote
in the middle of what they take for a cell protects nothing. So no text may become a formula wherever a line is split: at
commas, semicolons, tabs, bars or line breaks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, BinaryIO

import msgspec

from holdfast.answers.text_tables import exact, iso
from holdfast.answers.units import amount, instant
from holdfast.export.columns import Column, ExportRow, Kind, cell

#: A spreadsheet takes a cell that begins with one of these for a formula; the full-width ones in some languages.
_STARTS = "=+@＝＋－＠-"
#: What may stand before them, apart from what separates cells.
_SPACE = r"(?:[^\S\t\r\n]|[\ufeff\u200b])"
_FORMULA = re.compile(rf"[\t\r\n]|{_SPACE}*[{_STARTS}]").match
#: After what separates cells for some reader. Quotes may stand there, too, and be removed.
_FORMULA_AFTER = re.compile(rf"[;|\t\r\n](?=(?:{_SPACE}|\")*[{_STARTS}])")
#: The same in JSON, where these signs stand within texts only, and control characters are escaped.
_FORMULA_IN_JSON = re.compile(rf"([;|]{_SPACE}*)([{_STARTS}])")
#: Text that is no formula and needs no quotes, also if it follows a negative number in what a spreadsheet takes for one cell.
_IS_PLAIN = re.compile(r"\w[\w .:/-]*").fullmatch
#: Bytes that are collected before they are written.
BUFFER = 1 << 20

_encode = msgspec.json.Encoder().encode


_1970 = datetime(1970, 1, 1)


def _time(value: int | None) -> str | None:
    """As `text_tables.iso` writes an instant, in a third of the time."""
    if value is None:
        return None
    try:
        return f"{(_1970 + timedelta(microseconds=value)).isoformat(timespec='microseconds')}Z"
    except OverflowError:
        return iso(instant(value))


@lru_cache(maxsize=1000)
def _money(value: int | None) -> str | None:
    return None if value is None else exact(amount(value))


class _Lines:
    """A file of lines, which are collected and written together."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._buffer = bytearray()

    def close(self) -> None:
        self._flush()

    def give_up(self) -> None:
        """Nothing more is written."""

    def _add(self, line: bytes, end: bytes) -> None:
        self._buffer += line
        self._buffer += end
        if len(self._buffer) > BUFFER:
            self._flush()

    def _flush(self) -> None:
        self._out.write(self._buffer)
        self._buffer = bytearray()


class JsonLines(_Lines):
    """A JSON object per line: instants in ISO 8601, amounts as decimal text, everything else as it is."""

    def __init__(self, out: BinaryIO, columns: Sequence[Column]) -> None:
        super().__init__(out)
        self._columns = [(one.name, _json_value(one)) for one in columns]

    def write(self, row: ExportRow) -> None:
        self._add(_encode({name: value(row) for name, value in self._columns}), b"\n")


def _json_value(column: Column) -> Callable[[ExportRow], Any]:
    if column.kind is Kind.TIME:
        return lambda row: _time(column.get(row))
    if column.kind is Kind.MONEY:
        return lambda row: _money(column.get(row))
    if column.kind in (Kind.TEXT, Kind.JSON):
        return column.get
    return lambda row: cell(column, row)


class Csv(_Lines):
    """A line per row, with a line of names first. Text that a spreadsheet would execute gets an apostrophe in front; numbers
    stay numbers."""

    def __init__(self, out: BinaryIO, columns: Sequence[Column]) -> None:
        super().__init__(out)
        self._columns = [_csv_value(one) for one in columns]
        self._add_cells([_quoted(harmless(one.name)) for one in columns])

    def write(self, row: ExportRow) -> None:
        self._add_cells([value(row) for value in self._columns])

    def _add_cells(self, cells: list[str]) -> None:
        # A line with nothing in it would be no row.
        self._add((",".join(cells) or '""').encode(), b"\r\n")


def harmless(text: str) -> str:
    """Text that a spreadsheet shows, and does not execute, whatever it takes for the separator of cells: an apostrophe
    stands before each part that it could take for a formula."""
    if _IS_PLAIN(text):
        return text
    text = _FORMULA_AFTER.sub(r"\g<0>'", text)
    return f"'{text}" if _FORMULA(text) else text


def harmless_json(text: str) -> str:
    """The same for JSON: the first sign of a formula is escaped, which leaves the value as it is."""
    if ";" not in text and "|" not in text:
        return text
    return _FORMULA_IN_JSON.sub(lambda found: f"{found[1]}\\u{ord(found[2]):04x}", text)


def _quoted(text: str) -> str:
    return text if _IS_PLAIN(text) else '"' + text.replace('"', '""') + '"'


def _csv_value(column: Column) -> Callable[[ExportRow], str]:
    def value(row: ExportRow) -> str:
        found = column.get(row)
        if found is None:
            return ""
        if column.kind is Kind.TIME:
            return _time(found) or ""
        if column.kind is Kind.MONEY:
            return _money(found) or ""
        if isinstance(found, str) and column.kind is Kind.TEXT:
            return found if _IS_PLAIN(found) else _quoted(harmless(found))
        one = cell(column, row)
        # What is not text by now is a number or a truth value; JSON begins with none of these signs but a minus, of a number.
        return _quoted(harmless_json(one)) if isinstance(one, str) else _encode(one).decode()

    return value
