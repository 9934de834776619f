"""Group commit: the one thread that talks to the database for all handlers.

Finished attempts queue up while a commit is under way and go out with the next one; the same transaction claims the
next work. Nothing waits on purpose: batches grow with load. An attempt is finished only when its commit is; until then
the results are kept and the write is tried again for as long as it takes.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from holdfast import points
from holdfast.engine.claim import Lease, Memo, claim
from holdfast.engine.complete import complete, must_be_alone
from holdfast.engine.fail import fail
from holdfast.engine.finish import Finished
from holdfast.engine.reads import stages_with_work, unfinished
from holdfast.engine.release import release
from holdfast.engine.remember import MemoWrite, remember
from holdfast.errors import LeaseLost, StoreBroken, StoreConflict, StoreError, StoreUnavailable
from holdfast.model.faults import describe
from holdfast.model.states import State
from holdfast.store import Store, Transaction
from holdfast.worker.call import Call
from holdfast.worker.hand import Hand
from holdfast.worker.isolated import Offer
from holdfast.worker.pulse import Pulse
from holdfast.worker.services import Promoter, Service

log = logging.getLogger("holdfast.worker")

T = TypeVar("T")

#: Attempts that go into one transaction at most.
MOST_SETTLED = 1000
COMPLAIN_SECONDS = 60.0


class Cycle(NamedTuple):
    """What one transaction did."""

    moved: list[Lease]
    claimed: dict[int, list[Lease]]
    #: Stages that had less than was asked for.
    dry: list[int]


class Committer:
    """Settles finished attempts, claims, and runs the services in between."""

    def __init__(
        self,
        store: Store,
        pulse: Pulse,
        offer: Offer,
        hand: Hand,
        services: Sequence[Service],
        promoter: Promoter,
        start: Callable[[list[Call]], None],
        poll_seconds: float,
        pipelines: Sequence[str],
    ) -> None:
        self._store = store
        self._pulse = pulse
        self._offer = offer
        self._hand = hand
        self._services = services
        self._promoter = promoter
        self._start_calls = start
        self._poll = poll_seconds
        self._inbox: deque[tuple[Call, list[Finished]]] = deque()
        self._errands: deque[tuple[MemoWrite, Future[None]]] = deque()
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-committer", daemon=True)
        self._turns = deque(
            [number for number in reversed(list(offer)) if offer[number][0] == pipeline] for pipeline in pipelines
        )
        #: Stages in which the last claim found less than it asked for.
        self._dry: set[int] = set()
        self._look_at = 0.0
        self._complained_at = -COMPLAIN_SECONDS
        self._news = True
        self._claiming = True
        self._stopped = False
        self.idle = False
        #: Set once nothing is left to do in the pipelines, here or anywhere.
        self.drained = threading.Event()
        #: Set when nothing is in hand while no more is claimed, and when the thread ends.
        self.empty = threading.Event()
        self.broken: Exception | None = None
        self.done = dict.fromkeys(State, 0)

    # What other threads call --------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def report(self, call: Call, finished: list[Finished]) -> None:
        """Take over what a call came to."""
        self._inbox.append((call, finished))
        if not self._bell.is_set():
            self._bell.set()

    def remember(self, memo: MemoWrite) -> Future[None]:
        """Write a memo with the next commit; the future tells when it is safe, or that the lease was lost."""
        future: Future[None] = Future()
        # Whoever waits may give up waiting; the memo is written all the same.
        future.set_running_or_notify_cancel()
        self._errands.append((memo, future))
        self._bell.set()
        return future

    def hand_back(self, calls: Sequence[Call]) -> None:
        """Release what these calls hold, unless they have just ended."""
        for call in calls:
            if call.end():
                self._inbox.append((call, [Finished(lease, State.PENDING) for lease in call.leases]))
        self._bell.set()

    def news(self) -> None:
        """There may be something to claim."""
        self._news = True
        self._bell.set()

    def stop_claiming(self) -> None:
        self._claiming = False
        self._bell.set()

    def stop(self) -> None:
        """End once everything reported so far is committed."""
        self._stopped = True
        self._bell.set()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end; False if it has not come by then, or there was no beginning."""
        if self._thread.ident is None:
            return False
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def fail(self, error: Exception) -> None:
        """The store cannot be used any more."""
        self.broken = self.broken or error
        self._stopped = True
        self._bell.set()

    # The thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self.broken is None:
                try:
                    if not self._one_round():
                        break
                except StoreBroken as error:
                    self.broken = error
                except StoreError as error:
                    self._complain(error)
                    self._bell.wait(random.uniform(0.05, 0.5))
                except Exception:
                    log.exception("the committer stumbled and goes on")
                    self._bell.wait(0.5)
        finally:
            self.empty.set()
            self.drained.set()
            self._store.close()

    def _one_round(self) -> bool:
        """One turn of the loop; False when it is over."""
        # Asked before the inbox is looked into: what is reported before a stop is committed before the end.
        stopped = self._stopped
        if not self._pulse.trusted and not self._stopped:
            self._bell.wait(0.05)
            self._bell.clear()
            return True
        if self._claiming and self._serve():
            self._dry.clear()
        # Taken before the errands are run: what an attempt has asked to be remembered goes out before its end does, also
        # if its handler did not wait for it.
        batch = self._take_inbox()
        try:
            self._run_errands()
            orders = self._orders()
        except BaseException:
            self._inbox.extendleft(reversed(batch))
            raise
        if batch or orders:
            self.idle = False
            self._settle(batch, orders)
            return True
        if stopped:
            return False
        if not self._claiming and not len(self._hand):
            self.empty.set()
        self._rest()
        return True

    def _run_errands(self) -> None:
        """Write what handlers wait for. Their money is at stake: it goes out before anything else."""
        left = len(self._errands)
        while left > 0:
            errands = [self._errands.popleft() for _ in range(min(left, MOST_SETTLED))]
            left -= len(errands)
            self._write_memos(errands)

    def _write_memos(self, errands: list[tuple[MemoWrite, Future[None]]]) -> None:
        memos = [memo for memo, _ in errands]
        try:
            self._commit(lambda tx: remember(tx, memos))
        except StoreError:
            self._errands.extendleft(reversed(errands))
            raise
        except Exception as error:
            if len(errands) == 1:
                errands[0][1].set_exception(error)
                return
            # One of them cannot be written, and must not take the others along.
            for place, one in enumerate(errands):
                try:
                    self._write_memos([one])
                except StoreError:
                    self._errands.popleft()  # it is back there, in front of those that came after it
                    self._errands.extendleft(reversed(errands[place:]))
                    raise
            return
        for memo, future in errands:
            if memo.lost:
                future.set_exception(
                    LeaseLost(
                        f"item {memo.lease.key!r}: the lease of attempt {memo.lease.attempt} has ended; "
                        f"{memo.name!r} is not recorded, another worker has the item"
                    )
                )
            else:
                kept = Memo(memo.state, memo.version, memo.idempotency_key, memo.cost, memo.value)
                memo.lease.memos[memo.name] = kept
                future.set_result(None)

    def _take_inbox(self) -> list[tuple[Call, list[Finished]]]:
        batch = []
        count = 0
        while self._inbox and count < MOST_SETTLED:
            batch.append(self._inbox.popleft())
            count += len(batch[-1][1])
        return batch

    def _orders(self) -> list[tuple[int, int]]:
        """How many items of which stages to claim: the last stages first, so that items finish early."""
        if not self._claiming:
            return []
        if self._news:
            self._news = False
            if self._dry:
                self._dry -= set(self._store.read(lambda tx: stages_with_work(tx, list(self._dry))))
            self._look_at = time.monotonic() + self._poll * random.uniform(0.8, 1.2)
        if len(self._dry) == len(self._offer):
            return []
        orders = []
        # Pipelines take turns at being first.
        self._turns.rotate(-1)
        for stages in self._turns:
            for stage in stages:
                if stage not in self._dry:
                    _, spec = self._offer[stage]
                    room = self._hand.room(stage, spec.batch or 1, spec.isolate is not None)
                    if room > 0:
                        orders.append((stage, room))
        return orders

    def _settle(self, batch: list[tuple[Call, list[Finished]]], orders: list[tuple[int, int]]) -> None:
        finished = [one for _, many in batch for one in many]
        points.reach("claim.before")
        try:
            cycle = self._commit(lambda tx: self._cycle(tx, finished, orders), exclusive=must_be_alone(finished))
        except StoreError as error:
            if isinstance(error, StoreConflict) and any(one.effects for one in finished):
                # User code may lose every race, and must not hold up the others.
                self._settle_apart(batch, error)
                return
            # Not committed, and nothing lost: it goes out with the next one.
            self._inbox.extendleft(reversed(batch))
            raise
        except Exception as error:
            self._settle_apart(batch, error)
            return
        points.reach("claim.after")
        self._deliver(batch, finished, cycle)

    def _settle_apart(self, batch: list[tuple[Call, list[Finished]]], error: Exception) -> None:
        """Something in this group cannot be saved: it must not take the rest along."""
        parts = [(call, [one]) for call, many in batch for one in many]
        if len(parts) == 1:
            self._give_up(parts[0], error)
            return
        log.warning("a group of %d attempts could not be saved together, each is saved alone: %s", len(parts), error)
        for part in parts:
            self._settle([part], [])

    def _cycle(self, tx: Transaction, finished: list[Finished], orders: list[tuple[int, int]]) -> Cycle:
        ended = [one for one in finished if one.state in (State.DONE, State.SKIPPED, State.FAILED)]
        again = [one for one in finished if one.state is State.RETRY_LATER]
        back = [one.lease for one in finished if one.state is State.PENDING]
        moved = complete(tx, ended, self._offer if self._claiming else ()) if ended else []
        if again:
            fail(tx, again)
        if back:
            release(tx, back, "the worker is stopping")
        cycle = Cycle(moved, {}, [])
        taken = 0
        for stage, room in orders:
            if room > taken:
                leases = cycle.claimed[stage] = claim(tx, self._pulse.identity.id, stage, room - taken)
                if len(leases) < room - taken:
                    cycle.dry.append(stage)
                taken += len(leases)
        return cycle

    def _commit(self, work: Callable[[Transaction], T], exclusive: bool = False) -> T:
        """Commit, however long it takes: the same write is tried again until it is known to have taken place."""
        write = self._store.writing(work, slot=self._pulse.identity.id, exclusive=exclusive)
        pause = 0.02
        while True:
            try:
                return write.run()
            except StoreUnavailable as error:
                self._complain(error)
                if self._stopped or self.broken is not None:
                    raise
            time.sleep(random.uniform(0, pause))
            pause = min(pause * 2, 1.0)

    def _deliver(self, batch: list[tuple[Call, list[Finished]]], finished: list[Finished], cycle: Cycle) -> None:
        now = time.monotonic()
        self._hand.drop(one.lease for one in finished)
        for _, many in batch:
            if many and many[0].state is not State.PENDING:
                self._hand.learn(many[0].lease.stage, many[0].took_us / 1e6 / len(many))
        for one in finished:
            if one.lost:
                log.warning(
                    "%s", LeaseLost(
                        f"item {one.lease.key!r}: the lease of attempt {one.lease.attempt} ended before the attempt did; "
                        f"its result is not saved, another worker has the item"
                    ),
                )  # fmt: skip
                continue
            self.done[one.state] += 1
            if one.state is State.RETRY_LATER:
                self._promoter.expect(one.delay_us)
        known: dict[int, list[Lease]] = {}
        for lease in cycle.moved:
            known.setdefault(lease.stage, []).append(lease)
        for stage, leases in cycle.claimed.items():
            if leases:
                known.setdefault(stage, []).extend(leases)
        self._dry.update(cycle.dry)
        if finished and self._dry:
            self._freshen(finished)
        calls = [call for stage, leases in known.items() for call in self._calls(stage, leases, now)]
        if calls:
            self._hand.take(calls)
            self._start_calls(calls)

    def _freshen(self, finished: list[Finished]) -> None:
        """What just finished may have put work into the stages after it."""
        known = self._store.cache.get("layout")
        for stage in {one.lease.stage for one in finished}:
            if known is not None and stage in known.stages:
                following = known.successors(stage)
                self._dry.difference_update(following.simple, following.checked)

    def _calls(self, stage: int, leases: list[Lease], now: float) -> list[Call]:
        pipeline, spec = self._offer[stage]
        size = spec.batch or 1
        together = [lease for lease in leases if not lease.alone]
        calls = [Call(pipeline, spec, together[at : at + size], now) for at in range(0, len(together), size)]
        return calls + [Call(pipeline, spec, [lease], now) for lease in leases if lease.alone]

    def _give_up(self, one: tuple[Call, list[Finished]], error: Exception) -> None:
        """An attempt that cannot be saved as it is fails like one that raised; it must not hold up the others."""
        call, many = one
        text, trace = describe(error)
        for finished in many:
            log.error("item %r, stage %r: could not be saved", finished.lease.key, call.spec.name, exc_info=error)
            finished.state, finished.result, finished.output_hash = State.RETRY_LATER, None, None
            finished.error, finished.traceback = f"the attempt could not be saved: {text}", trace
            finished.delay_us = finished.backoff_us or 1_000_000
            finished.snooze = False
        try:
            cycle = self._commit(lambda tx: self._cycle(tx, many, []))
        except StoreError:
            self._inbox.appendleft(one)
            raise
        self._deliver([one], many, cycle)

    def _serve(self) -> bool:
        """Run the services that are due; True if there may be something to claim."""
        now = time.monotonic()
        found = False
        if now < min(service.due for service in self._services):
            return False
        for service in self._services:
            if service.due <= now:
                found = service.one_pass() or found
        return found

    def _rest(self) -> None:
        """Nothing to do: see whether everything is done, then wait for a reason to go on."""
        if self._claiming and not len(self._hand) and not self.drained.is_set():
            if not self._store.read(lambda tx: unfinished(tx, list(self._offer))):
                self.drained.set()
        if self._inbox or self._errands or self._stopped or (self._news and self._claiming):
            return
        now = time.monotonic()
        wake = min([self._look_at, *(service.due for service in self._services)]) if self._claiming else now + 0.1
        self.idle = True
        self._bell.wait(max(0.0, min(wake - now, self._poll)))
        self._bell.clear()
        self.idle = False
        if time.monotonic() >= self._look_at:
            self._news = True

    def _complain(self, error: StoreError) -> None:
        now = time.monotonic()
        if now - self._complained_at >= COMPLAIN_SECONDS:
            self._complained_at = now
            log.warning("the store is not available, work waits: %s", error)
