"""Columns of an export, each with a type that is declared before the first row is read.

`key`, `cost` and their like have a fixed type. `data`, `result`, and a path into one of them such as `result.authors.0`, are
text unless another type is declared: `result.pages:int`. A text is taken as it is, everything else as its JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.answers.units import amount, instant
from holdfast.engine.results import ResultRow
from holdfast.errors import UsageError
from holdfast.export.result import value_of
from holdfast.model.did_you_mean import there_are


class Kind(StrEnum):
    """The type of a column."""

    TEXT = "text"  # text as it is, everything else as its JSON
    JSON = "json"  # always JSON, text in quotes too
    INT = "int"  # 64 bits
    FLOAT = "float"
    BOOL = "bool"
    MONEY = "money"  # stored in millionths
    TIME = "time"  # stored in microseconds since 1970, UTC


#: What a person can declare.
DECLARABLE = (Kind.TEXT, Kind.JSON, Kind.INT, Kind.FLOAT, Kind.BOOL)

#: The value of a column in a row, as it is stored or as it was found in a JSON value.
Get = Callable[["ExportRow"], Any]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind
    get: Get


class ExportRow:
    """A row with the names of its pipeline and stage. JSON is decoded once, when the first column needs it."""

    __slots__ = ("_data", "_result", "pipeline", "row", "stage")

    def __init__(self, row: ResultRow, pipeline: str, stage: str) -> None:
        self.row = row
        self.pipeline = pipeline
        self.stage = stage
        self._data = self._result = _NOT_READ

    @property
    def data(self) -> Any:
        if self._data is _NOT_READ:
            self._data = value_of(self.row.data)
        return self._data

    @property
    def result(self) -> Any:
        if self._result is _NOT_READ:
            self._result = value_of(self.row.result)
        return self._result


_NOT_READ: Any = object()

_FIXED: dict[str, tuple[Kind, Get]] = {
    "pipeline": (Kind.TEXT, lambda row: row.pipeline),
    "key": (Kind.TEXT, lambda row: row.row.key),
    "stage": (Kind.TEXT, lambda row: row.stage),
    "state": (Kind.TEXT, lambda row: row.row.state),
    "error": (Kind.TEXT, lambda row: row.row.error),
    "cost": (Kind.MONEY, lambda row: row.row.cost),
    "version": (Kind.TEXT, lambda row: row.row.version),
    "attempts": (Kind.INT, lambda row: row.row.attempts),
    "started_at": (Kind.TIME, lambda row: row.row.started_at),
    "finished_at": (Kind.TIME, lambda row: row.row.ended_at),
}
_VALUES: dict[str, Get] = {"data": lambda row: row.data, "result": lambda row: row.result}

DEFAULT = (
    "key",
    "stage",
    "state",
    "result",
    "data",
    "error",
    "cost",
    "version",
    "attempts",
    "started_at",
    "finished_at",
)


def read_columns(given: str | Iterable[str] | None) -> list[Column]:
    """Columns as a person writes them: a list, or a text with commas."""
    names = DEFAULT if given is None else given.split(",") if isinstance(given, str) else given
    columns = [_read(name.strip()) for name in names]
    if not columns:
        raise UsageError("an export needs a column")
    twice = sorted({one.name for one in columns if [other.name for other in columns].count(one.name) > 1})
    if twice:
        raise UsageError(f"column {twice[0]!r} is there twice")
    return columns


def needs(columns: Sequence[Column], value: str) -> bool:
    """Whether any of the columns is the item's `data`, or the `result`, or a part of it."""
    return any(column.name.partition(".")[0] == value for column in columns)


def _read(text: str) -> Column:
    name, colon, kind = text.partition(":")
    root, dot, path = name.partition(".")
    if root in _VALUES:
        if kind and kind not in DECLARABLE:
            raise UsageError(f"column {text!r}: there is no type {kind!r}; {there_are(kind, DECLARABLE)}")
        get = _at(_VALUES[root], path.split(".")) if dot else _VALUES[root]
        return Column(name, Kind(kind) if kind else Kind.TEXT if dot else Kind.JSON, get)
    if name not in _FIXED or colon:
        known = [*_FIXED, *_VALUES]
        if name in _FIXED:
            raise UsageError(
                f"column {text!r}: {name} has a type already; only data, result and parts of them take one"
            )
        raise UsageError(f"there is no column {name!r}; {there_are(name, known)}, and paths like result.title")
    return Column(name, *_FIXED[name])


def _at(get: Get, path: Sequence[str]) -> Get:
    """The value at a path; None if there is none."""

    def at(row: ExportRow) -> Any:
        value = get(row)
        for part in path:
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                return None
        return value

    return at


def json_text(value: Any) -> str:
    """A value that was JSON, as JSON."""
    return _encode(value).decode()


_encode = msgspec.json.Encoder().encode


def cell(column: Column, row: ExportRow) -> Any:
    """A value as the column's type says: None, text, a number, a truth value; an error if it does not fit."""
    value = column.get(row)
    kind = column.kind
    if kind is Kind.JSON:
        # A value that is not there has no JSON; a null that a handler returned is no value either.
        return None if value is None else json_text(value)
    if value is None or kind is Kind.MONEY or kind is Kind.TIME:
        return value
    if kind is Kind.TEXT:
        return value if isinstance(value, str) else json_text(value)
    if kind is Kind.BOOL and isinstance(value, bool):
        return value
    if kind is Kind.INT and type(value) is int and -(2**63) <= value < 2**63:
        return value
    if kind is Kind.FLOAT and type(value) in (int, float):
        return float(value)
    raise UsageError(
        f"item {row.row.key!r}, stage {row.stage!r}: {column.name} is {json_text(value)[:60]}, which is not of type {kind}; "
        f"export it as {column.name} without a type, which is text"
    )


def shown(column: Column, row: ExportRow) -> Any:
    """The same for people: an instant, an amount."""
    value = cell(column, row)
    if column.kind is Kind.TIME:
        return instant(value)
    return amount(value) if column.kind is Kind.MONEY else value
