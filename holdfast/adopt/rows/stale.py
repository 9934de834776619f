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
from sqlalchemy import ColumnElement

from holdfast.adopt.connections import Open, primitive
from holdfast.adopt.rows.database_differences import Choice, Rows, changing, show_pending
from holdfast.adopt.rows.finish import fitting_roles
from holdfast.adopt.rows.outcome import error_text
from holdfast.adopt.rows.sql import Key, Where, conditions_of, has_attempts, key_in
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
    rows = Rows(at, mapping, now)
    reason = f"attempt {{}} sent no heartbeat for {spoken(limit)}: its process died or lost its connection"
    show_pending(at)
    return _back(rows, Choice("processing", [rows.is_stale(limit), *conditions_of(where)], most), reason)


@primitive
def fail_spent(
    at: Open, mapping: TableMapping, *, where: Where = None, most: int = CHUNK, now: datetime | None = None
) -> Requeued:
    """Fail queued rows whose attempts are used up; no claim would ever take them."""
    if mapping.limit is None:
        return Requeued()
    show_pending(at)
    choice = Choice("queued", [sa.not_(*has_attempts(mapping)), *conditions_of(where)], most)
    return _back(Rows(at, mapping, now), choice, "all {} attempts are used up")


def fail_queued(at: Open, mapping: TableMapping, key: Key, error: BaseException) -> bool:
    """Fail a queued row that cannot be claimed, with the reason; False if it is no longer queued."""
    rows = Rows(at, mapping)
    setting = rows.changes("failed", fitting_roles(mapping, {"error": error_text(error)}))
    failing = changing(mapping, "queued", setting).where(key_in(mapping.bare_key, [key]))
    rows.forget([key], ["status", "error", "version", "updated"])
    return rows.connection.execute(failing).rowcount == 1


def _back(rows: Rows, choice: Choice, reason: str) -> Requeued:
    mapping = rows.mapping
    status = mapping.target("status").label("hf_status")
    moved = rows.move(choice, _changes(rows, reason), [status])
    found = {rows.key_of(row): _same(row._mapping["hf_status"], mapping.words["failed"]) for row in moved}
    rows.forget(found, ["status", "error", "holder", "version", "updated"])
    queued, failed = ([key if len(key) > 1 else key[0] for key in found if found[key] is end] for end in (False, True))
    return Requeued(tuple(queued), tuple(failed))


def _changes(rows: Rows, reason: str) -> dict[str, Any]:
    mapping = rows.mapping
    if mapping.limit is None:
        return rows.changes("queued", {"holder": None})
    status, error = mapping.columns["status"], mapping.column("error")
    count = sa.func.coalesce(mapping.target("attempts"), 0)
    spent = count >= (mapping.bare.c[mapping.limit.name] if isinstance(mapping.limit, sa.Column) else mapping.limit)
    new: ColumnElement[Any] = sa.case((spent, mapping.word("failed")), else_=mapping.word("queued"))
    if rows.dialect.name == "postgresql" and isinstance(plain(status.type), sa.Enum):
        # A CASE of two literals is a text, which PostgreSQL does not convert to an enum by itself.
        new = sa.cast(new, status.type)
    roles: dict[str, Any] = {"holder": None}
    if error is not None:
        before, _, after = reason.partition("{}")
        text = sa.literal(before) + sa.cast(count, sa.String(20)) + sa.literal(after)
        length = getattr(plain(error.type), "length", None)
        fitting = text if length is None else sa.func.substr(text, 1, length)
        roles["error"] = sa.case((spent, fitting), else_=mapping.target("error"))
    return rows.changes("queued", roles) | {status.name: new}


def _same(found: Any, word: Any) -> bool:
    """Whether a status read from the database is this word: an Enum's member, its name or its value."""
    return found == word or word in (getattr(found, "name", None), getattr(found, "value", None))
