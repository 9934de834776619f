"""Checks a mapping against the table in the database, before anything is written.

The model may not match the database. A column that is missing, too short or of another type, a primary key that the
database does not have, a status word that a CHECK or an enum forbids: each raises an error that names the table, the
column and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Connection, Engine, Table, inspect
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.types import TypeEngine

from holdfast.adopt.table.times import TIMES, plain
from holdfast.adopt.table.tokens import TOKEN_LENGTH
from holdfast.errors import DefinitionError

#: Words that need no escaping in a string literal of any database.
_PLAIN_WORD = re.compile(r"[A-Za-z0-9 _.-]+")
#: All dialects store the same label for an enum's member.
_ANY_DIALECT = DefaultDialect()
#: Types of the same kind are interchangeable.
_KINDS = (
    ("a text", (sa.String, sa.Enum)),
    ("a number", (sa.Integer, sa.Numeric)),
    ("a time", (sa.DateTime,)),
    ("a UUID", (sa.Uuid,)),
)


class CheckedTable:
    """A table's definition, with what its columns mean; `check` compares it with the table in a database."""

    table: Table
    columns: Mapping[str, Column[Any]]
    words: Mapping[str, Any]
    limit: int | Column[Any] | None
    key: tuple[Column[Any], ...]

    def word(self, word: str) -> sa.ColumnElement[Any]:
        """One of the four words, as the status column stores it.

        A literal in the statement where possible, not a parameter: the planner cannot use a partial index for a value
        that it does not know.
        """
        kind = self.columns["status"].type
        stored = self.words[word]
        if isinstance(kind, sa.Enum):
            stored = _stored(stored, kind, _ANY_DIALECT)
        if isinstance(stored, int) and isinstance(kind, sa.Integer) and not isinstance(stored, bool):
            return sa.literal_column(str(int(stored)), kind)
        if type(stored) is str and isinstance(kind, sa.String) and _PLAIN_WORD.fullmatch(stored):
            return sa.literal_column(f"'{stored}'", kind)
        return sa.literal(self.words[word], kind)

    def check(self, at: Engine | Connection) -> None:
        """Raise DefinitionError if the table in the database does not fit this mapping. Writes nothing."""
        if isinstance(at, Engine):
            with at.connect() as connection:
                self.check(connection)
            return
        inspector, table = inspect(at), self.table
        if not inspector.has_table(table.name, schema=table.schema):
            raise DefinitionError(f"{self} does not exist in this database")
        there = {column["name"]: column for column in inspector.get_columns(table.name, schema=table.schema)}
        limit = [("max_attempts", self.limit)] if isinstance(self.limit, Column) else []
        for role, column in [*self.columns.items(), *(("primary key", column) for column in self.key), *limit]:
            if column.name not in there:
                raise DefinitionError(
                    f"{self} has no column {column.name!r} ({role}) in this database; it has: {', '.join(sorted(there))}"
                )
            self._check_type(at.dialect.name, role, column, there[column.name])
        self._check_key(inspector)
        self._check_words(at, inspector, there[self.columns["status"].name]["type"])

    def _check_type(self, database: str, role: str, column: Column[Any], there: ReflectedColumn) -> None:
        where = f"{self}, column {column.name!r} ({role})"
        wanted, found = _kind(column.type), _kind(there["type"])
        # SQLite stores any value in any column: the declared type says little, and that of a time is often TEXT.
        loose = database == "sqlite" and (wanted in ("a time", "a UUID") or found is None)
        if wanted is not None and found != wanted and not loose:
            raise DefinitionError(f"{where} is {there['type']} in this database, and {column.type!r} in the model")
        if role in TIMES and found == "a number":
            raise DefinitionError(f"{where} is {there['type']} in this database; it must be a time")
        if role == "holder":
            length = getattr(there["type"], "length", None)
            if found == "a text" and length is not None and length < TOKEN_LENGTH and database != "sqlite":
                raise DefinitionError(f"{where} has {length} characters; a token needs {TOKEN_LENGTH}")
            if not there["nullable"]:
                raise DefinitionError(f"{where} is NOT NULL in this database, but a queued row has no holder")

    def _check_key(self, inspector: sa.Inspector) -> None:
        name, schema, wanted = self.table.name, self.table.schema, {column.name for column in self.key}
        primary = set(inspector.get_pk_constraint(name, schema=schema)["constrained_columns"])
        unique = [set(one["column_names"]) for one in inspector.get_unique_constraints(name, schema=schema)]
        unique += [
            {name for name in one["column_names"] if name is not None}
            for one in inspector.get_indexes(name, schema=schema)
            if one["unique"] and not one.get("dialect_options", {}).get(f"{inspector.dialect.name}_where")
        ]
        if primary != wanted and wanted not in unique:
            shown = ", ".join(sorted(primary)) or "none"
            raise DefinitionError(
                f"{self}: the model's primary key is {', '.join(sorted(wanted))}, the database's is {shown}; "
                "a claim could change more than one row"
            )

    def _check_words(self, at: Connection, inspector: sa.Inspector, kind: TypeEngine[Any]) -> None:
        column = self.columns["status"]
        where = f"{self}, column {column.name!r}"
        for word, value in self.words.items():
            text = _stored(value, column.type, at.dialect)
            if isinstance(kind, sa.Enum) and kind.enums and text not in kind.enums:
                raise DefinitionError(f"{where}: {word}={text!r} is not one of its values: {', '.join(kind.enums)}")
            length = getattr(kind, "length", None)
            if isinstance(text, str) and length is not None and len(text) > length and at.dialect.name != "sqlite":
                raise DefinitionError(f"{where} has {length} characters; {word}={text!r} does not fit")
            for condition in self._conditions(at, inspector):
                if self._is_forbidden(at, condition, word):
                    raise DefinitionError(f"{where}: CHECK ({condition}) forbids {word}={text!r}; allow it first")

    def _conditions(self, at: Connection, inspector: sa.Inspector) -> list[str]:
        table = self.table
        if at.dialect.name == "sqlite":
            schema = None if table.schema is None else sa.quoted_name(table.schema, quote=True)
            source = sa.table("sqlite_master", sa.column("name"), sa.column("sql"), schema=schema)
            text = at.execute(sa.select(source.c.sql).where(source.c.name == str(table.name))).scalar()
            return list(written_checks(text or ""))
        return [str(one["sqltext"]) for one in inspector.get_check_constraints(table.name, schema=table.schema)]

    def _is_forbidden(self, at: Connection, condition: str, word: str) -> bool:
        """Let the database evaluate the CHECK for a row that has only a status. A CHECK that reads other columns cannot be
        evaluated, and counts as allowing the word."""
        column, value = self.columns["status"], self.word(word)
        if at.dialect.name == "postgresql":
            value = sa.cast(value, column.type)
        row = sa.select(value.label(sa.quoted_name(column.name, quote=True)))
        asked: sa.Select[Any] = sa.select(sa.literal_column(f"({condition})"))
        try:
            with at.begin_nested():
                answer = at.execute(asked.select_from(row.subquery(sa.quoted_name(self.table.name, True)))).scalar()
        except sa.exc.DBAPIError:
            return False
        return answer is not None and not answer


