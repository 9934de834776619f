"""Maintenance that any worker does for all: free leases of dead workers, promote due work, back-fill, finish actions.

These services run in the thread that commits, in its breaks, each in its own transactions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import TypeVar

from holdfast.engine import actions, backfill, changed_items, due_retries, fold_counts, prune, reap, stray_rows
from holdfast.engine.pause import end_pauses
from holdfast.engine.selection import Who
from holdfast.errors import StoreError
from holdfast.model.log_lines import logger
from holdfast.runtime.process_identity import is_alive
from holdfast.runtime.services import Service
from holdfast.store import Store, Transaction
from holdfast.worker.background.heartbeat import Heartbeat
from holdfast.worker.background.throughput import MinuteCounts
from holdfast.worker.settings import Settings

log = logger("holdfast.worker")

T = TypeVar("T")

#: How long a service waits for a database in trouble. Short, because it runs in the committer's thread; the committer
#: logs the error and retries.
PATIENCE_SECONDS = 0.5


class Upkeep(Service):
    """A service in the thread that commits: it uses that thread's store."""

    #: How often a service makes its passes if that is not up to the worker's settings. Its first pass comes at a random
    #: moment, so that workers started together do not make theirs together.
    INTERVAL_SECONDS: float

    def __init__(self, store: Store, interval_seconds: float | None = None) -> None:
        self._store = store
        self.name = type(self).__name__.lower()
        self._interval = interval_seconds or self.INTERVAL_SECONDS
        if interval_seconds is None:
            self._next_after(self._interval * random.random())

    def _next(self, *, at_once: bool = False) -> None:
        """The next pass is due after the interval, or at once if this one has left something to do."""
        self._next_after(0.0 if at_once else self._interval)

    def _next_after(self, seconds: float) -> None:
        self.due = time.monotonic() + seconds

    def _write(self, work: Callable[[Transaction], T], *, exclusive: bool = False) -> T:
        def sweep(tx: Transaction) -> T:
            tx.op = "sweep"
            return work(tx)

        return self._store.write(sweep, exclusive=exclusive, patience_seconds=PATIENCE_SECONDS)

    def _read(self, work: Callable[[Transaction], T]) -> T:
        return self._store.read(work, patience_seconds=PATIENCE_SECONDS)


class Reaper(Upkeep):
    """Declares workers dead whose process or heartbeat is gone, and frees their leases."""

    def __init__(self, store: Store, heartbeat: Heartbeat, counts: MinuteCounts) -> None:
        super().__init__(store, heartbeat.lease_seconds / 2)
        self._heartbeat = heartbeat
        self._counts = counts

    def one_pass(self) -> bool:
        # Jittered, so that workers started together do not sweep together.
        self._next_after(self._interval * random.uniform(0.7, 1.0))
        me = self._heartbeat.identity
        dead = self._write(lambda tx: reap.remove_ended(tx, me.host, me.id, is_alive))
        # Checked inside the transaction, after it has read the time: what delayed the transaction may have silenced
        # every worker.
        clock = self._store.driver.clock_name
        dead += self._write(lambda tx: reap.remove_silent(tx, clock) if self._heartbeat.may_judge else [])
        for _, name in dead:
            log.warning("worker %s is dead; its work is taken over", name)
        freed = 0
        while True:
            step, at, ended = self._write(lambda tx: (reap.reap(tx), tx.now, tx.ended))
            self._counts.add(at, ended)
            freed += step.released
            if step.released < reap.CHUNK:
                break
        if freed:
            log.warning("took over %d %s of dead workers", freed, "item" if freed == 1 else "items")
        return bool(freed)


class Promoter(Upkeep):
    """Makes work pending again when its retry is due."""

    def expect(self, delay_us: int) -> None:
        """A retry will be due after this delay."""
        self.due = min(self.due, time.monotonic() + delay_us / 1e6)

    def one_pass(self) -> bool:
        now, done = self._write(lambda tx: (tx.now, due_retries.promote(tx)))
        self._next(at_once=done.moved == due_retries.CHUNK)
        if done.next_due_at is not None:
            self.expect(max(0, done.next_due_at - now))
        return bool(done.moved)


class PauseEnder(Upkeep):
    """Ends pauses whose time is up."""

    def one_pass(self) -> bool:
        self._next()
        over = self._read(lambda tx: tx.run("pauses_to_end", now=tx.now))
        return bool(over and self._write(end_pauses, exclusive=True))


