"""Group commit: one thread at a time talks to the database for all handlers.

Finished attempts queue up while a commit is in progress and go into the next one. The same transaction claims the next
work. Nothing waits on purpose: batches grow with load. An attempt is finished only once its commit succeeded. Until
then, the committer keeps its result and retries the write. `who_commits.py` decides which thread commits.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast import points
from holdfast.engine.claim import Lease
from holdfast.engine.complete import must_be_alone
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.engine.memos import MemoWrite
from holdfast.engine.status import unfinished
from holdfast.engine.stray_rows import take_if_ended
from holdfast.errors import HoldfastError, StoreBroken, StoreConflict, StoreError, StoreUnavailable
from holdfast.model.layout import Layout
from holdfast.model.log_lines import logger
from holdfast.model.states import State
from holdfast.runtime.services import Scheduler
from holdfast.store import AtOnce, Store, Transaction
from holdfast.worker.background.heartbeat import Heartbeat
from holdfast.worker.background.throughput import MinuteCounts
from holdfast.worker.background.upkeep import Promoter
from holdfast.worker.call import StageCall, versions_of
from holdfast.worker.commit.claim_planner import ClaimOrder, ClaimPlanner
from holdfast.worker.commit.memo_queue import MemoQueue
from holdfast.worker.commit.settle_and_claim import SettleAndClaim, Settled
from holdfast.worker.commit.who_commits import OVER, CommitTurns, Round
from holdfast.worker.handler_outcome import fail_unsaved

log = logger("holdfast.worker")

T = TypeVar("T")

#: Avoids an Enum lookup on a path that every item takes.
_DONE, _FAILED, _RETRY_LATER = State.DONE, State.FAILED, State.RETRY_LATER
#: How much of an error a heartbeat carries.
LONGEST_LAST_ERROR = 500

#: The most attempts in one transaction.
MOST_SETTLED = 2000
#: The fraction of a lease that a transaction may spend on effects. Other writes wait for it, including heartbeats.
SHARE_FOR_EFFECTS = 1 / 30
COMPLAIN_SECONDS = 60.0
#: With fewer leases than this, results never wait for the thread that ran their handlers.
MANY = 100
#: An attempt that took longer than this wakes the committer's thread, even if its stage is usually quick.
HELD_UP_US = 10_000


class Committer(CommitTurns):
    """Commits finished attempts, claims work, and runs the maintenance services in between."""

    def __init__(
        self,
        store: Store,
        heartbeat: Heartbeat,
        orders: ClaimPlanner,
        upkeep: Scheduler,
        promoter: Promoter,
        counts: MinuteCounts,
        start_calls: Callable[[list[StageCall]], None],
        poll_seconds: float,
    ) -> None:
        super().__init__(orders.hand, poll_seconds)
        self._store = store
        self._heartbeat = heartbeat
        self._orders = orders
        self._upkeep = upkeep
        self._promoter = promoter
        self._counts = counts
        self._start_calls = start_calls
        #: Whether so many leases are held that quick results may wait for the thread that ran their handlers.
        self._crowded = False
        self._memos = MemoQueue(self._commit)
        self._cycles = SettleAndClaim(store, orders)
        self._look_at = 0.0
        self._complained_at = -COMPLAIN_SECONDS
        self._news = True
        #: Whether the next transaction only claims, because the last one took too long to claim in time.
        self._claim_first = False
        #: Stages that were reported to have waiting work.
        self._reported: deque[int] = deque()
        self._claiming = True
        self._stopped = False
        self._started = False
        #: Whether there is nothing to do until a notification arrives.
        self.idle = False
        #: Set once no work is left in the pipelines, in this worker or any other.
        self.drained = threading.Event()
        #: Set when claiming has stopped and no lease is held, and when the thread ends.
        self.empty = threading.Event()
        self.broken: Exception | None = None
        self.done = dict.fromkeys(State, 0)
        #: The newest failure of an attempt, for the heartbeat.
        self.last_error: dict[str, Any] | None = None

    # What other threads call --------------------------------------------------------------------------------------

    def report(self, finished: list[FinishedAttempt]) -> None:
        """Queue the result of a call. It need not wake a thread if it is routine and its stage is not known to be slow. A
        small delay does not count, because threads share the interpreter.
        """
        one = finished[0]
        quietly = self._crowded and len(finished) == 1 and one.routine and one.took_us < HELD_UP_US
        self._finished.put(finished, quietly=quietly and self._hand.may_be_quick(one.lease.stage))

    def remember(self, memos: Sequence[MemoWrite]) -> Future[None]:
        """Write memos with the next commit. The future completes when they are durable; memos whose lease was lost are
        marked.
        """
        future = self._memos.add(memos)
        self._finished.wake()
        return future

    def hand_back(self, calls: Sequence[StageCall]) -> None:
        """Release the leases of these calls, unless the calls have just ended. Only a call that has started needs a
        reason.
        """
        for call in calls:
            if call.end():
                reason = "the worker is stopping" if call.started else None
                self._finished.give([FinishedAttempt(lease, State.PENDING, error=reason) for lease in call.leases])
        self._finished.wake()

    def news(self, stages: Collection[int] = ()) -> None:
        """There may be work to claim, in these stages if any are named."""
        if stages:
            stages = self._orders.offer.keys() & stages
            if not stages:
                return
            self._reported.extend(stages)
        else:
            self._news = True
        if self.idle:
            # Otherwise the next round sees it anyway. Most notifications that a busy worker receives are its own.
            self._finished.wake()

    def stop_claiming(self) -> None:
        self._claiming = False
        self._finished.wake()

    def stop(self) -> None:
        """End once everything reported so far is committed."""
        self._stopped = True
        self._finished.wake()

    def fail(self, error: Exception) -> None:
        """The store is unusable: end."""
        self.broken = self.broken or error
        self.stop()

    # Only the thread whose turn it is -------------------------------------------------------------------------------

    def _make_round(self, by_thread: bool) -> Round:
        """Make one round and turn any error into its outcome."""
        if self.broken is not None:
            return OVER
        if not self._heartbeat.trusted and not self._stopped:
            return Round(0.05, failed=True)
        try:
            return Round(self._one_round(by_thread), self._started)
        except StoreBroken as error:
            self.broken = error
            return OVER
        except StoreError as error:
            self._complain(error)
            return Round(random.uniform(0.05, 0.5), failed=True)
        except Exception:
            log.exception("a round of the committer failed and will be repeated")
            return Round(0.5, failed=True)
        except BaseException as error:
            self.broken = HoldfastError(f"the thread that commits ended with {type(error).__name__}: {error}")
            raise

    def _end(self) -> None:
        self.empty.set()
        self.drained.set()
        self._store.close()

    def _one_round(self, by_thread: bool) -> float | None:
        """Commit what is queued and claim; return how long to wait for the next round, or None when the committer is
        done.
        """
        # Read before the queue: results reported before a stop are committed before the end.
        stopped = self._stopped
        self._started = False
        if time.monotonic() >= self._look_at:
            self._news = True
        if self._claiming and self._upkeep.run(self._is_called):
            self._orders.dry.clear()
        # Taken before the memos are written: an attempt's memos are committed before its end, even if its handler did
        # not wait for them. Only the committer's thread runs effects.
        claim_first = self._claim_first and self._claiming and not stopped
        batch = [] if claim_first else self._finished.take(MOST_SETTLED, routine=not by_thread)
        self._claim_first = False
        self._hand.learn_from(batch)
        try:
            self._memos.run()
            orders = self._next_orders(batch, by_thread)
        except BaseException:
            self._finished.put_back(batch)
            raise
        if batch or orders:
            self.idle = False
            self._settle(batch, orders)
        if batch or orders or claim_first:
            return 0.0
        if stopped:
            return None
        if not len(self._hand):
            self._upkeep.begin()
        if self._claiming and self._upkeep.due <= time.monotonic():
            return 0.0
        if not self._claiming and not len(self._hand):
            self.empty.set()
        return self._rest()

    def _next_orders(self, batch: Sequence[FinishedAttempt], by_thread: bool) -> list[ClaimOrder]:
        """How many items of which stages to claim, in the transaction that ends these attempts."""
        if solitary := self._orders.solitary_now():
            self._start_calls(solitary)
        if not self._claiming:
            return []
        if self._reported:
            self._orders.news()
            while self._reported:
                self._orders.dry.discard(self._reported.popleft())
        if self._news:
            self._news = False
            self._orders.look(self._store)
            self._look_at = time.monotonic() + self._poll * random.uniform(0.8, 1.2)
        ending = Counter([one.lease.stage for one in batch])
        orders = self._orders.next(self._known, time.monotonic(), ending)
        weighty = [order for order in orders if self._orders.needs_weighing(order)]
        if weighty and not by_thread:
            # Weighing waits for user functions.
            self._finished.wake()
            return [order for order in orders if order not in weighty]
        return [self._orders.weighed(order, self._store) if order in weighty else order for order in orders]

    @property
    def _known(self) -> Layout:
        """The pipelines, as the last look for work or the last transaction saw them."""
        known: Layout = self._store.cache["layout"]
        return known

    def _settle(self, finished: list[FinishedAttempt], orders: list[ClaimOrder]) -> None:
        points.reach("claim.before")
        began = time.monotonic()
        try:
            cycle = self._commit(
                lambda tx: self._cycle(tx, finished, orders),
                must_be_alone(finished),
                self._cycles.at_once(self._known, self._heartbeat.identity.id, finished, orders),
            )
        except Exception as error:
            # Effects are user code, which may lose every race; they must not delay the other attempts.
            lost_a_race = isinstance(error, StoreConflict) and any(one.effects for one in finished)
            if isinstance(error, StoreError) and not lost_a_race:
                # Not committed, but nothing is lost: the attempts go into the next commit.
                self._finished.put_back(finished)
                raise
            self._settle_apart(finished, error)
            return
        points.reach("claim.after")
        self._deliver(finished, cycle)
        self._hand.committed(time.monotonic() - began)

    def _settle_apart(self, finished: list[FinishedAttempt], error: Exception) -> None:
        """An attempt in this group cannot be saved. Commit each alone, so that the others do not fail with it."""
        if not finished:
            log.error("nothing could be claimed", exc_info=error)
            time.sleep(0.5)
            return
        if len(finished) == 1:
            self._give_up(finished[0], error)
            return
        log.warning("a group of %d attempts could not be saved together, each is saved alone: %s", len(finished), error)
        for place, one in enumerate(finished):
            try:
                self._settle([one], [])
            except StoreError:
                # This attempt is back in the queue already; the ones after it must follow.
                self._finished.give(finished[place + 1 :])
                raise

    def _cycle(self, tx: Transaction, finished: list[FinishedAttempt], orders: Sequence[ClaimOrder]) -> Settled:
        goes_on = self._claiming and not self._orders.is_solitary
        worker, seconds = self._heartbeat.identity.id, self._heartbeat.lease_seconds * SHARE_FOR_EFFECTS
        return self._cycles.run(tx, worker, finished, orders, goes_on=goes_on, seconds=seconds)

    def _commit(self, work: Callable[[Transaction], T], exclusive: bool = False, at_once: AtOnce[T] | None = None) -> T:
        """Commit, retrying the same write until it is known to have succeeded."""
        write = self._store.writing(work, slot=self._heartbeat.identity.id, exclusive=exclusive, at_once=at_once)
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

    def _deliver(self, finished: list[FinishedAttempt], cycle: Settled) -> None:
        now = time.monotonic()
        if cycle.left:
            left = {one.lease.id for one in cycle.left}
            finished = [one for one in finished if one.lease.id not in left]
            self._finished.put_back(cycle.left)
        self._hand.drop(finished)
        self._note(finished, cycle.at)
        self._counts.add(cycle.at, cycle.ended)
        arrived: dict[int, list[Lease]] = {}
        for lease in cycle.moved:
            arrived.setdefault(lease.stage, []).append(lease)
        for stage, leases in cycle.claimed.items():
            if leases:
                arrived.setdefault(stage, []).extend(leases)
        self._orders.ran_dry(cycle.dry)
        if cycle.undecided:
            self._news = True
        self._claim_first = bool(cycle.late)
        if finished:
            self._orders.ended(finished, self._known)
        for stage, blocked in cycle.blocked.items():
            self._orders.note(stage, blocked, cycle.at, now)
        calls = self._orders.calls(arrived, self._known, now, cycle.began)
        if calls:
            self._started = all(self._hand.may_be_quick(stage) for stage in arrived)
            self._hand.take(calls)
        self._crowded = self._store.driver.far is None and len(self._hand) >= MANY
        if calls:
            self._start_calls(calls)

    def _note(self, finished: Sequence[FinishedAttempt], at: int) -> None:
        """Count and log how these attempts ended."""
        odd = [one for one in finished if one.lost or not one.routine]
        self.done[_DONE] += len(finished) - len(odd)
        for one in odd:
            if one.lost:
                log.warning(
                    "item %r: the lease of attempt %d ended before the attempt did; its result is not saved, another worker "
                    "has the item",
                    one.lease.key,
                    one.lease.attempt,
                )
                continue
            self.done[one.state] += 1
            if one.state == _RETRY_LATER:
                self._promoter.expect(one.delay_us)
            # A skip, a snooze and a hand-back have a reason, too, but nothing went wrong.
            if one.error is not None and not one.snooze and one.state in (_FAILED, _RETRY_LATER):
                pipeline, spec = self._orders.offer[one.lease.stage]
                self.last_error = {
                    "at": at,
                    "stage": f"{pipeline}/{spec.name}",
                    "item": one.lease.key,
                    "error": one.error[:LONGEST_LAST_ERROR],
                }

    def _give_up(self, one: FinishedAttempt, error: Exception) -> None:
        """Record an attempt that cannot be saved as a failure, as if its handler had raised. It must not delay the
        others.
        """
        stage = self._orders.offer[one.lease.stage][1].name
        log.error("item %r, stage %r: could not be saved", one.lease.key, stage, exc_info=error)
        if one.used or one.costs:
            log.error("what it has used is not recorded: %r, %r", one.used, one.costs)
        fail_unsaved(one, error)
        try:
            if self._commit(lambda tx: take_if_ended(tx, one.lease)):
                self._hand.drop([one])
                return
            cycle = self._commit(lambda tx: self._cycle(tx, [one], []))
        except StoreError:
            self._finished.put_back([one])
            raise
        except Exception:
            # The cause is unknown. Once dropped here, the lease is found and released by the Auditor.
            log.exception("item %r, stage %r: its end cannot be saved; the item is released", one.lease.key, stage)
            self._hand.drop([one])
            return
        self._deliver([one], cycle)

    def _is_called(self) -> bool:
        """Whether there is, or may be, something to claim or commit."""
        return bool(self._news or self._reported or self._finished)

    def _rest(self) -> float:
        """With nothing to do, check whether all work is done, and return how long to wait."""
        if self._claiming and not len(self._hand) and not self.drained.is_set():
            if not self._store.read(lambda tx: unfinished(tx, versions_of(self._orders.offer))):
                self.drained.set()
        # Set before the last check: anything that arrives later wakes the thread.
        self.idle = True
        if self._finished or self._memos or self._stopped or ((self._news or self._reported) and self._claiming):
            return 0.0
        now = time.monotonic()
        wake = min(self._look_at, self._orders.wake_at(), self._upkeep.due) if self._claiming else now + 0.1
        # Never zero, which would mean another round at once.
        return max(0.0001, min(wake - now, self._poll))

    def _complain(self, error: StoreError) -> None:
        now = self._troubled = time.monotonic()
        if now - self._complained_at >= COMPLAIN_SECONDS:
            self._complained_at = now
            log.warning("the store is not available, work waits: %s", error)
