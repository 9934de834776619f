"""The checklist: what a loop needs to run safely in several processes, and what is missing.

    for point in checklist(loop):
        print(point.name, point.missing or "in order")

It reads the loop's settings and mapping, and does not connect to the database: `mapping.check` compares the mapping with
the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.adopt.loop.state import LoopState, is_counted_by_the_model
from holdfast.adopt.rows.sql import Support, support_of
from holdfast.adopt.table.mapping import WORDS
from holdfast.model.durations import spoken

#: Without heartbeats, how long each row of a batch should have before it counts as stale.
ENOUGH_SECONDS = 60.0
_LOCKS = {
    Support(skip_locked=True, returning=True): "rows are claimed with FOR UPDATE SKIP LOCKED",
    Support(skip_locked=True, returning=False): "rows are claimed with FOR UPDATE SKIP LOCKED",
    Support(skip_locked=False, returning=True): "rows are claimed in one statement, one writer at a time",
    Support(skip_locked=False, returning=False): "rows are claimed one by one, each under a condition",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the list: the present state, and what is missing, each with its remedy. Empty if in order."""

    name: str
    how: str
    missing: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.missing


def checklist(loop: LoopState) -> list[Point]:
    """All seven points: locking, transitions, failure status, transactions, batch size, instances, logging."""
    points = {
        "locking": (_LOCKS[support_of(loop.engine.dialect)], _locking(loop)),
        "transitions": (_moves(loop), _transitions(loop)),
        "failure status": (_ends(loop), _failure(loop)),
        "transactions": (_boundaries(loop), _transactions(loop)),
        "batch size": (f"{loop.batch} rows per claim, {loop.concurrency} at a time", _batch(loop)),
        "instances": (f"{loop.max_instances or 'any number'} at a time", _instances(loop)),
        "logging": (f"as {loop.name!r}, counters every {spoken(loop.report_seconds)}", _logging(loop)),
    }
    return [Point(name, how, tuple(missing)) for name, (how, missing) in points.items()]


def _locking(loop: LoopState) -> Iterator[str]:
    if not loop.guarded:
        yield "guarded=False lets two processes take the same row: leave it out"
    if not loop.mapping.fence:
        yield "a late process can finish a row that another one holds by now: map a holder column"


def _word(loop: LoopState, word: str) -> str:
    stored = loop.mapping.words[word]
    return str(getattr(stored, "value", stored))


def _moves(loop: LoopState) -> str:
    queued, *others = (_word(loop, word) for word in WORDS)
    back = "" if loop.stale_seconds is None else f"; back to {queued} after {spoken(loop.stale_seconds)} of silence"
    return "{} → {} → {} or {}".format(queued, *others) + back


def _transitions(loop: LoopState) -> Iterator[str]:
    columns = loop.mapping.columns
    if loop.stale_seconds is None:
        has_times = {"heartbeat", "started", "updated"} & columns.keys()
        remedy = "leave out stale_after=None" if has_times else "map a heartbeat, started or updated column"
        yield f"rows of a process that died stay {_word(loop, 'processing')} forever: {remedy}"
    elif "heartbeat" not in columns:
        yield f"a handler that takes longer than {spoken(loop.stale_seconds)} is run twice: map a heartbeat column"


def _ends(loop: LoopState) -> str:
    column, limit = loop.mapping.column("error"), loop.mapping.limit
    when = "at the first error"
    if loop.retry is not None:
        when = "never: errors are retried" if limit is None else f"after {getattr(limit, 'name', limit)} attempts"
    return f"{_word(loop, 'failed')} {when}{'' if column is None else f', with the error in {column.name}'}"


def _failure(loop: LoopState) -> Iterator[str]:
    if "error" not in loop.mapping.columns:
        yield "why a row failed is only in the log: map an error column"
    if "attempts" not in loop.mapping.columns and (loop.retry is not None or loop.stale_seconds is not None):
        yield "a row that never works, or kills its process, is retried forever: map an attempts column"


def _boundaries(loop: LoopState) -> str:
    if getattr(loop.handler, "gets_session", False):
        return "claim, session and outcome each have one; the session commits first, and after a crash its handler runs again"
    return "the claim has one, and each row's outcome with its effects"


def _transactions(loop: LoopState) -> Iterator[str]:
    if getattr(loop.handler, "gets_session", False) and is_counted_by_the_model(loop.mapping):
        yield "a handler that writes its own row increments the version and loses the row: map a holder column"


def _batch(loop: LoopState) -> Iterator[str]:
    if loop.stale_seconds is None or "heartbeat" in loop.mapping.columns:
        return
    each = loop.stale_seconds / math.ceil(loop.batch / loop.concurrency)
    if each < ENOUGH_SECONDS:
        yield (
            f"the last row of a batch is stale unless each takes less than {spoken(each)}: take a smaller batch, a longer "
            "stale_after, or map a heartbeat column"
        )


def _instances(loop: LoopState) -> Iterator[str]:
    if loop.max_instances is None:
        return
    if "holder" not in loop.mapping.columns:
        yield "max_instances counts rows, because no column tells instances apart: map a holder column"
    if loop.stale_seconds is None:
        yield "the place of an instance that died is never free again: map a heartbeat column"


def _logging(loop: LoopState) -> Iterator[str]:
    if not {"created", "updated"} & loop.mapping.columns.keys():
        yield "how long rows wait is not known: map a created column"
