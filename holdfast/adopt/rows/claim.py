"""Claim: moves queued rows to processing, each for exactly one claimer.

One guarded statement in one short transaction. It also counts the attempt, so that an attempt whose process dies counts.
A claim returns one `Held` per row. Concurrent claims get other rows, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from operator import attrgetter
from typing import Any, TypeAlias, cast

import sqlalchemy as sa
from sqlalchemy import Column, ColumnElement, Connection, DateTime, Dialect
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine

from holdfast.adopt.connections import Open, connection_of, primitive
from holdfast.adopt.rows.dialects import Choice, bare, locked_and_returned, move, returned, sorted_rows, way_of
from holdfast.adopt.rows.prepared_finish import Ready
from holdfast.adopt.rows.sessions import forget, show_pending
from holdfast.adopt.rows.sqlite_direct import Direct
from holdfast.adopt.table.held_row import Held
from holdfast.adopt.table.mapping import Name, TableMapping
from holdfast.adopt.table.times import asks_database, now, plain, stored, time_type, utc
from holdfast.adopt.table.tokens import LoopIdentity, identity
from holdfast.errors import UsageError

#: Conditions on the user's rows: one, or several that must all hold.
Where: TypeAlias = "ColumnElement[bool] | Sequence[ColumnElement[bool]] | None"
#: A column's name (`-name`: largest first), an expression, or several.
OrderBy: TypeAlias = "Name | ColumnElement[Any] | Sequence[Name | ColumnElement[Any]] | None"


@primitive
def claim(
    at: Open,
    mapping: TableMapping,
    n: int = 1,
    *,
    where: Where = None,
    order_by: OrderBy = None,
    holder: str | LoopIdentity | None = None,
    columns: Sequence[Name] | None = None,
    now: datetime | None = None,
) -> list[Held]:
    """Claim up to `n` queued rows that are due and have attempts left, in the given order.

    `holder` is a human-readable label; the fencing token is random. `columns` limits `Held.row` to these columns. `now`
    replaces the database's clock. In a Session, the columns that the statement wrote are expired on objects loaded
    earlier, so that none shows or writes back old values.
    """
    show_pending(at)
    connection = connection_of(at, mapping)
    conditions = tuple(conditions_of(where))
    order = order_of(mapping, order_by)
    chosen = None if columns is None else tuple(columns)
    found = take(connection, mapping, _positive(n), conditions, order, identity(holder), chosen, now)
    if isinstance(at, Session):
        changed = written(mapping, "status", "holder", "version", "attempts", "times")
        forget(at, mapping, [one.key for one in found], changed)
    return found


def take(
    connection: Connection,
    mapping: TableMapping,
    n: int,
    where: tuple[ColumnElement[bool], ...],
    order_by: tuple[ColumnElement[Any], ...] | None,
    who: LoopIdentity,
    columns: tuple[Name, ...] | None,
    at_time: datetime | None,
) -> list[Held]:
    """Claim rows for `who`."""
    dialect = connection.dialect
    token = who.token(mapping.columns["holder"]) if "holder" in mapping.columns else None
    way = way_of(dialect)
    if way.endswith("returned"):
        ready = claiming(mapping, dialect, way, where, order_by, columns, at_time is not None)
        values = ready.values(n, token, at_time)
        rows = sorted_rows(connection, mapping, ready.choice, connection.execute(ready.statement, values).all())
        shape = ready.shape
    else:
        due = claimable(dialect, mapping, where, at_time)
        choice = Choice("queued", due, n, order_by)
        clock: ColumnClock = partial(now, dialect, at=at_time)
        rows = move(connection, mapping, choice, marks(mapping, clock, token), returned_columns(mapping, columns))
        shape = RowShape.of(mapping, columns)
    return [shape.held(mapping, row, token) for row in rows]


def take_directly(
    dialect: Dialect,
    mapping: TableMapping,
    n: int,
    where: tuple[ColumnElement[bool], ...],
    who: LoopIdentity,
    columns: tuple[Name, ...] | None,
) -> Direct | None:
    """A claim for SQLite's driver, ordered by key; None if the statement needs SQLAlchemy to run."""
    claim = claiming(mapping, dialect, way_of(dialect), where, None, columns, False)
    token = who.token(mapping.columns["holder"]) if "holder" in mapping.columns else None
    values = claim.values(n, token, None)
    if not (claim.ready.is_whole and claim.ready.places <= values.keys()):
        return None

    def read(cursor: DBAPICursor) -> list[Held]:
        found = [claim.shape.held(mapping, claim.seen(row), token) for row in cursor.fetchall()]
        try:
            return sorted(found, key=attrgetter("key"))
        except TypeError:
            return found

    return Direct(claim.ready.text, claim.ready.given(values), read)