class Backfiller(Upkeep):
    """Starts stages that were added later, one chunk of items at a time."""

    def one_pass(self) -> bool:
        looked_at = bool(self._write(backfill.backfill))
        self._next(at_once=looked_at)
        return looked_at


class ActionFinisher(Upkeep):
    """Continues actions that their initiator has abandoned, one chunk at a time, so that other work continues in
    between.
    """

    def __init__(self, store: Store, poll_seconds: float, lease_seconds: float) -> None:
        super().__init__(store, poll_seconds)
        self._lease_us = round(lease_seconds * 1e6)
        self._mine: actions.Action | None = None

    def one_pass(self) -> bool:
        self._next()
        found = self._read(lambda tx: actions.idle(tx, tx.now - self._lease_us, self._mine))
        self._mine = None if found is None else self._go_on(*found)
        self._next(at_once=self._mine is not None and self._mine.is_open)
        return self._mine is not None

    def _go_on(self, number: int, touched_at: int) -> actions.Action | None:
        try:
            return self._write(lambda tx: actions.take_up(tx, number, touched_at))
        except StoreError:
            raise
        except Exception as error:
            # Otherwise every worker would try it again and again.
            said = f"it could not go on: {type(error).__name__}: {error}"
            log.exception("action %d is stopped: %s", number, said)
            self._write(lambda tx: actions.stop(tx, number, Who("holdfast", said), said))
            return None


class Auditor(Upkeep):
    """Frees what would never finish: leases in this worker's name that it does not hold, and work without an item."""

    def __init__(self, store: Store, heartbeat: Heartbeat, held: Container[int], stages: Iterable[int]) -> None:
        super().__init__(store, heartbeat.lease_seconds)
        self._next()
        self._stages = list(stages)
        self._heartbeat = heartbeat
        self._held = held

    def one_pass(self) -> bool:
        self._next()
        worker = self._heartbeat.identity.id
        unknown = [
            row[0] for row in self._read(lambda tx: tx.run("leases_of", worker=worker)) if row[0] not in self._held
        ]
        if unknown:
            log.error("%d leases in the name of this worker are unknown to it and are released", len(unknown))
            self._write(lambda tx: tx.run("disown", leases=unknown))
        if found := self._read(partial(stray_rows.find_in_queues, stages=self._stages)):
            self._write(lambda tx: stray_rows.take_from_queues(tx, found))
        return False


class Pruner(Upkeep):
    """Deletes events that are past their retention."""

    INTERVAL_SECONDS = 600.0

    def __init__(self, store: Store, keep_days: float) -> None:
        super().__init__(store)
        self._keep_us = round(keep_days * 24 * 3600 * 1e6)

    def one_pass(self) -> bool:
        done = self._write(lambda tx: prune.prune_events(tx, tx.now - self._keep_us))
        self._next(at_once=done == prune.CHUNK)
        return False


class Rechecker(Upkeep):
    """Maintains the list of items whose results may come from outdated inputs."""

    INTERVAL_SECONDS = 30.0
    _place = changed_items.WalkPlace()

    def one_pass(self) -> bool:
        more, self._place = self._write(lambda tx: changed_items.one_stretch(tx, self._place))
        self._next(at_once=more)
        return False


class CountFolder(Upkeep):
    """Adds up the counts of writers that are gone."""

    INTERVAL_SECONDS = 30.0

    def one_pass(self) -> bool:
        self._next(at_once=self._write(fold_counts.fold) == fold_counts.CHUNK)
        return False


def all_upkeep(
    store: Store,
    promoter: Promoter,
    heartbeat: Heartbeat,
    counts: MinuteCounts,
    held: Container[int],
    stages: Iterable[int],
    settings: Settings,
) -> list[Upkeep]:
    """All maintenance that a worker does for all."""
    return [
        Reaper(store, heartbeat, counts),
        promoter,
        Backfiller(store, settings.poll_seconds),
        PauseEnder(store, settings.poll_seconds),
        ActionFinisher(store, settings.poll_seconds, settings.lease_seconds),
        Auditor(store, heartbeat, held, stages),
        CountFolder(store),
        Rechecker(store),
        Pruner(store, settings.keep_events_days),
    ]
