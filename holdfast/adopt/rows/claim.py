"""Claim: moves queued rows to processing, each for exactly one claimer.

One guarded statement in one short transaction. It also counts the attempt, so that an attempt whose process dies counts.
A claim returns one `Held` per row. Concurrent claims get other rows, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, cast

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Dialect, Engine

from holdfast.adopt.connections import Open, primitive
from holdfast.adopt.rows.compiled_statements import DirectLine, Prepared
from holdfast.adopt.rows.database_differences import Choice, Rows, moving, show_pending
from holdfast.adopt.rows.sql import Key, TableSql, Where, conditions_of, key_in
from holdfast.adopt.table.held_row import Held
from holdfast.adopt.table.mapping import Name, TableMapping
from holdfast.adopt.table.times import aware, plain, utc
from holdfast.adopt.table.tokens import LoopIdentity, identity
from holdfast.errors import UsageError

#: A column's name (`-name`: largest first), an expression, or several.
OrderBy: TypeAlias = "Name | ColumnElement[Any] | Sequence[Name | ColumnElement[Any]] | None"
#: The roles that a claim writes.
WRITTEN = ("status", "holder", "version", "attempts", "started", "heartbeat", "updated")


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
    chosen = None if columns is None else tuple(columns)
    terms = ClaimTerms(mapping, tuple(conditions_of(where)), order_of(mapping, order_by), chosen)
    return claim_rows(at, terms, n, identity(holder), now)


def claim_rows(at: Open, terms: ClaimTerms, n: int, who: LoopIdentity, now: datetime | None = None) -> list[Held]:
    """Claim up to `n` rows on these terms."""
    show_pending(at)
    rows = Rows(at, terms.mapping, now)
    token = who.token(terms.mapping.column("holder"))
    if rows.support.returning and now is None:
        statement = claim_statement(terms, rows.dialect)
        changed = rows.connection.execute(statement.update, statement.values(n, token)).all()
        found = rows.sorted(statement.choice, changed)
    else:
        found = rows.move(terms.choice(rows, n), rows.marks(token), terms.reader.columns)
    held = [terms.reader.held(row, token) for row in found]
    rows.forget((one.key_values for one in held), WRITTEN)
    return held


def claim_unguarded(at: Open, terms: ClaimTerms, keys: Sequence[Key], who: LoopIdentity) -> tuple[list[Held], int]:
    """Claim these rows, which were seen queued, even if another process has claimed them in between. Also return how many of
    them were no longer queued.

    Used with `guarded=False` only: to rule out the guarded claim as the cause of a problem, and to count the double claims
    it would have prevented. Two processes with unguarded claims process some rows twice.
    """
    rows, mapping = Rows(at, terms.mapping), terms.mapping
    status, chosen = mapping.target("status"), key_in(mapping.bare_key, keys)
    # Lock first, then count: the rows that are no longer queued are those that a guard would have skipped.
    rows.connection.execute(mapping.bare.update().where(chosen).values({mapping.columns["status"].name: status}))
    still = sa.select(sa.func.count()).select_from(mapping.bare).where(chosen, status == mapping.word("queued"))
    queued = rows.connection.execute(still).scalar_one()
    token = who.token(mapping.column("holder"))
    rows.connection.execute(mapping.bare.update().where(chosen).values(rows.marks(token)))
    found = rows.read(keys, terms.reader.columns)
    return [terms.reader.held(row, token) for row in found], len(found) - queued


def claim_directly(line: DirectLine, engine: Engine, terms: ClaimTerms, n: int, who: LoopIdentity) -> list[Held] | None:
    """Claim on SQLite's driver, ordered by key; None if nothing was done, because it takes SQLAlchemy."""
    claim = claim_statement(terms, engine.dialect)
    token = who.token(terms.mapping.column("holder"))
    answer = line.transact(engine, claim.prepared, claim.values(n, token))
    if answer is None:
        return None
    found = [terms.reader.held(claim.converted(row), token) for row in answer.rows]
    try:
        return sorted(found, key=attrgetter("key"))
    except TypeError:
        return found


def queued_keys(at: Open, terms: ClaimTerms, n: int) -> list[Key]:
    """The keys of rows that could be claimed, read without locks."""
    rows = Rows(at, terms.mapping)
    return rows.keys(terms.choice(rows, n))


@dataclass(frozen=True)
class ClaimTerms:
    """Which rows to claim, in which order, and which of their columns to read."""

    mapping: TableMapping
    where: tuple[ColumnElement[bool], ...] = ()
    #: None orders by the key.
    order_by: tuple[ColumnElement[Any], ...] | None = None
    #: None reads all.
    columns: tuple[Name, ...] | None = None

    def but(self, conditions: Iterable[ColumnElement[bool]]) -> ClaimTerms:
        """The same, with more conditions."""
        return replace(self, where=(*self.where, *conditions))

    def choice(self, sql: TableSql, limit: Any) -> Choice:
        return Choice("queued", sql.claimable(self.where), limit, self.order_by)

    @property
    def reader(self) -> RowReader:
        return row_reader(self.mapping, self.columns)


class ClaimStatement:
    """The statement of a claim where the database returns rows. The limit and the token are parameters."""

    def __init__(self, terms: ClaimTerms, dialect: Dialect) -> None:
        sql = TableSql(terms.mapping, dialect)
        self._dialect = dialect
        self._has_token = "holder" in sql.mapping.columns
        self.choice = terms.choice(sql, sa.bindparam("hf_limit", type_=sa.Integer()))
        self.update = moving(sql, self.choice, sql.marks(sa.bindparam("hf_token")), terms.reader.columns)

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


#: Cached: the claim statements of loops are the same each time.
claim_statement = lru_cache(maxsize=500)(ClaimStatement)


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


@primitive
def waiting(at: Open, mapping: TableMapping, *, where: Where = None, now: datetime | None = None) -> Waiting:
    """Count the rows that could be claimed now. Scans all of them: do not call it often."""
    rows = Rows(at, mapping, now)
    since = rows.first_time("next_attempt", "created", "updated")
    oldest = sa.null() if since is None else sa.type_coerce(sa.func.min(since), aware(rows.dialect))
    asked = sa.select(sa.func.count(), oldest, rows.moment()).select_from(mapping.table)
    asked = asked.where(mapping.in_status("queued"), *rows.claimable(where), *mapping.own_rows)
    count, first, moment = rows.connection.execute(asked).one()
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
