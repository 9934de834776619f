"""The upkeep of a loop between claims. Each piece is independent of the others.

    recover   queue stale rows again, one by one if the database refuses a batch of them
    suspect   check for rows on their last attempt, which must run alone
    look      count the waiting rows, and how long the oldest has waited

Transient database errors are retried until the loop is stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from holdfast.adopt.connections import Open, connection_of
from holdfast.adopt.database_errors import kind_of, passes
from holdfast.adopt.loop.steps import Steps, Transact, patiently
from holdfast.adopt.loop.what_to_claim import ALONE
from holdfast.adopt.rows.backlog import waiting
from holdfast.adopt.rows.claim import claimable, has_attempts, has_last_attempts
from holdfast.adopt.rows.dialects import Choice, key_in
from holdfast.adopt.rows.finish import error_text
from holdfast.adopt.rows.stale import CHUNK, Requeued, fail_spent, is_stale, requeue_stale
from holdfast.model.logs import logger
from holdfast.store.database_errors import ErrorKind

if TYPE_CHECKING:
    from holdfast.adopt.loop.loop import Loop

log = logger("holdfast.adopt")

T = TypeVar("T")


def recovering(loop: Loop) -> Steps[int]:
    """Queue stale rows again, and fail rows that have no attempts left. Returns how many stale rows were recovered."""
    mapping, limit, exhausted = loop.mapping, loop.stale_seconds, loop.counters.exhausted
    count = 0
    if limit is not None:
        count = yield from _bring_back(loop, lambda place, where: requeue_stale(place, mapping, limit, where=where))
    spent = yield from _bring_back(loop, lambda place, where: fail_spent(place, mapping, where=where))
    if count or spent:
        loop.counters.add(recovered=count)
        spent = loop.counters.exhausted - exhausted
        log.warning("%s: brought back %d stale rows; %d have no attempt left", loop.name, count, spent)
    return count


Back = Callable[[Open, Any], Requeued]


def _bring_back(loop: Loop, back: Back) -> Steps[int]:
    total = 0
    while True:
        try:
            step = Transact(lambda place: back(place, [*loop.where, *loop.not_aside()]))
            found: Requeued = yield from patiently(step, loop.may_wait_to_begin)
        except sa.exc.DBAPIError as error:
            if kind_of(error) is ErrorKind.CONFLICT:
                return total
            if kind_of(error) is not ErrorKind.REFUSED:
                raise
            return total + (yield from _bring_back_one_by_one(loop, back))
        loop.counters.add(exhausted=len(found.failed))
        total += len(found)
        if len(found) < CHUNK:
            return total


def _bring_back_one_by_one(loop: Loop, back: Back) -> Steps[int]:
    """Recover rows one by one: the database refused a row of a batch, and does not say which."""
    mapping = loop.mapping

    def candidates(place: Open) -> list[Any]:
        connection = connection_of(place, mapping)
        choices = [Choice("queued", [sa.not_(one) for one in has_attempts(mapping)], CHUNK)] if mapping.limit else []
        if loop.stale_seconds is not None:
            choices.append(Choice("processing", [is_stale(mapping, connection.dialect, loop.stale_seconds)], CHUNK))
        more = [*loop.where, *loop.not_aside()]
        return [tuple(row) for one in choices for row in connection.execute(one.select(mapping).where(*more))]

    count = 0
    for key in (yield from patiently(Transact(candidates), loop.may_wait_to_begin)):
        own = [key_in(mapping.key, [key])]
        try:
            found: Requeued = yield from patiently(Transact(partial(_at, back, own)), loop.may_wait_to_begin)
        except sa.exc.DBAPIError as error:
            if kind_of(error) not in (ErrorKind.REFUSED, ErrorKind.CONFLICT):
                raise
            loop.set_aside(key)
            loop.counters.add(refused=1)
            loop.counters.add_error(error_text(error))
            log.warning("%s: stale row %r cannot be brought back: %s", loop.name, key, error_text(error))
            continue
        loop.counters.add(exhausted=len(found.failed))
        count += len(found)
    return count


def _at(back: Back, where: Any, place: Open) -> Requeued:
    return back(place, where)


def suspecting(loop: Loop) -> Steps[bool]:
    """Whether rows are waiting for their last attempt."""
    mapping = loop.mapping

    def work(place: Open) -> bool:
        connection = connection_of(place, mapping)
        conditions = claimable(connection.dialect, mapping, [*loop.choices[ALONE], *loop.not_aside()])
        found = connection.execute(Choice("queued", conditions, 1).select(mapping))
        return found.first() is not None

    if not has_last_attempts(mapping):
        return False
    waits: bool = yield from patiently(Transact(work), loop.may_wait_to_begin)
    return waits


def looking(loop: Loop) -> Steps[None]:
    """Measure how far the loop lags behind, and log it with the other counters."""
    found = yield from patiently(
        Transact(lambda place: waiting(place, loop.mapping, where=loop.where)), loop.may_wait_to_begin
    )
    loop.counters.waiting, loop.counters.lag_seconds = found
    log.info("%s: %s", loop.name, loop.counters)


def unless_stopping(loop: Loop, steps: Steps[T]) -> Steps[T | None]:
    """Run the steps; if the loop is stopping, a transient database error ends them and is only logged."""
    try:
        return (yield from steps)
    except Exception as error:
        if not (loop.stopping and passes(error)):
            raise
        log.warning("%s: stopping, and not waiting for the database: %s", loop.name, error)
        return None


#: The pieces of upkeep, by name.
PIECES: dict[str, Callable[[Loop], Steps[Any]]] = {"recover": recovering, "suspect": suspecting, "look": looking}
