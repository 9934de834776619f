"""Stale rows: processing rows without a recent sign of life are queued again.

A row's age is the time since its last heartbeat; without one, since it was started; without that, since it was updated. A
row without any of these times is left alone, because its age is unknown.

Each call is one guarded statement that checks status and age again as it changes the row. So it never undoes another
call, nor the heartbeat, finish or release of a live worker at the same moment: exactly one of them wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Dialect

from holdfast.adopt.connections import Open, connection_of, primitive
from holdfast.adopt.rows.claim import Where, conditions_of, one_more, written
from holdfast.adopt.rows.dialects import Choice, bare, changing, key_in, key_of, move
from holdfast.adopt.rows.finish import error_text
from holdfast.adopt.rows.guarded_change import changes
from holdfast.adopt.rows.sessions import forget, show_pending
from holdfast.adopt.table.mapping import TableMapping
from holdfast.adopt.table.times import aware, comparable, plain, time_type
from holdfast.adopt.table.times import now as the_time
from holdfast.errors import UsageError
from holdfast.model.durations import Duration, seconds, spoken

#: Default number of rows per call.
CHUNK = 100


@dataclass(frozen=True, slots=True)
class Requeued:
    """The keys of rows that are queued again, and of rows that failed because they had no attempts left."""

    queued: tuple[Any, ...] = ()
    failed: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.queued) + len(self.failed)


@primitive
def requeue_stale(
    at: Open,
    mapping: TableMapping,
    older_than: Duration,
    *,
    where: Where = None,
    most: int = CHUNK,
    now: datetime | None = None,
) -> Requeued:
    """Queue processing rows again that have been silent for longer than this; the interrupted attempt counts.

    Rows that have used up their attempts become failed, with an error that says so. A row that is queued again keeps the
    error of an earlier attempt. Repeat the call while it returns `most` rows.
    """
    limit = seconds(older_than, what="older_than")
    connection = connection_of(at, mapping)
    stale = is_stale(mapping, connection.dialect, limit, now)
    said = f"nothing was heard of attempt {{}} for {spoken(limit)}: its process died, or was cut off"
    return _back(at, connection, mapping, Choice("processing", [stale, *conditions_of(where)], most), said, now)


@primitive
def fail_spent(
    at: Open, mapping: TableMapping, *, where: Where = None, most: int = CHUNK, now: datetime | None = None
) -> Requeued:
    """Fail queued rows whose attempts are used up; no claim would ever take them."""
    if mapping.limit is None:
        return Requeued()
    spent = sa.func.coalesce(mapping.columns["attempts"], 0) >= mapping.limit
    choice = Choice("queued", [spent, *conditions_of(where)], most)
    return _back(at, connection_of(at, mapping), mapping, choice, "all {} attempts are used up", now)


def fail_queued(at: Open, mapping: TableMapping, key: tuple[Any, ...], error: BaseException) -> bool:
    """Fail a queued row that cannot be claimed, with the reason; False if it is no longer queued."""
    connection = connection_of(at, mapping)
    setting = changes(mapping, connection.dialect, "failed", {"error": error_text(error)}, None)
    done = connection.execute(changing(mapping, "queued", setting).where(key_in(mapping, [key]))).rowcount == 1
    forget(at, mapping, [key], written(mapping, "status", "error", "version", "updated"))
    return done


def is_stale(
    mapping: TableMapping, dialect: Dialect, limit_seconds: float, at_time: datetime | None = None
) -> ColumnElement[bool]:
    """The condition for rows whose last sign of life is older than this."""
    last = last_sign(mapping, dialect)
    return last < the_time(dialect, aware(dialect), at=at_time, ahead=-limit_seconds)


def last_sign(mapping: TableMapping, dialect: Dialect) -> ColumnElement[Any]:
    times: Sequence[ColumnElement[Any]] = [
        comparable(dialect, mapping.columns[role])
        for role in ("heartbeat", "started", "updated")
        if role in mapping.columns
    ]
    if not times:
        raise UsageError(
            f"{mapping}: nothing tells how long a row has been processing; name a heartbeat, started or updated column"
        )
    return sa.type_coerce(sa.func.coalesce(*times) if len(times) > 1 else times[0], aware(dialect))


def _back(
    at: Open, connection: Connection, mapping: TableMapping, choice: Choice, said: str, at_time: datetime | None
) -> Requeued:
    show_pending(at)
    status = bare(mapping).c[mapping.columns["status"].name].label("hf_status")
    rows = move(connection, mapping, choice, _changes(mapping, connection.dialect, said, at_time), [status])
    changed = written(mapping, "status", "error", "holder", "version", "updated")
    keys = {key_of(mapping, row): row._mapping["hf_status"] for row in rows}
    forget(at, mapping, keys, changed)
    shown = {True: [], False: []}  # type: dict[bool, list[Any]]
    for key, found in keys.items():
        shown[_same(found, mapping.words["failed"])].append(key if len(key) > 1 else key[0])
    return Requeued(tuple(shown[False]), tuple(shown[True]))


def _changes(mapping: TableMapping, dialect: Dialect, said: str, at_time: datetime | None) -> dict[str, Any]:
    target = bare(mapping)
    found: dict[str, Any] = {}
    for role, column in mapping.columns.items():
        if role == "version":
            found[column.name] = one_more(mapping, role)
        elif role == "holder":
            found[column.name] = None
        elif role == "updated":
            kind = time_type(column)
            assert kind is not None
            found[column.name] = the_time(dialect, kind, at=at_time)
    status = mapping.columns["status"]
    if mapping.limit is None:
        return {**found, status.name: mapping.words["queued"]}
    count = target.c[mapping.columns["attempts"].name]
    limit: Any = target.c[mapping.limit.name] if isinstance(mapping.limit, sa.Column) else mapping.limit
    spent = sa.func.coalesce(count, 0) >= limit
    new: ColumnElement[Any] = sa.case((spent, mapping.word("failed")), else_=mapping.word("queued"))
    if dialect.name == "postgresql" and isinstance(plain(status.type), sa.Enum):
        # A CASE of two literals is a text, which PostgreSQL does not convert to an enum by itself.
        new = sa.cast(new, status.type)
    found[status.name] = new
    error = mapping.column("error")
    if error is not None:
        before, _, after = said.partition("{}")
        text = sa.literal(before) + sa.cast(sa.func.coalesce(count, 0), sa.String(20)) + sa.literal(after)
        found[error.name] = sa.case((spent, fitting_length(error, text)), else_=target.c[error.name])
    return found


def fitting_length(column: sa.Column[Any], text: ColumnElement[Any]) -> ColumnElement[Any]:
    kind = plain(column.type)
    length = kind.length if isinstance(kind, sa.String) else None
    return text if length is None else sa.func.substr(text, 1, length)


def _same(found: Any, word: Any) -> bool:
    """Whether a status read from the database is this word: an Enum's member, its name or its value."""
    return found == word or word in (getattr(found, "name", None), getattr(found, "value", None))