#: The current time, as a column of the given type stores it.
ColumnClock = Callable[[DateTime], ColumnElement[Any]]


@dataclass(frozen=True)
class Claiming:
    """A claim statement, built once, and the times that must be passed to it."""

    statement: Any
    dialect: Dialect
    choice: Choice
    told: Mapping[str, DateTime]
    shape: RowShape
    #: The types of the returned columns.
    kinds: Sequence[TypeEngine[Any]]

    def values(self, n: int, token: Any, at_time: datetime | None) -> dict[str, Any]:
        found: dict[str, Any] = {"hf_limit": n}
        if token is not None:
            found["hf_token"] = token
        if self.told:
            moment = at_time or datetime.now(UTC)
            found |= {name: stored(moment, self.dialect, kind) for name, kind in self.told.items()}
        return found

    @cached_property
    def ready(self) -> Ready:
        return Ready(self.statement, self.dialect)

    def seen(self, row: Sequence[Any]) -> list[Any]:
        """A row from the driver, with its values converted by the columns' types."""
        found = list(row)
        for at, process in self._processors:
            found[at] = process(found[at])
        return found

    @cached_property
    def _processors(self) -> list[tuple[int, Callable[[Any], Any]]]:
        found = (kind.dialect_impl(self.dialect).result_processor(self.dialect, None) for kind in self.kinds)
        return [(at, process) for at, process in enumerate(found) if process is not None]


@lru_cache(maxsize=500)
def claiming(
    mapping: TableMapping,
    dialect: Dialect,
    way: str,
    where: tuple[ColumnElement[bool], ...],
    order_by: tuple[ColumnElement[Any], ...] | None,
    columns: tuple[Name, ...] | None,
    told_time: bool,
) -> Claiming:
    """The claim statement. The limit, the token and, unless the database's clock is used, the time remain parameters."""
    told: dict[str, DateTime] = {}

    def clock(kind: DateTime) -> ColumnElement[Any]:
        if asks_database(dialect) and not told_time:
            return now(dialect, kind)
        plainly = DateTime(timezone=kind.timezone and dialect.name == "postgresql")
        name = "hf_now_with_zone" if plainly.timezone else "hf_now"
        told[name] = plainly
        return sa.bindparam(name, type_=plainly)

    token = sa.bindparam("hf_token", type_=mapping.columns["holder"].type) if "holder" in mapping.columns else None
    due = [*is_due(mapping, clock), *has_attempts(mapping), *where]
    choice = Choice("queued", due, sa.bindparam("hf_limit", type_=sa.Integer()), order_by)
    own = [bare(mapping).c[column.name].label(f"hf_key{at}") for at, column in enumerate(mapping.key)]
    build = locked_and_returned if way.startswith("locked") else returned
    shown = [*own, *returned_columns(mapping, columns)]
    statement = build(mapping, choice, marks(mapping, clock, token), shown)
    shape = RowShape.of(mapping, columns, place=way.startswith("locked"))
    return Claiming(statement, dialect, choice, told, shape, [one.type for one in shown])


def marks(mapping: TableMapping, clock: ColumnClock, token: Any) -> dict[str, Any]:
    """The values that a claim writes."""
    found: dict[str, Any] = {mapping.columns["status"].name: mapping.words["processing"]}
    for role, column in mapping.columns.items():
        if role == "holder":
            found[column.name] = token
        elif role in ("version", "attempts"):
            found[column.name] = one_more(mapping, role)
        elif role in ("started", "heartbeat", "updated"):
            kind = time_type(column)
            assert kind is not None
            found[column.name] = clock(kind)
    return found


def one_more(mapping: TableMapping, role: str) -> ColumnElement[Any]:
    """The incremented value of a counting column; NULL counts as zero."""
    return sa.func.coalesce(bare(mapping).c[mapping.columns[role].name], 0) + 1


def claimable(
    dialect: Dialect, mapping: TableMapping, where: Sequence[ColumnElement[bool]], at_time: datetime | None = None
) -> list[ColumnElement[bool]]:
    """The conditions under which a queued row may be claimed now."""
    return [*is_due(mapping, partial(now, dialect, at=at_time)), *has_attempts(mapping), *where]


