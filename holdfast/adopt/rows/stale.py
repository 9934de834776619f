"""Stale rows: processing rows without a recent sign of life are queued again.

A row's age is the time since its last heartbeat; without one, since it was started; without that, since it was updated. A
row without any of these times is left alone, because its age is unknown.

Each statement is guarded: it checks status and age again as it changes the row. So it never undoes another
call, nor the heartbeat, finish or release of a live worker at the same moment: exactly one of them wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from holdfast.adopt.connections import Open, primitive
from holdfast.adopt.rows.database_differences import Choice, Rows, changing, show_pending
from holdfast.adopt.rows.finish import fitting_roles
from holdfast.adopt.rows.outcome import error_text
from holdfast.adopt.rows.sql import Key, Roles, Where, conditions_of, has_attempts, key_in
from holdfast.adopt.table.mapping import TableMapping
from holdfast.adopt.table.times import plain
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
    rows, failed = Rows(at, mapping, now), ()
    stale = [rows.is_stale(limit), *conditions_of(where)]
    show_pending(at)
    if mapping.limit is not None:
        [has_left] = has_attempts(mapping)
        reason = f"attempt {{}} sent no heartbeat for {spoken(limit)}: its process died or lost its connection"
        failed = _fail(rows, Choice("processing", [*stale, sa.not_(has_left)], most), reason)
        stale.append(sa.func.coalesce(has_left, sa.true()))  # a row without a limit is never spent
    return Requeued(_move(rows, Choice("processing", stale, most - len(failed)), "queued", {}), failed)


@primitive
def fail_spent(
    at: Open, mapping: TableMapping, *, where: Where = None, most: int = CHUNK, now: datetime | None = None
) -> Requeued:
    """Fail queued rows whose attempts are used up; no claim would ever take them."""
    if mapping.limit is None:
        return Requeued()
    show_pending(at)
    choice = Choice("queued", [sa.not_(*has_attempts(mapping)), *conditions_of(where)], most)
    return Requeued(failed=_fail(Rows(at, mapping, now), choice, "all {} attempts are used up"))


def fail_queued(at: Open, mapping: TableMapping, key: Key, error: BaseException) -> bool:
    """Fail a queued row that cannot be claimed, with the reason; False if it is no longer queued."""
    rows = Rows(at, mapping)
    setting = rows.changes("failed", fitting_roles(mapping, {"error": error_text(error)}))
    failing = changing(mapping, "queued", setting).where(key_in(mapping.bare_key, [key]))
    rows.forget([key], ["status", "error", "version", "updated"])
    return rows.connection.execute(failing).rowcount == 1


def _fail(rows: Rows, choice: Choice, reason: str) -> tuple[Any, ...]:
    """Fail the chosen rows; each error has the number of the row's attempts in it."""
    error = rows.mapping.column("error")
    if error is None:
        return _move(rows, choice, "failed", {})
    count = sa.func.coalesce(rows.mapping.target("attempts"), 0)
    before, _, after = reason.partition("{}")
    text = sa.literal(before) + sa.cast(count, sa.String(20)) + sa.literal(after)
    length = getattr(plain(error.type), "length", None)
    return _move(rows, choice, "failed", {"error": text if length is None else sa.func.substr(text, 1, length)})


def _move(rows: Rows, choice: Choice, status: str, roles: Roles) -> tuple[Any, ...]:
    """Move the chosen rows to this status, held by nobody; return their keys."""
    keys = [rows.key_of(row) for row in rows.move(choice, rows.changes(status, {"holder": None, **roles}))]
    rows.forget(keys, ["status", "error", "holder", "version", "updated"])
    return tuple(key if len(key) > 1 else key[0] for key in keys)
