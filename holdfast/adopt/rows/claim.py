"""Claim: moves queued rows to processing, each for exactly one claimer.

One guarded statement in one short transaction. It also counts the attempt, so that an attempt whose process dies counts.
A claim returns one `Held` per row. Concurrent claims get other rows, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, cast

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Dialect
from sqlalchemy.engine.interfaces import DBAPICursor

from holdfast.adopt.connections import Open, connection_of, primitive
from holdfast.adopt.rows.dialects import Choice, Key, move, moving, one_more, sorted_rows, support_of
from holdfast.adopt.rows.prepared import Prepared
from holdfast.adopt.rows.sessions import forget, show_pending
from holdfast.adopt.rows.sqlite_direct import Direct
from holdfast.adopt.table.held_row import Held
from holdfast.adopt.table.mapping import Name, TableMapping
from holdfast.adopt.table.times import aware, comparable, plain, time_type, utc
from holdfast.adopt.table.times import now as the_time
from holdfast.adopt.table.tokens import LoopIdentity, identity
from holdfast.errors import UsageError

Conditions = tuple[ColumnElement[bool], ...]
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
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError(f"claim of {n!r} rows: give a number from 1")
    show_pending(at)
    connection = connection_of(at, mapping)
    dialect, conditions, order = connection.dialect, tuple(conditions_of(where)), order_of(mapping, order_by)
    chosen = None if columns is None else tuple(columns)
    reader = row_reader(mapping, chosen)
    token = identity(holder).token(mapping.column("holder"))
    if support_of(dialect).returning:
        make = prepared_claim if now is None else ClaimStatement
        statement = make(mapping, dialect, conditions, order, chosen, now)
        changed = connection.execute(statement.update, statement.values(n, token)).all()
        rows = sorted_rows(connection, mapping, statement.choice, changed)
    else:
        choice = Choice("queued", claimable(dialect, mapping, conditions, now), n, order)
        rows = move(connection, mapping, choice, marks(mapping, dialect, token, now), reader.columns)
    found = [reader.held(row, token) for row in rows]
    written = ("status", "holder", "version", "attempts", "started", "heartbeat", "updated")
    forget(at, mapping, (one.key_values for one in found), written)
    return found


def claim_directly(
    dialect: Dialect,
    mapping: TableMapping,
    n: int,
    where: Conditions,
    who: LoopIdentity,
    columns: tuple[Name, ...] | None,
) -> Direct | None:
    """A claim for SQLite's driver, ordered by key; None if the statement needs SQLAlchemy to run."""
    claim = prepared_claim(mapping, dialect, where, None, columns, None)
    if not claim.prepared.is_whole:
        return None
    token = who.token(mapping.column("holder"))

    def read(cursor: DBAPICursor) -> list[Held]:
        found = [claim.reader.held(claim.converted(row), token) for row in cursor.fetchall()]
        try:
            return sorted(found, key=attrgetter("key"))
        except TypeError:
            return found

    return Direct(claim.prepared.text, claim.prepared.given(claim.values(n, token)), read)


class ClaimStatement:
    """The statement of a claim where the database returns rows. The limit and the token are parameters."""

    def __init__(
        self,
        mapping: TableMapping,
        dialect: Dialect,
        where: Conditions,
        order_by: tuple[ColumnElement[Any], ...] | None,
        columns: tuple[Name, ...] | None,
        at_time: datetime | None,
    ) -> None:
        self._dialect = dialect
        self._has_token = "holder" in mapping.columns
        limit = sa.bindparam("hf_limit", type_=sa.Integer())
        self.choice = Choice("queued", claimable(dialect, mapping, where, at_time), limit, order_by)
        self.reader = row_reader(mapping, columns)
        setting = marks(mapping, dialect, sa.bindparam("hf_token"), at_time)
        self.update = moving(mapping, self.choice, setting, self.reader.columns, support_of(dialect))

    def values(self, n: int, token: Any) -> dict[str, Any]:
        return {"hf_limit": n, "hf_token": token} if self._has_token else {"hf_limit": n}

    @cached_property
    def prepared(self) -> Prepared:
        return Prepared(self.update, self._dialect)

    def converted(self, row: Sequence[Any]) -> list[Any]:
        """A row from the driver, with its values converted by the columns' types."""
        found = list(row)
        for at, process in self._processors:
            found[at] = process(found[at])
        return found

    @cached_property
    def _processors(self) -> list[tuple[int, Callable[[Any], Any]]]:
        kinds = [column.type for column in cast(Any, self.update).exported_columns]
        found = (kind.dialect_impl(self._dialect).result_processor(self._dialect, None) for kind in kinds)
        return [(at, process) for at, process in enumerate(found) if process is not None]


#: The claim statements of loops are the same each time.
prepared_claim = lru_cache(maxsize=500)(ClaimStatement)


