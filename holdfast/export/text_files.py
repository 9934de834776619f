"""Rows as JSON lines, and as CSV that no spreadsheet executes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, BinaryIO

import msgspec

from holdfast.answers.text_tables import exact, iso
from holdfast.answers.units import amount, instant
from holdfast.export.columns import Column, ExportRow, Kind, cell

#: A spreadsheet takes a cell that begins with one of these for a formula.
DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "\n")
#: Bytes that are collected before they are written.
BUFFER = 1 << 20

_encode = msgspec.json.Encoder().encode


_1970 = datetime(1970, 1, 1)


def _time(value: int | None) -> str | None:
    """As `words.iso` writes an instant, in a third of the time."""
    if value is None:
        return None
    try:
        return f"{(_1970 + timedelta(microseconds=value)).isoformat(timespec='microseconds')}Z"
    except OverflowError:
        return iso(instant(value))


@lru_cache(maxsize=1000)
def _money(value: int | None) -> str | None:
    return None if value is None else exact(amount(value))


class JsonLines:
    """A JSON object per line: instants in ISO 8601, amounts as decimal text, everything else as it is."""

    def __init__(self, out: BinaryIO, columns: Sequence[Column]) -> None:
        self._out = out
        self._columns = [(one.name, _json_value(one)) for one in columns]
        self._buffer = bytearray()

    def write(self, row: ExportRow) -> None:
        self._buffer += _encode({name: value(row) for name, value in self._columns})
        self._buffer += b"\n"
        if len(self._buffer) > BUFFER:
            self._flush()

    def close(self) -> None:
        self._flush()

    def give_up(self) -> None:
        """Nothing more is written."""

    def _flush(self) -> None:
        self._out.write(self._buffer)
        self._buffer = bytearray()


def _json_value(column: Column) -> Callable[[ExportRow], Any]:
    if column.kind is Kind.TIME:
        return lambda row: _time(column.get(row))
    if column.kind is Kind.MONEY:
        return lambda row: _money(column.get(row))
    if column.kind in (Kind.TEXT, Kind.JSON):
        return column.get
    return lambda row: cell(column, row)


class Csv:
    """A line per row, with a line of names first. Text that a spreadsheet would execute gets an apostrophe in front; numbers
    stay numbers."""

    def __init__(self, out: BinaryIO, columns: Sequence[Column]) -> None:
        self._out = out
        self._columns = [_csv_value(one) for one in columns]
        self._text = io.StringIO()
        # Both characters of the line's end have to be in it: older Pythons put only those, in a cell, into quotes.
        self._writer = csv.writer(self._text, lineterminator="\r\n")
        self._writer.writerow([harmless(one.name) for one in columns])

    def write(self, row: ExportRow) -> None:
        self._writer.writerow([value(row) for value in self._columns])
        if self._text.tell() > BUFFER:
            self._flush()

    def close(self) -> None:
        self._flush()

    def give_up(self) -> None:
        """Nothing more is written."""

    def _flush(self) -> None:
        self._out.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()


def harmless(text: str) -> str:
    """Text that a spreadsheet shows, and does not execute."""
    return f"'{text}" if text.startswith(DANGEROUS) else text


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
            return harmless(found)
        one = cell(column, row)
        # What is not text by now is a number or a truth value, or is written as JSON, which begins with none of these but a
        # minus, of a number.
        return one if isinstance(one, str) else _encode(one).decode()

    return value
