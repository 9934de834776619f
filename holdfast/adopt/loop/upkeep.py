"""The upkeep of a loop between claims. Each piece is independent of the others.

    recover      queue stale rows again, one by one if the database refuses a batch of them
    find_alone   check for rows on their last attempt, which must run alone
    report       count the waiting rows, and how long the oldest has waited

Transient database errors are retried until the loop is stopped.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from holdfast.adopt.connections import Open
from holdfast.adopt.loop.batch_or_alone import ALONE
from holdfast.adopt.loop.state import LoopState
from holdfast.adopt.rows.claim import queued_keys, waiting
from holdfast.adopt.rows.database_differences import Choice, Rows
from holdfast.adopt.rows.sql import Key, has_attempts, has_last_attempts, key_in
from holdfast.adopt.rows.stale import CHUNK, Requeued, fail_spent, requeue_stale
from holdfast.adopt.sqlalchemy_errors import kind_of, passes
from holdfast.model.log_lines import logger
from holdfast.store.database_errors import ErrorKind

log = logger("holdfast.adopt")

T = TypeVar("T")

#: The longest interval between recoveries of stale rows.
LONGEST_SECONDS = 30.0
#: How often to check for rows on their last attempt, which wait until a busy loop holds no other rows.
ALONE_SECONDS = 5.0


def recovering(loop: LoopState) -> int:
    """Queue stale rows again, and fail rows that have no attempts left. Returns how many stale rows were recovered."""
    mapping, limit, exhausted = loop.mapping, loop.stale_seconds, loop.counters.exhausted
    count = 0
    if limit is not None:
        count = _queue_again(loop, partial(requeue_stale, mapping=mapping, older_than=limit))
    spent = _queue_again(loop, partial(fail_spent, mapping=mapping))
    if count or spent:
        loop.counters.add(recovered=count)
        spent = loop.counters.exhausted - exhausted
        log.warning("%s: queued %d stale rows again; %d have no attempts left", loop.name, count, spent)
    return count


#: `requeue_stale` or `fail_spent`, to be called with a place and with conditions.
Requeue = Callable[..., Any]


def _queue_again(loop: LoopState, requeue: Requeue) -> int:
    total = 0
    while True:
        try:
            found: Requeued = loop.begin(partial(requeue, where=[*loop.where, *loop.not_aside()]))
        except sa.exc.DBAPIError as error:
            if kind_of(error) is ErrorKind.CONFLICT:
                return total
            if kind_of(error) is not ErrorKind.REFUSED:
                raise
            return total + _queue_again_one_by_one(loop, requeue)
        loop.counters.add(exhausted=len(found.failed))
        total += len(found)
        if len(found) < CHUNK:
            return total


def _queue_again_one_by_one(loop: LoopState, requeue: Requeue) -> int:
    """Recover rows one by one: the database refused a row of a batch, and does not say which."""
    mapping = loop.mapping

    def candidates(place: Open) -> list[Key]:
        rows, more = Rows(place, mapping), [*loop.where, *loop.not_aside()]
        choices = []
        if mapping.limit is not None:
            choices.append(Choice("queued", [sa.not_(*has_attempts(mapping)), *more], CHUNK))
        if loop.stale_seconds is not None:
            choices.append(Choice("processing", [rows.is_stale(loop.stale_seconds), *more], CHUNK))
        return [key for one in choices for key in rows.keys(one)]

    count = 0
    for key in loop.begin(candidates):
        try:
            found: Requeued = loop.begin(partial(requeue, where=key_in(mapping.key, [key])))
        except sa.exc.DBAPIError as error:
            if kind_of(error) not in (ErrorKind.REFUSED, ErrorKind.CONFLICT):
                raise
            loop.refused(key, error, "is stale and cannot be queued again")
            continue
        loop.counters.add(exhausted=len(found.failed))
        count += len(found)
    return count


def finding_alone(loop: LoopState) -> bool:
    """Whether rows are waiting for their last attempt."""
    if not has_last_attempts(loop.mapping):
        return False
    terms = loop.terms[ALONE].but(loop.not_aside())
    return bool(loop.begin(lambda place: queued_keys(place, terms, 1)))


def reporting(loop: LoopState) -> None:
    """Measure how far the loop lags behind, and log it with the other counters."""
    found = loop.begin(lambda place: waiting(place, loop.mapping, where=loop.where))
    loop.counters.waiting, loop.counters.lag_seconds = found
    log.info("%s: %s", loop.name, loop.counters)


def unless_stopping(loop: LoopState, work: Callable[..., T], *arguments: Any) -> T | None:
    """Do this; if the loop is stopping, a transient database error ends it and is only logged."""
    try:
        return work(loop, *arguments)
    except Exception as error:
        if not (loop.stopping and passes(error)):
            raise
        log.warning("%s: stopping, and not waiting for the database: %s", loop.name, error)
        return None


#: The pieces of upkeep, by name.
PIECES: dict[str, Callable[[LoopState], Any]] = {
    "recover": recovering,
    "find_alone": finding_alone,
    "report": reporting,
}


class UpkeepTimes:
    """Schedules recovery, the check for rows that must run alone, and the report; jittered, so that loops spread out."""

    def __init__(self, loop: LoopState) -> None:
        every = min(LONGEST_SECONDS, (loop.stale_seconds or 2 * LONGEST_SECONDS) / 2)
        self._every = {"recover": every, "report": loop.report_seconds, "find_alone": ALONE_SECONDS}
        # Recover at once: the process before this one may have left stale rows.
        self._next = {name: time.monotonic() + length for name, length in self._every.items()} | {"recover": 0.0}

    def due(self) -> Iterator[str]:
        """The pieces that are due now."""
        for piece, at in list(self._next.items()):
            if time.monotonic() >= at:
                self._next[piece] = time.monotonic() + self._every[piece] * random.uniform(0.8, 1.2)
                yield piece

    def seconds_left(self) -> float:
        """Seconds until the next piece is due."""
        return max(0.001, min(self._next.values()) - time.monotonic())
