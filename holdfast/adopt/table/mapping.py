"""A mapping: what a table's columns mean, and which words its status column uses.

It is checked against the SQLAlchemy model when it is created, and against the table in the database with `check`. It says
nothing about how rows are claimed; `claim` and the other primitives do that.

    jobs = TableMapping(Job, status="state", queued="new", processing="busy", error="last_error", holder="locked_by")
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Column, Table
from sqlalchemy.orm import InstrumentedAttribute, Mapper

from holdfast.adopt.table.check import CheckedTable
from holdfast.adopt.table.times import TIMES, plain, time_type
from holdfast.adopt.table.tokens import TOKEN_LENGTH
from holdfast.errors import DefinitionError

#: A column: its name, the model's attribute, or the column itself.
Name: TypeAlias = "str | Column[Any] | InstrumentedAttribute[Any]"

WORDS = ("queued", "processing", "completed", "failed")
COUNTS = ("attempts", "version")
ROLES = ("status", "error", "holder", *COUNTS, *TIMES)
#: Default for max_attempts if there is an attempts column.
MOST_ATTEMPTS = 5


@dataclass(frozen=True, eq=False)
class TableMapping(CheckedTable):
    """Names a table's status column, its status words, and the optional columns that the table has.

    Each column adds a guarantee; the guide to your own tables lists them. `holder` is a text or UUID column for the claim's
    token. `version` is a number that grows with each change of status. `attempts` is a number that each claim increments,
    up to `max_attempts` (a number, or a column). Times are UTC.
    """

    model: Any
    _: KW_ONLY
    status: Name = "status"
    queued: Any = "queued"
    processing: Any = "processing"
    completed: Any = "completed"
    failed: Any = "failed"
    error: Name | None = None
    attempts: Name | None = None
    max_attempts: int | Name | None = None
    next_attempt: Name | None = None
    holder: Name | None = None
    version: Name | None = None
    heartbeat: Name | None = None
    started: Name | None = None
    updated: Name | None = None
    created: Name | None = None
    #: Derived from the fields above, like those of CheckedTable.
    mapper: Mapper[Any] | None = field(init=False, repr=False)
    fence: tuple[str, ...] = field(init=False, repr=False)
    names: Mapping[Column[Any], str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        mapper, start = mapper_and_table(self.model)
        found = {
            role: column_of(mapper, start, given, role) for role in ROLES if (given := getattr(self, role)) is not None
        }
        table = found["status"].table
        if not isinstance(table, Table):
            raise DefinitionError(f"{self.model!r}: its status column is not a column of a table")
        self._set(table=table, mapper=mapper, columns=found, names=_names(mapper))
        self._set(limit=self._read_limit(mapper, start), key=self._read_key(mapper), fence=self._read_fence())
        for role, column in found.items():
            self._check_column(role, column)
        self._set(words={word: self._word(word, getattr(self, word)) for word in WORDS})
        if len({str(word) for word in self.words.values()}) != len(WORDS):
            raise DefinitionError(f"{self}: queued, processing, completed and failed must be four different words")

    @property
    def name(self) -> str:
        """The table's name, with its schema."""
        return self.table.fullname

    def __str__(self) -> str:
        return f"table {self.name!r}"

    def column(self, role: str) -> Column[Any] | None:
        return self.columns.get(role)

    def in_status(self, word: str) -> sa.ColumnElement[bool]:
        return self.columns["status"] == self.word(word)

    @property
    def own_rows(self) -> list[sa.ColumnElement[bool]]:
        """The conditions that select this model's rows in a table shared by several (single-table inheritance)."""
        mapper = self.mapper
        if mapper is None or not mapper.single or mapper.inherits is None or mapper.polymorphic_on is None:
            return []
        return [mapper.polymorphic_on.in_([one.polymorphic_identity for one in mapper.self_and_descendants])]

    @cached_property
    def bare(self) -> sa.TableClause:
        """The table without the model's defaults and `onupdate` functions, for UPDATE statements."""
        columns = [sa.column(column.name, column.type) for column in self.table.columns]
        return sa.table(self.table.name, *columns, schema=self.table.schema)

    @cached_property
    def bare_key(self) -> list[sa.ColumnElement[Any]]:
        return [self.bare.c[column.name] for column in self.key]

    def target(self, role: str) -> sa.ColumnElement[Any]:
        """The column of the bare table that has this role."""
        return self.bare.c[self.columns[role].name]

    def attribute(self, column: Column[Any]) -> str:
        """The column's name in the model, or in the table if there is no model."""
        return self.names.get(column, column.key)

    def find(self, given: Name) -> Column[Any]:
        """The column for a name, a model's attribute, or a Column."""
        return column_of(self.mapper, self.table, given, "a column")

    # The parts --------------------------------------------------------------------------------------------------------

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _read_limit(self, mapper: Mapper[Any] | None, table: Table) -> int | Column[Any] | None:
        given = self.max_attempts
        if "attempts" not in self.columns:
            if given is not None:
                raise DefinitionError(f"{self}: max_attempts needs a column that counts attempts: attempts=")
            return None
        if given is None:
            return MOST_ATTEMPTS
        if isinstance(given, int):
            if isinstance(given, bool) or given < 1:
                raise DefinitionError(f"{self}: max_attempts={given!r} must be a number from 1, or a column")
            return given
        return self._counted("max_attempts", column_of(mapper, table, given, "max_attempts"))

    def _read_key(self, mapper: Mapper[Any] | None) -> tuple[Column[Any], ...]:
        key = tuple(self.table.primary_key.columns)
        if not key and mapper is not None:
            key = tuple(one for one in self.table.columns if any(one is other for other in mapper.primary_key))
        if not key:
            raise DefinitionError(f"{self} has no primary key, which claimed rows need")
        return key

    def _read_fence(self) -> tuple[str, ...]:
        """The columns that distinguish one claim of a row from the next."""
        for role in ("holder", "version"):
            if role in self.columns:
                return (role,)
        weaker = tuple(role for role in ("started", "attempts") if role in self.columns)
        return weaker or (("heartbeat",) if "heartbeat" in self.columns else ())

    def _check_column(self, role: str, column: Column[Any]) -> None:
        where = f"{self}, column {column.name!r} ({role})"
        if column.table is not self.table:
            raise DefinitionError(f"{where} belongs to another table than the status column; name one of {self.name!r}")
        if any(column is one for one in self.key):
            raise DefinitionError(f"{where} is part of the primary key, which is never changed")
        twice = [other for other, one in self.columns.items() if one is column and other != role]
        if twice:
            raise DefinitionError(f"{where} cannot be {twice[0]} at the same time")
        if role in TIMES and time_type(column) is None:
            raise DefinitionError(f"{where} is {column.type!r}; it must be a DateTime, best with timezone=True")
        if role in COUNTS:
            self._counted(role, column)
        kind = plain(column.type)
        if role == "error" and (not isinstance(kind, sa.String) or isinstance(kind, sa.Enum)):
            raise DefinitionError(f"{where} is {column.type!r}; it must be a text")
        if role == "holder":
            text = isinstance(kind, sa.String) and not isinstance(kind, sa.Enum)
            if not (text or isinstance(kind, sa.Uuid)):
                raise DefinitionError(f"{where} is {column.type!r}; a token is a text or a UUID")
            if text and kind.length is not None and kind.length < TOKEN_LENGTH:  # type: ignore[attr-defined]
                raise DefinitionError(f"{where} is too short for a token, which has {TOKEN_LENGTH} characters")
            if not column.nullable:
                raise DefinitionError(f"{where} must be nullable: a queued row has no holder")

    def _counted(self, role: str, column: Column[Any]) -> Column[Any]:
        if not isinstance(plain(column.type), sa.Integer):
            raise DefinitionError(f"{self}, column {column.name!r} ({role}) is {column.type!r}; it must be an Integer")
        return column

    def _word(self, word: str, given: Any) -> Any:
        column = self.columns["status"]
        kind = plain(column.type)
        where = f"{self}, column {column.name!r}"
        if given is None:
            raise DefinitionError(f"{where}: {word}= must not be None")
        if isinstance(kind, sa.Enum):
            return _enum_word(kind, given, f"{where}: {word}={given!r}")
        value = given.value if isinstance(given, enum.Enum) and column.type is kind else given
        wanted = str if isinstance(kind, sa.String) else int if isinstance(kind, sa.Integer) else object
        if not isinstance(value, wanted) or isinstance(value, bool) > isinstance(kind, sa.Boolean):
            raise DefinitionError(f"{where} is {column.type!r}, which {word}={given!r} does not fit")
        return value


