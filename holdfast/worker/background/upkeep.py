"""Maintenance that any worker does for all: free leases of dead workers, promote due work, back-fill, finish actions.

Each service makes one pass at a time, in its own transactions, and says when the next is due. None needs a leader: any
number of workers may run the same service at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from holdfast.engine import actions, backfill, changed_items, fold_counts, promote, prune, reap, strays
from holdfast.engine.pause import end_pauses
from holdfast.engine.selection import Who
from holdfast.errors import StoreError
from holdfast.model.logs import logger
from holdfast.runtime.process_identity import is_alive
from holdfast.store import Store
from holdfast.worker.background.heartbeat import Heartbeat
from holdfast.worker.commit.in_hand import InHand

log = logger("holdfast.worker")

ClockWatch = Callable[[], float]

#: How long a service waits for a database in trouble. Short, because it runs in the committer's thread; the committer
#: logs the error and retries.
PATIENCE_SECONDS = 0.5


class Service(Protocol):
    #: When the next pass is due, on the monotonic clock.
    due: float

    def one_pass(self) -> bool:
        """Make one pass; True if there may be something to claim now."""
        ...


class Services:
    """Runs all services in the thread that commits. The first pass comes after the worker has claimed the work that was
    waiting when it started, or found none, and at the latest after one poll interval.
    """

    def __init__(self, services: Sequence[Service], poll_seconds: float) -> None:
        self._services = services
        self._not_before = time.monotonic() + poll_seconds

    def begin(self) -> None:
        """Start now, because there is nothing to claim."""
        self._not_before = 0.0

    @property
    def due(self) -> float:
        """When the next pass is due."""
        return max(self._not_before, min([service.due for service in self._services]))

    def run(self, is_called: Callable[[], bool]) -> bool:
        """Run the services that are due, the longest overdue first; only one of them if the committer has work. True if
        there may be something to claim.
        """
        now = time.monotonic()
        while self.due <= now:
            if min(self._services, key=lambda service: service.due).one_pass():
                return True
            if is_called():
                break
        return False


class Reaper:
    """Declares workers dead whose process or heartbeat is gone, and frees their leases."""

    def __init__(
        self, store: Store, pulse: Heartbeat, host: str, lease_seconds: float, clock: ClockWatch = time.monotonic
    ) -> None:
        self._store = store
        self._heartbeat = pulse
        self._host = host
        self._interval = lease_seconds / 2
        self._clock = clock
        self.due = 0.0

    def one_pass(self) -> bool:
        # Jittered, so that workers started together do not sweep together.
        self.due = self._clock() + self._interval * random.uniform(0.7, 1.0)
        me = self._heartbeat.identity.id
        buried = self._store.write(
            lambda tx: reap.bury_gone(tx, self._host, me, is_alive), patience_seconds=PATIENCE_SECONDS
        )
        # Checked inside the transaction, after it has read the time: what delayed the transaction may have silenced
        # every worker.
        clock = self._store.driver.clock_name
        buried += self._store.write(
            lambda tx: reap.bury_silent(tx, clock) if self._heartbeat.may_judge else [],
            patience_seconds=PATIENCE_SECONDS,
        )
        for _, name in buried:
            log.warning("worker %s is dead; its work is taken over", name)
        freed = 0
        while True:
            step = self._store.write(reap.reap, patience_seconds=PATIENCE_SECONDS)
            freed += step.released
            if step.released < reap.CHUNK:
                break
        if freed:
            log.warning("took over %d %s of dead workers", freed, "item" if freed == 1 else "items")
        return bool(freed)


class Promoter:
    """Makes work pending again when its retry is due."""

    def __init__(self, store: Store, poll_seconds: float, clock: ClockWatch = time.monotonic) -> None:
        self._store = store
        self._poll = poll_seconds
        self._clock = clock
        self.due = 0.0

    def expect(self, delay_us: int) -> None:
        """A retry will be due after this delay."""
        self.due = min(self.due, self._clock() + delay_us / 1e6)

    def one_pass(self) -> bool:
        now, done = self._store.write(lambda tx: (tx.now, promote.promote(tx)), patience_seconds=PATIENCE_SECONDS)
        if done.moved == promote.CHUNK:
            self.due = self._clock()
        elif done.next_due_at is None:
            self.due = self._clock() + self._poll
        else:
            self.due = self._clock() + min(self._poll, max(0.0, (done.next_due_at - now) / 1e6))
        return bool(done.moved)


class Gatekeeper:
    """Ends pauses whose time is up."""

    def __init__(self, store: Store, poll_seconds: float, clock: ClockWatch = time.monotonic) -> None:
        self._store = store
        self._poll = poll_seconds
        self._clock = clock
        self.due = 0.0

    def one_pass(self) -> bool:
        self.due = self._clock() + self._poll
        over = self._store.read(lambda tx: tx.run("pauses_to_end", now=tx.now), patience_seconds=PATIENCE_SECONDS)
        return bool(over and self._store.write(end_pauses, exclusive=True, patience_seconds=PATIENCE_SECONDS))


class Backfiller:
    """Starts stages that were added later, one chunk of items at a time."""

    def __init__(self, store: Store, poll_seconds: float, clock: ClockWatch = time.monotonic) -> None:
        self._store = store
        self._poll = poll_seconds
        self._clock = clock
        self.due = 0.0

    def one_pass(self) -> bool:
        looked_at = self._store.write(backfill.backfill, patience_seconds=PATIENCE_SECONDS)
        self.due = self._clock() + (0.0 if looked_at else self._poll)
        return bool(looked_at)


class Finisher:
    """Continues actions that their initiator has abandoned, one chunk at a time, so that other work continues in
    between.
    """

    def __init__(
        self, store: Store, poll_seconds: float, lease_seconds: float, clock: ClockWatch = time.monotonic
    ) -> None:
        self._store = store
        self._poll = poll_seconds
        self._lease_us = round(lease_seconds * 1e6)
        self._clock = clock
        self._mine: actions.Action | None = None
        self.due = 0.0

    def one_pass(self) -> bool:
        self.due = self._clock() + self._poll
        found = self._store.read(
            lambda tx: actions.idle(tx, tx.now - self._lease_us, self._mine), patience_seconds=PATIENCE_SECONDS
        )
        self._mine = None if found is None else self._go_on(*found)
        if self._mine is not None and self._mine.is_open:
            self.due = self._clock()
        return self._mine is not None

    def _go_on(self, number: int, touched_at: int) -> actions.Action | None:
        try:
            return self._store.write(
                lambda tx: actions.take_up(tx, number, touched_at), patience_seconds=PATIENCE_SECONDS
            )
        except StoreError:
            raise
        except Exception as error:
            # Otherwise every worker would try it again and again.
            said = f"it could not go on: {type(error).__name__}: {error}"
            log.exception("action %d is stopped: %s", number, said)
            self._store.write(
                lambda tx: actions.stop(tx, number, Who("holdfast", said), said), patience_seconds=PATIENCE_SECONDS
            )
            return None


class Auditor:
    """Frees what would never finish: leases in this worker's name that it does not hold, and work without an item."""

    def __init__(
        self,
        store: Store,
        pulse: Heartbeat,
        hand: InHand,
        stages: Sequence[int],
        lease_seconds: float,
        clock: ClockWatch = time.monotonic,
    ) -> None:
        self._store = store
        self._stages = list(stages)
        self._heartbeat = pulse
        self._hand = hand
        self._interval = lease_seconds
        self._clock = clock
        self.due = clock() + lease_seconds

    def one_pass(self) -> bool:
        self.due = self._clock() + self._interval
        worker = self._heartbeat.identity.id
        mine = self._store.read(lambda tx: tx.run("leases_of", worker=worker), patience_seconds=PATIENCE_SECONDS)
        unknown = [row[0] for row in mine if row[0] not in self._hand]
        if unknown:
            log.error("%d leases were held but not known; they are let go", len(unknown))
            self._store.write(lambda tx: tx.run("disown", leases=unknown), patience_seconds=PATIENCE_SECONDS)
        look = partial(strays.find_in_queues, stages=self._stages)
        if found := self._store.read(look, patience_seconds=PATIENCE_SECONDS):
            self._store.write(lambda tx: strays.take_from_queues(tx, found), patience_seconds=PATIENCE_SECONDS)
        return False


