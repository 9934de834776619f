"""Stale rows: processing rows without a recent sign of life are queued again.

A row's age is the time since its last heartbeat; without one, since it was started; without that, since it was updated. A
row without any of these times is left alone, because its age is unknown.

Each call is one guarded statement that checks status and age again as it changes the row. So it never undoes another
call, nor the heartbeat, finish or release of a live worker at the same moment: exactly one of them wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Dialect

from holdfast.adopt.connections import Open, connection_of, primitive
from holdfast.adopt.rows.claim import Where, conditions_of, first_time, has_attempts
from holdfast.adopt.rows.dialects import Choice, changing, key_in, key_of, move
from holdfast.adopt.rows.finish import error_text
from holdfast.adopt.rows.guarded_change import changes, fitting_roles
from holdfast.adopt.rows.sessions import forget, show_pending
from holdfast.adopt.table.mapping import TableMapping
from holdfast.adopt.table.times import aware, plain
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
    reason = f"attempt {{}} sent no heartbeat for {spoken(limit)}: its process died or lost its connection"
    return _back(at, connection, mapping, Choice("processing", [stale, *conditions_of(where)], most), reason, now)


@primitive
def fail_spent(
    at: Open, mapping: TableMapping, *, where: Where = None, most: int = CHUNK, now: datetime | None = None
) -> Requeued:
    """Fail queued rows whose attempts are used up; no claim would ever take them."""
    if mapping.limit is None:
        return Requeued()
    choice = Choice("queued", [sa.not_(*has_attempts(mapping)), *conditions_of(where)], most)
    return _back(at, connection_of(at, mapping), mapping, choice, "all {} attempts are used up", now)


def fail_queued(at: Open, mapping: TableMapping, key: tuple[Any, ...], error: BaseException) -> bool:
    """Fail a queued row that cannot be claimed, with the reason; False if it is no longer queued."""
    connection = connection_of(at, mapping)
    setting = changes(mapping, connection.dialect, "failed", fitting_roles(mapping, {"error": error_text(error)}))
    failing = changing(mapping, "queued", setting).where(key_in(mapping.bare_key, [key]))
    forget(at, mapping, [key], ["status", "error", "version", "updated"])
    return connection.execute(failing).rowcount == 1


def is_stale(
    mapping: TableMapping, dialect: Dialect, limit_seconds: float, at_time: datetime | None = None
) -> ColumnElement[bool]:
    """The condition for rows whose last sign of life is older than this."""
    return last_sign(mapping, dialect) < the_time(dialect, aware(dialect), at=at_time, ahead=-limit_seconds)


def last_sign(mapping: TableMapping, dialect: Dialect) -> ColumnElement[Any]:
    since = first_time(mapping, dialect, "heartbeat", "started", "updated")
    if since is None:
        raise UsageError(f"{mapping}: to know how old a row is, map a heartbeat, started or updated column")
    return sa.type_coerce(since, aware(dialect))


def _back(
    at: Open, connection: Connection, mapping: TableMapping, choice: Choice, reason: str, at_time: datetime | None
) -> Requeued:
    show_pending(at)
    status = mapping.target("status").label("hf_status")
    rows = move(connection, mapping, choice, _changes(mapping, connection.dialect, reason, at_time), [status])
    found = {key_of(mapping, row): _same(row._mapping["hf_status"], mapping.words["failed"]) for row in rows}
    forget(at, mapping, found, ["status", "error", "holder", "version", "updated"])
    queued, failed = ([key if len(key) > 1 else key[0] for key in found if found[key] is end] for end in (False, True))
    return Requeued(tuple(queued), tuple(failed))


def _changes(mapping: TableMapping, dialect: Dialect, reason: str, at_time: datetime | None) -> dict[str, Any]:
    if mapping.limit is None:
        return changes(mapping, dialect, "queued", {"holder": None}, at_time)
    status, error = mapping.columns["status"], mapping.column("error")
    count = sa.func.coalesce(mapping.target("attempts"), 0)
    spent = count >= (mapping.bare.c[mapping.limit.name] if isinstance(mapping.limit, sa.Column) else mapping.limit)
    new: ColumnElement[Any] = sa.case((spent, mapping.word("failed")), else_=mapping.word("queued"))
    if dialect.name == "postgresql" and isinstance(plain(status.type), sa.Enum):
        # A CASE of two literals is a text, which PostgreSQL does not convert to an enum by itself.
        new = sa.cast(new, status.type)
    roles: dict[str, Any] = {"holder": None}
    if error is not None:
        before, _, after = reason.partition("{}")
        text = sa.literal(before) + sa.cast(count, sa.String(20)) + sa.literal(after)
        length = getattr(plain(error.type), "length", None)
        fitting = text if length is None else sa.func.substr(text, 1, length)
        roles["error"] = sa.case((spent, fitting), else_=mapping.target("error"))
    return changes(mapping, dialect, "queued", roles, at_time) | {status.name: new}


def _same(found: Any, word: Any) -> bool:
    """Whether a status read from the database is this word: an Enum's member, its name or its value."""
    return found == word or word in (getattr(found, "name", None), getattr(found, "value", None))