def is_due(mapping: TableMapping, clock: ColumnClock) -> list[ColumnElement[bool]]:
    column = mapping.column("next_attempt")
    kind = None if column is None else time_type(column)
    if column is None or kind is None:
        return []
    return [sa.or_(column.is_(None), sa.type_coerce(column, kind) <= clock(kind))]


def has_attempts(mapping: TableMapping) -> list[ColumnElement[bool]]:
    if mapping.limit is None:
        return []
    return [sa.func.coalesce(mapping.columns["attempts"], 0) < mapping.limit]


def has_last_attempts(mapping: TableMapping) -> bool:
    """Whether rows have a last attempt that is not also their first."""
    return mapping.limit is not None and not (isinstance(mapping.limit, int) and mapping.limit == 1)


def is_last_attempt(mapping: TableMapping) -> ColumnElement[bool]:
    """The condition for rows that have failed before and have one attempt left."""
    limit: Any = mapping.limit
    return sa.and_(sa.func.coalesce(mapping.columns["attempts"], 0) + 1 >= limit, limit > sa.literal(1))


def conditions_of(where: Where) -> list[ColumnElement[bool]]:
    if where is None:
        return []
    return list(where) if isinstance(where, (list, tuple)) else [where]  # type: ignore[list-item]


def order_of(mapping: TableMapping, order_by: OrderBy) -> tuple[ColumnElement[Any], ...] | None:
    if order_by is None:
        return None
    several = order_by if isinstance(order_by, (list, tuple)) else [order_by]
    found: list[ColumnElement[Any]] = []
    for one in several:
        if isinstance(one, str):
            column = mapping.find(one.removeprefix("-"))
            found.append(column.desc() if one.startswith("-") else column.asc())
        else:
            found.append(cast("ColumnElement[Any]", one))
    return tuple(found)


def returned_columns(mapping: TableMapping, columns: Sequence[Name] | None) -> list[ColumnElement[Any]]:
    target = bare(mapping)
    shown = [target.c[column.name].label(f"hf_row{at}") for at, column in enumerate(row_columns(mapping, columns))]
    # Selected a second time in their plain types: a TypeDecorator may convert them to something that is no number or time.
    facts = [
        sa.type_coerce(target.c[mapping.columns[role].name], plain(mapping.columns[role].type)).label(f"hf_{role}")
        for role in _facts(mapping)
    ]
    return [*shown, *facts]


def row_columns(mapping: TableMapping, columns: Sequence[Name] | None) -> list[Any]:
    return list(mapping.table.columns) if columns is None else [mapping.find(one) for one in columns]


@dataclass(frozen=True)
class RowShape:
    """The positions of the key, the values and the facts in a returned row."""

    key: slice
    names: tuple[str, ...]
    values: slice
    facts: Mapping[str, int]

    @classmethod
    def of(cls, mapping: TableMapping, columns: Sequence[Name] | None, place: bool = False) -> RowShape:
        start = int(place)
        end = start + len(mapping.key)
        names = tuple(mapping.attribute(column) for column in row_columns(mapping, columns))
        after = end + len(names)
        facts = {role: after + at for at, role in enumerate(_facts(mapping))}
        return cls(slice(start, end), names, slice(end, after), facts)

    def held(self, mapping: TableMapping, row: Sequence[Any], token: Any) -> Held:
        whole, at = tuple(row), self.facts
        key = whole[self.key]
        started = whole[at["started"]] if "started" in at else None
        beat = whole[at["heartbeat"]] if "heartbeat" in at else None
        return Held(
            mapping,
            key if len(key) > 1 else key[0],
            whole[at["attempts"]] if "attempts" in at else 1,
            token,
            whole[at["version"]] if "version" in at else None,
            None if started is None else utc(started),
            None if beat is None else utc(beat),
            dict(zip(self.names, whole[self.values], strict=False)),
        )


def _facts(mapping: TableMapping) -> list[str]:
    return [role for role in ("version", "attempts", "started", "heartbeat") if role in mapping.columns]


def written(mapping: TableMapping, *what: str) -> list[Column[Any]]:
    """The columns that a primitive writes."""
    roles = [role for one in what for role in (("started", "heartbeat", "updated") if one == "times" else (one,))]
    return [mapping.columns[role] for role in roles if role in mapping.columns]


def _positive(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError(f"claim of {n!r} rows: give a number from 1")
    return n