class Pruner:
    """Deletes events that are past their retention."""

    INTERVAL_SECONDS = 600.0

    def __init__(self, store: Store, keep_days: float, clock: ClockWatch = time.monotonic) -> None:
        self._store = store
        self._keep_us = round(keep_days * 24 * 3600 * 1e6)
        self._clock = clock
        self.due = clock() + self.INTERVAL_SECONDS * random.random()

    def one_pass(self) -> bool:
        done = self._store.write(
            lambda tx: prune.prune_events(tx, tx.now - self._keep_us), patience_seconds=PATIENCE_SECONDS
        )
        self.due = self._clock() + (0.0 if done == prune.CHUNK else self.INTERVAL_SECONDS)
        return False


class Rechecker:
    """Maintains the list of items whose results may come from outdated inputs."""

    INTERVAL_SECONDS = 30.0

    def __init__(self, store: Store, clock: ClockWatch = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._place = changed_items.WalkPlace()
        self.due = clock() + self.INTERVAL_SECONDS * random.random()

    def one_pass(self) -> bool:
        more, self._place = self._store.write(
            lambda tx: changed_items.one_stretch(tx, self._place), patience_seconds=PATIENCE_SECONDS
        )
        self.due = self._clock() + (0.0 if more else self.INTERVAL_SECONDS)
        return False


class Folder:
    """Adds up the counts of writers that are gone."""

    INTERVAL_SECONDS = 30.0

    def __init__(self, store: Store, clock: ClockWatch = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self.due = clock() + self.INTERVAL_SECONDS * random.random()

    def one_pass(self) -> bool:
        folded = self._store.write(fold_counts.fold, patience_seconds=PATIENCE_SECONDS)
        self.due = self._clock() + (0.0 if folded == fold_counts.CHUNK else self.INTERVAL_SECONDS)
        return False