def marks(mapping: TableMapping, dialect: Dialect, token: Any, at_time: datetime | None = None) -> dict[str, Any]:
    """The values that a claim writes."""
    found: dict[str, Any] = {mapping.columns["status"].name: mapping.words["processing"]}
    for role, column in mapping.columns.items():
        kind = time_type(column)
        if role == "holder":
            found[column.name] = token
        elif role in ("version", "attempts"):
            found[column.name] = one_more(mapping, role)
        elif role in ("started", "heartbeat", "updated") and kind is not None:
            found[column.name] = the_time(dialect, kind, at=at_time)
    return found


def queued_keys(at: Open, mapping: TableMapping, n: int, where: Where, order_by: OrderBy = None) -> list[Key]:
    """The keys of rows that could be claimed, read without locks."""
    connection = connection_of(at, mapping)
    conditions = claimable(connection.dialect, mapping, conditions_of(where))
    choice = Choice("queued", conditions, n, order_of(mapping, order_by))
    return [tuple(row) for row in connection.execute(choice.select(mapping))]


def claimable(
    dialect: Dialect, mapping: TableMapping, where: Sequence[ColumnElement[bool]], at_time: datetime | None = None
) -> list[ColumnElement[bool]]:
    """The conditions under which a queued row may be claimed now."""
    return [*is_due(mapping, dialect, at_time), *has_attempts(mapping), *where]


def is_due(
    mapping: TableMapping, dialect: Dialect, at_time: datetime | None = None, ahead: float = 0.0
) -> list[ColumnElement[bool]]:
    column = mapping.column("next_attempt")
    if column is None or (kind := time_type(column)) is None:
        return []
    return [sa.or_(column.is_(None), sa.type_coerce(column, kind) <= the_time(dialect, kind, at=at_time, ahead=ahead))]


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


class Waiting(NamedTuple):
    """The backlog: how many rows could be claimed now, and how long the oldest has been waiting."""

    rows: int
    #: Seconds since the oldest became due, was created, or was last updated; None without such a column.
    oldest_seconds: float | None


def first_time(mapping: TableMapping, dialect: Dialect, *roles: str) -> ColumnElement[Any] | None:
    """The first of these times that a row has; None if the table has none of the columns."""
    times = [comparable(dialect, mapping.columns[role]) for role in roles if role in mapping.columns]
    return sa.func.coalesce(*times) if len(times) > 1 else times[0] if times else None


@primitive
def waiting(at: Open, mapping: TableMapping, *, where: Where = None, now: datetime | None = None) -> Waiting:
    """Count the rows that could be claimed now. Scans all of them: do not call it often."""
    connection = connection_of(at, mapping)
    dialect = connection.dialect
    since = first_time(mapping, dialect, "next_attempt", "created", "updated")
    oldest = sa.null() if since is None else sa.type_coerce(sa.func.min(since), aware(dialect))
    asked = sa.select(
        sa.func.count(), oldest, sa.type_coerce(the_time(dialect, aware(dialect), at=now), aware(dialect))
    )
    asked = asked.select_from(mapping.table).where(
        mapping.in_status("queued"), *claimable(dialect, mapping, conditions_of(where), now), *mapping.own_rows
    )
    count, first, moment = connection.execute(asked).one()
    return Waiting(count, None if first is None else max(0.0, (utc(moment) - utc(first)).total_seconds()))


class RowReader:
    """The columns that a claim returns after the key, and how a returned row is read."""

    def __init__(self, mapping: TableMapping, columns: Sequence[Name] | None) -> None:
        self._mapping = mapping
        shown = list(mapping.table.columns) if columns is None else [mapping.find(one) for one in columns]
        self._names = [mapping.attribute(column) for column in shown]
        start, end = len(mapping.key), len(mapping.key) + len(shown)
        self._key, self._values = slice(0, start), slice(start, end)
        facts = [role for role in ("version", "attempts", "started", "heartbeat") if role in mapping.columns]
        self._facts = {role: end + at for at, role in enumerate(facts)}
        self.columns: list[ColumnElement[Any]] = [
            *(mapping.bare.c[column.name].label(f"hf_row{at}") for at, column in enumerate(shown)),
            # Selected a second time in their plain types: a TypeDecorator may convert them to something that is no
            # number or time.
            *(
                sa.type_coerce(mapping.target(role), plain(mapping.columns[role].type)).label(f"hf_{role}")
                for role in facts
            ),
        ]

    def held(self, row: Sequence[Any], token: Any) -> Held:
        at, key = self._facts, tuple(row[self._key])
        started = row[at["started"]] if "started" in at else None
        beat = row[at["heartbeat"]] if "heartbeat" in at else None
        return Held(
            self._mapping,
            key if len(key) > 1 else key[0],
            row[at["attempts"]] if "attempts" in at else 1,
            token,
            row[at["version"]] if "version" in at else None,
            None if started is None else utc(started),
            None if beat is None else utc(beat),
            dict(zip(self._names, row[self._values], strict=True)),
        )


row_reader = lru_cache(maxsize=1000)(RowReader)