def _names(mapper: Mapper[Any] | None) -> dict[Column[Any], str]:
    if mapper is None:
        return {}
    return {column: one.key for one in mapper.column_attrs for column in one.columns if isinstance(column, Column)}


def _enum_word(kind: sa.Enum, given: Any, where: str) -> Any:
    members: type[enum.Enum] | None = kind.enum_class
    if members is not None:
        if isinstance(given, members) or given in kind.enums:
            return given
        for member in members:
            if member.value == given:
                return member
    else:
        for value in (given, getattr(given, "value", None), getattr(given, "name", None)):
            if value in kind.enums:
                return value
    raise DefinitionError(f"{where} is not one of the column's values: {', '.join(kind.enums)}")


def mapper_and_table(model: Any) -> tuple[Mapper[Any] | None, Table]:
    if isinstance(model, Table):
        return None, model
    found = sa.inspect(model, raiseerr=False)
    if not isinstance(found, Mapper):
        raise DefinitionError(f"{model!r} is neither a SQLAlchemy model nor a Table")
    if not isinstance(found.local_table, Table):
        raise DefinitionError(f"{model!r} is not mapped to a table of its own")
    return found, found.local_table


def column_of(mapper: Mapper[Any] | None, table: Table, given: Name, role: str) -> Column[Any]:
    if isinstance(given, Column):
        return given
    if isinstance(given, InstrumentedAttribute):
        given = given.key
    if mapper is not None and isinstance(given, str) and given in mapper.column_attrs:
        [found, *_] = mapper.column_attrs[given].columns
        if isinstance(found, Column):
            return found
    if isinstance(given, str):
        for column in table.columns:
            if given in (column.key, column.name):
                return column
        known: Sequence[str] = sorted(str(column.name) for column in table.columns)
        raise DefinitionError(f"table {table.fullname!r} has no column {given!r} ({role}); it has: {', '.join(known)}")
    raise DefinitionError(f"{role}={given!r} names no column; give its name, the model's attribute, or the Column")