def _kind(found: TypeEngine[Any]) -> str | None:
    return next((name for name, types in _KINDS if isinstance(plain(found), types)), None)


def _stored(value: Any, kind: TypeEngine[Any], dialect: sa.Dialect) -> Any:
    """What a column of this type stores for a value; for an enum's member, its label."""
    process = kind.bind_processor(dialect)
    return value if process is None else process(value)


#: Quoted text and comments, the beginning of a CHECK, and parentheses.
_TOKENS = re.compile(
    r"""'[^']*' | "[^"]*" | `[^`]*` | \[[^]]*\] | --[^\n]* | /\*.*?\*/ | \bCHECK\s*(?=\() | [()]""", re.X | re.S | re.I
)


def written_checks(sql: str) -> Iterator[str]:
    """The condition of every CHECK in a CREATE TABLE as SQLite stores it; skips quoted text and comments."""
    start: int | None = None
    depth = 0
    for token in _TOKENS.finditer(sql):
        if start is None and token[0][:5].upper() == "CHECK":
            start, depth = token.end() + 1, 0
        elif token[0] in "()":
            depth += 1 if token[0] == "(" else -1
            if start is not None and depth == 0:
                yield sql[start : token.start()].strip()
                start = None
    if start is not None:
        yield sql[start:].strip()
