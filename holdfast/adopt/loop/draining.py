"""Draining: which open rows are left when a loop has nothing to claim, and which of them to wait for.

A drain waits for rows that others hold, if a time column shows when they become stale; for rows due within SOON_SECONDS;
and for rows that could be claimed but were locked, or had to wait for `max_instances`. It counts all others as left.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement

from holdfast.adopt.connections import Open
from holdfast.adopt.loop.counters import Left
from holdfast.adopt.loop.state import LoopState
from holdfast.adopt.rows.database_differences import Rows
from holdfast.adopt.rows.sql import has_attempts, key_in
from holdfast.adopt.table.times import aware, utc
from holdfast.model.log_lines import logger

log = logger("holdfast.adopt")

#: A drain waits for rows due within this: longer than the usual backoff, and than the usual cool-down.
SOON_SECONDS = 60.0
#: The shortest pause before the next claim.
SHORTEST_SECONDS = 0.01

NOTHING = Left()


@dataclass(frozen=True, slots=True)
class Rest:
    """The open rows of a table whose loop holds none itself."""

    #: Rows to wait for: claimable now, held by others, due soon.
    ready: int = 0
    held: int = 0
    soon: int = 0
    #: Seconds until the first of the `soon` rows is due.
    due_seconds: float | None = None
    left: Left = NOTHING

    @property
    def is_drained(self) -> bool:
        return not (self.ready or self.held or self.soon)

    def pause_seconds(self, poll_seconds: float) -> float:
        """How long to wait before the next claim."""
        return min(poll_seconds, max(SHORTEST_SECONDS, poll_seconds if self.due_seconds is None else self.due_seconds))

    def __str__(self) -> str:
        shown = {"that can be claimed": self.ready, "held by others": self.held, "due soon": self.soon}
        return ", ".join(f"{count} {what}" for what, count in shown.items() if count)


def resting(loop: LoopState, before: Rest | None) -> Rest:
    """Count what is left. Logs rows to wait for if the counts have changed since `before`."""
    found = loop.begin(lambda place: _count(place, loop))
    if not found.is_drained and (before is None or str(before) != str(found)):
        log.info("%s: draining, waiting for rows: %s", loop.name, found)
    return found


def _count(place: Open, loop: LoopState) -> Rest:
    rows = Rows(place, loop.mapping)
    aside = _count_aside(rows, loop)
    total, soon, later, first, now, processing, undated = rows.connection.execute(_open_rows(rows, loop)).one()
    undated = processing if loop.stale_seconds is None else undated
    ready, stuck = total - soon - later, 0
    if loop.max_instances is not None and undated:
        # Processing rows that never become stale may keep the instance limit reached for good.
        ready, stuck = 0, ready
    due = [] if first is None else [(utc(first) - utc(now)).total_seconds()]
    due += [] if aside.due_seconds is None else [aside.due_seconds]
    left = Left(aside.left.held + undated + stuck, aside.left.later + later, aside.left.refused)
    if loop.is_aside_full():
        # Claims keep trying rows that cannot be changed, and make no progress.
        ready, left = 0, Left(left.held, left.later, left.refused + ready)
    return Rest(ready, aside.held + processing - undated, aside.soon + soon, min(due, default=None), left)


def _count_aside(rows: Rows, loop: LoopState) -> Rest:
    """The rows that this process has set aside: retries in a table without a next_attempt column, and rows that the
    database refuses to change."""
    aside = loop.aside()
    if not aside:
        return Rest()
    mapping = loop.mapping
    is_queued = mapping.in_status("queued")
    asked = sa.select(*mapping.key, sa.case((is_queued, 1), else_=0))
    asked = asked.where(sa.or_(is_queued, mapping.in_status("processing")))
    held = refused = 0
    waits: list[float] = []
    for *key, queued in rows.connection.execute(asked.where(key_in(mapping.key, list(aside)), *loop.where)):
        until, is_refused = aside.get(tuple(key), (0.0, False))
        if is_refused:
            refused += 1
        elif queued:
            waits.append(max(0.0, until - time.monotonic()))
        else:
            held += 1
    soon = [one for one in waits if one <= SOON_SECONDS]
    known = loop.stale_seconds is not None
    left = Left(0 if known else held, len(waits) - len(soon), refused)
    return Rest(held=held if known else 0, soon=len(soon), due_seconds=min(soon, default=None), left=left)


def _open_rows(rows: Rows, loop: LoopState) -> sa.Select[Any]:
    """Counts of all other rows: in one statement, so that a row that changes its status meanwhile is not missed, and with
    one subquery per status, since each may have its own partial index."""
    mapping = loop.mapping
    more = [*loop.where, *loop.not_aside(), *mapping.own_rows]

    def of(status: str, *columns: ColumnElement[Any]) -> Any:
        named = [column.label(f"{status}{at}") for at, column in enumerate([sa.func.count(), *columns])]
        return (
            sa.select(*named)
            .select_from(mapping.table)
            .where(mapping.in_status(status), *more)
            .subquery(f"hf_{status}")
        )

    def counted(*conditions: ColumnElement[bool]) -> ColumnElement[Any]:
        return sa.func.count(sa.case((sa.and_(*conditions), 1)))

    waiting: list[ColumnElement[Any]] = [sa.literal(0), sa.literal(0), sa.null()]
    if (due_at := rows.first_time("next_attempt")) is not None:
        attempts = has_attempts(mapping)
        late = [sa.not_(one) for one in rows.is_due()]
        [by_then] = rows.is_due(SOON_SECONDS)
        first = sa.func.min(sa.case((sa.and_(*attempts, *late, by_then), due_at)))
        waiting = [
            counted(*attempts, *late, by_then),
            counted(*attempts, *late, sa.not_(by_then)),
            sa.type_coerce(first, aware(rows.dialect)),
        ]
    undated = [] if loop.stale_seconds is None else [counted(rows.last_sign().is_(None))]
    queued, processing = of("queued", *waiting), of("processing", *(undated or [sa.literal(0)]))
    return sa.select(*queued.c, rows.moment(), *processing.c).select_from(queued.join(processing, sa.true()))
