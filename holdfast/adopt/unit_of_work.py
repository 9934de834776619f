"""`held`: a unit of work that holds rows of several tables and finishes all of them in one transaction.

    [item] = claim(engine, backlog, where=Backlog.id == 7) or [None]
    ...
    with held(engine, [item, task, checkpoint], retry="5m") as unit:
        text = write_scene(item.row)
        unit.effect(save_scene, text)

On success, one transaction completes the rows and runs the effects. On any exception, one transaction stores the error's
text and moves all rows to failed, or to queued with a time for the next attempt; the exception then propagates. While
the block runs, the unit sends the rows' heartbeats. If the process is killed, `requeue_stale` recovers its rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.util import greenlet_spawn

from holdfast.adopt.connections import Open, Place, is_async, makes_transactions, sync_engine_of
from holdfast.adopt.loop.heartbeats import Heartbeats
from holdfast.adopt.loop.sync_or_async_engine import sleep
from holdfast.adopt.loop.transact import Effect, patiently, transact
from holdfast.adopt.rows.finish import HeldRows, complete, finish, rows_of
from holdfast.adopt.rows.outcome import Retry, outcome_of, read_retry
from holdfast.adopt.table.held_row import Finished, Held
from holdfast.adopt.table.held_row import lost as lost_error
from holdfast.errors import LeaseLost, UsageError
from holdfast.model.durations import Duration, seconds
from holdfast.model.log_lines import logger

log = logger("holdfast.adopt")

BEAT_SECONDS = 10.0

T = TypeVar("T")


class _DoneBefore(Exception):
    """An earlier try was committed, effects included, and only the reply was lost."""


class Unit:
    """The held rows, and what to write when they are completed."""

    def __init__(self, at: Place, rows: HeldRows, retry: Retry, beat: Duration, patience: Duration) -> None:
        self.rows = tuple(rows_of(rows))
        if not self.rows:
            raise UsageError("held: no rows")
        if not makes_transactions(at):
            raise UsageError(
                f"held: give an Engine or a sessionmaker, not a {type(at).__name__}: "
                "the heartbeat and the outcome need transactions of their own"
            )
        self._at = at
        self._engine = sync_engine_of(at, self.rows[0].mapping)
        self._retry = read_retry(retry, "held")
        self._every = seconds(beat, what="held: beat")
        self._patience = seconds(patience, what="held: patience")
        if self._every <= 0:
            raise UsageError("held: beat must be longer than zero")
        self._effects: list[Effect] = []
        self._values: dict[int, dict[str, Any]] = {}
        self._lost: list[Held] = []
        self._has_tried = False
        self._beater: Heartbeats

    @property
    def lost(self) -> tuple[Held, ...]:
        """Rows that the heartbeat found to be no longer held."""
        return tuple(self._lost)

    def check(self) -> None:
        """Raise LeaseLost if a row is lost: the unit will save nothing."""
        if self._lost:
            raise lost_error(self._lost, "nothing was saved")

    def effect(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Call this in the transaction that completes the rows, with its Connection or Session as first argument."""
        self._effects.append(Effect(function, arguments, named))

    def set(self, row: Held, **values: Any) -> None:
        """Write these columns of the row when it is completed."""
        self._values.setdefault(id(row), {}).update(values)

    # With and async with ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Unit:
        if is_async(self._at):
            raise UsageError("held: the engine is async; write `async with`")
        return self._begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._end([self._beater.take(one) for one in self.rows], error)
        finally:
            self._beater.stop()

    async def __aenter__(self) -> Unit:
        if not is_async(self._at):
            raise UsageError("held: the engine is not async; write `with`")
        return self._begin()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await greenlet_spawn(self.__exit__, kind, error, trace)

    def _begin(self) -> Unit:
        self._beater = Heartbeats(self._engine, self._every, self._lost.append)
        for one in self.rows:
            self._beater.add(one)
        return self

    # How it ends ------------------------------------------------------------------------------------------------------

    def _end(self, rows: list[Held], error: BaseException | None) -> None:
        give_up_at = time.monotonic() + self._patience

        def patient(work: Callable[[Open], T], effects: Sequence[Effect] = ()) -> T:
            return patiently(
                lambda: transact(self._at, work, effects),
                lambda _: time.monotonic() < give_up_at,
                partial(sleep, self._engine),
            )

        try:
            if error is None:
                patient(lambda place: self._complete(place, rows), self._effects)
        except _DoneBefore:
            return
        except Exception as raised:
            self._fail(rows, raised, patient)
            raise
        if error is not None:
            self._fail(rows, error, patient)

    def _complete(self, place: Open, rows: list[Held]) -> None:
        plain = [now for first, now in zip(self.rows, rows, strict=True) if id(first) not in self._values]
        finished = [complete(place, plain, report=True)] if plain else []
        for first, now in zip(self.rows, rows, strict=True):
            if id(first) in self._values:
                finished.append(complete(place, now, values=self._values[id(first)], report=True))
        gone = [row for one in finished for row in one.lost]
        if gone:
            raise lost_error(gone, "nothing was saved")
        again = [row for one in finished for row in one.again]
        first_try, self._has_tried = not self._has_tried, True
        if again and first_try:
            raise UsageError(f"{again[0]}: completed within the block; `held` completes its rows itself, all or none")
        if again:
            raise _DoneBefore

    def _fail(self, rows: list[Held], error: BaseException, patient: Callable[..., Finished]) -> None:
        """Save the failure. Raises nothing, so that the original error propagates."""
        outcome = outcome_of(None, error, rows, self._retry)
        try:
            finished = patient(lambda place: finish(place, rows, outcome))
        except Exception as worse:
            log.error(
                "the failure of %d rows could not be saved; they stay processing until stale: %s", len(rows), worse
            )
            return
        for one in finished.lost:
            if not isinstance(error, LeaseLost):
                log.warning("%s: lost before its failure could be recorded", one)


def held(
    at: Place,
    rows: HeldRows,
    *,
    retry: Retry = None,
    beat: Duration = BEAT_SECONDS,
    patience: Duration = "30s",
) -> Unit:
    """Hold rows while the block runs: complete all of them, or none.

    `retry` says what happens to the rows when the block raises: None fails them; a duration or a Backoff queues them
    again while they have attempts left. `Permanent` always fails them. `RetryLater`, a KeyboardInterrupt or a cancelled
    task hands them back without counting the attempt. `beat` is the heartbeat interval. `patience` is how long to retry
    transient database errors at the end.
    """
    return Unit(at, rows, retry, beat, patience)
