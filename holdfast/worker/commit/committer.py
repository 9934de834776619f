"""Group commit: one at a time talks to the database for all handlers.

FinishedAttempt attempts queue up while a commit is under way and go out with the next one; the same transaction claims the
next work. Nothing waits on purpose: batches grow with load. An attempt is finished only when its commit is; until then
the results are kept and the write is tried again for as long as it takes. Who makes the rounds: `turns.py`.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from holdfast import points
from holdfast.engine.claim import Lease, look_for_work, peek
from holdfast.engine.complete import must_be_alone
from holdfast.engine.finish import FinishedAttempt
from holdfast.engine.layout import layout
from holdfast.engine.memos import MemoWrite
from holdfast.engine.reads import unfinished
from holdfast.errors import HoldfastError, LeaseLost, StoreBroken, StoreConflict, StoreError, StoreUnavailable
from holdfast.model.faults import describe
from holdfast.model.layout import Layout
from holdfast.model.logs import logger
from holdfast.model.states import State
from holdfast.store import AtOnce, Store, Transaction
from holdfast.worker.background.heartbeat import Heartbeat
from holdfast.worker.background.upkeep import Promoter, Services
from holdfast.worker.call import Offer, StageCall, calls_of, versions_of
from holdfast.worker.commit.finished_queue import FinishedQueue
from holdfast.worker.commit.in_hand import InHand
from holdfast.worker.commit.memo_queue import MemoQueue
from holdfast.worker.commit.settle_and_claim import SettleAndClaim, Settled
from holdfast.worker.commit.what_to_claim import MOST_WEIGHED, ClaimOrder, ClaimPlanner
from holdfast.worker.commit.who_commits import OVER, CommitTurns, Round

log = logger("holdfast.worker")

T = TypeVar("T")

#: Looking up a member of an Enum is worth avoiding where every item passes.
_DONE, _RETRY_LATER = State.DONE, State.RETRY_LATER

#: Attempts that go into one transaction at most.
MOST_SETTLED = 2000
#: Which part of a lease a transaction may spend on effects: others wait for it, heartbeats among them.
SHARE_FOR_EFFECTS = 1 / 30
COMPLAIN_SECONDS = 60.0
#: With fewer in hand there is no crowd to spare, and nobody waits for a commit in the wrong thread.
MANY = 100
#: What took longer, also of a stage that is quick as a rule, is worth waking somebody for.
HELD_UP_US = 10_000


class Committer:
    """Settles finished attempts, claims, and runs the services in between."""

    def __init__(
        self,
        store: Store,
        pulse: Heartbeat,
        offer: Offer,
        hand: InHand,
        services: Services,
        promoter: Promoter,
        start: Callable[[list[StageCall]], None],
        poll_seconds: float,
        pipelines: Sequence[str],
        held_by_guards: Callable[[], Collection[str]] = tuple,
        *,
        is_near: bool = False,
    ) -> None:
        self._store = store
        self._heartbeat = pulse
        self._offer = offer
        self._hand = hand
        self._services = services
        self._promoter = promoter
        self._start_calls = start
        self._poll = poll_seconds
        self._is_near = is_near
        #: Whether so much is in hand that quick results may wait for whoever ran their handlers.
        self._crowded = False
        self._finished = FinishedQueue()
        self._memos = MemoQueue(self._commit)
        self._orders = ClaimPlanner(offer, hand, pipelines, held_by_guards, poll_seconds)
        self._cycles = SettleAndClaim(store, self._orders, hand)
        self._turns = CommitTurns(self._finished, self._careful_round, hand.__len__, poll_seconds, self._end)
        self._look_at = 0.0
        self._complained_at = -COMPLAIN_SECONDS
        self._news = True
        #: Whether the next transaction only claims, for the last one took too long to.
        self._claim_first = False
        #: Stages in which somebody has said that something waits.
        self._told: deque[int] = deque()
        self._claiming = True
        self._stopped = False
        self._started = False
        #: There is nothing to do but to wait for news.
        self.idle = False
        #: Set once nothing is left to do in the pipelines, here or anywhere.
        self.drained = threading.Event()
        #: Set when nothing is in hand while no more is claimed, and when the thread ends.
        self.empty = threading.Event()
        self.broken: Exception | None = None
        self.done = dict.fromkeys(State, 0)

    # What other threads call --------------------------------------------------------------------------------------

    def start(self) -> None:
        self._turns.start()

    def report(self, finished: list[FinishedAttempt]) -> None:
        """Take over what a call came to."""
        self._finished.put(finished, quietly=self._crowded and len(finished) == 1 and self._is_quick(finished[0]))

    def out_of_work(self, is_free: Callable[[], bool]) -> bool:
        """A thread that runs handlers has nothing left to run, and may be free for something else. True if there is something
        to run now."""
        return self._turns.out_of_work(is_free)

    def _is_quick(self, one: FinishedAttempt) -> bool:
        """Whether this is nothing to wake anybody for: routine, of a stage that is not known to be slow. Also if it was held up
        a little, as happens where threads share the interpreter."""
        return one.routine and one.took_us < HELD_UP_US and self._hand.may_be_quick(one.lease.stage)

    def look(self, now: float) -> None:
        """Called now and then while handlers run."""
        self._turns.look(now)

    def remember(self, memos: Sequence[MemoWrite]) -> Future[None]:
        """Write memos with the next commit; the future tells when they are safe. Those whose lease was lost are marked."""
        future = self._memos.add(memos)
        self._finished.ring()
        return future

    def hand_back(self, calls: Sequence[StageCall]) -> None:
        """Release what these calls hold, unless they have just ended. Only what was begun needs a reason."""
        for call in calls:
            if call.end():
                reason = "the worker is stopping" if call.started else None
                self._finished.give([FinishedAttempt(lease, State.PENDING, error=reason) for lease in call.leases])
        self._finished.ring()

    def set_aside(self, calls: list[StageCall]) -> list[StageCall]:
        """The calls of these that may start now. One that needs this worker to itself starts later, from here; others of its
        kind are handed back."""
        start, back = self._orders.set_aside(calls)
        if back:
            self.hand_back(back)
        return start

    def withdraw(self) -> list[StageCall]:
        """What is in hand and waits here to be started."""
        return self._orders.set_aside_now()

    def news(self, stages: Collection[int] = ()) -> None:
        """There may be something to claim: in these stages, if any are named."""
        if stages:
            stages = self._offer.keys() & stages
            if not stages:
                return
            self._told.extend(stages)
        else:
            self._news = True
        if self.idle:
            # Else there will be another round in a moment, which sees to it: most news of a busy worker is its own.
            self._finished.ring()

    def stop_claiming(self) -> None:
        self._claiming = False
        self._finished.ring()

    def stop(self) -> None:
        """End once everything reported so far is committed."""
        self._stopped = True
        self._finished.ring()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end; False if it has not come by then, or there was no beginning."""
        return self._turns.join(timeout_seconds)

    def fail(self, error: Exception) -> None:
        """The store cannot be used any more."""
        self.broken = self.broken or error
        self._stopped = True
        self._finished.ring()

    # Whoever has the turn -------------------------------------------------------------------------------------------

    def _careful_round(self, by_thread: bool) -> Round:
        """A round, whatever comes of it."""
        if self.broken is not None:
            return OVER
        if not self._heartbeat.trusted and not self._stopped:
            return Round(0.05, failed=True)
        try:
            wait = self._one_round(by_thread)
            return Round(wait, self._started)
        except StoreBroken as error:
            self.broken = error
            return OVER
        except StoreError as error:
            self._complain(error)
            return Round(random.uniform(0.05, 0.5), failed=True)
        except Exception:
            log.exception("the committer stumbled and goes on")
            return Round(0.5, failed=True)
        except BaseException as error:
            self.broken = HoldfastError(f"the thread that commits ended with {type(error).__name__}: {error}")
            raise

    def _end(self) -> None:
        self.empty.set()
        self.drained.set()
        self._store.close()

    def _one_round(self, by_thread: bool) -> float | None:
        """Commit what is there and claim; then, how long to wait for a reason to go on, or None when it is over."""
        # Asked before the inbox is looked into: what is reported before a stop is committed before the end.
        stopped = self._stopped
        self._started = False
        if time.monotonic() >= self._look_at:
            self._news = True
        if self._claiming and self._services.run(self._is_called):
            self._orders.dry.clear()
        # Taken before the errands are run: what an attempt has asked to be remembered goes out before its end does, also
        # if its handler did not wait for it.
        # Only the thread runs effects.
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
            return 0.0
        if claim_first:
            return 0.0
        if stopped:
            return None
        if not len(self._hand):
            self._services.begin()
        if self._claiming and self._services.due <= time.monotonic():
            return 0.0
        if not self._claiming and not len(self._hand):
            self.empty.set()
        return self._rest()

    def _next_orders(self, batch: Sequence[FinishedAttempt], by_thread: bool) -> list[ClaimOrder]:
        """How many items of which stages to claim, in the transaction that ends these."""
        if solitary := self._orders.solitary_now():
            self._start_calls(solitary)
        if not self._claiming:
            return []
        if self._told:
            self._orders.news()
            while self._told:
                self._orders.dry.discard(self._told.popleft())
        if self._news:
            self._news = False
            self._orders.news()
            dry = self._orders.dry
            # Also with nothing dry: somebody may have paused or tuned something.
            found = self._store.glance(lambda tx: look_for_work(tx, list(dry)))
            if self._known is None or self._known.generation != found.generation:
                # Kept under a generation that may be older than what is read: then the next write reads it again.
                self._store.cache["layout"] = replace(self._store.read(layout), generation=found.generation)
            dry -= found.waiting
            self._orders.held(found.held, self._known)
            self._look_at = time.monotonic() + self._poll * random.uniform(0.8, 1.2)
        ending = Counter([one.lease.stage for one in batch])
        orders = self._orders.next(self._known, time.monotonic(), ending)
        weighty = [order for order in orders if self._orders.needs_weighing(order)]
        if weighty and not by_thread:
            # To weigh is to wait for functions of the user's.
            self._finished.ring()
            return [order for order in orders if order not in weighty]
        return [self._weighed(order) if order in weighty else order for order in orders]

    def _weighed(self, order: ClaimOrder) -> ClaimOrder:
        """Where items differ in what they use, the next ones are looked at before they are claimed."""
        most = min(order.most, order.room, MOST_WEIGHED)
        rows = self._store.read(lambda tx: peek(tx, order.stage, most, held=order.held))
        return self._orders.weigh(order._replace(most=most), rows)

    @property
    def _known(self) -> Layout | None:
        known: Layout | None = self._store.cache.get("layout")
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
        except StoreError as error:
            if isinstance(error, StoreConflict) and any(one.effects for one in finished):
                # User code may lose every race, and must not hold up the others.
                self._settle_apart(finished, error)
                return
            # Not committed, and nothing lost: it goes out with the next one.
            self._finished.put_back(finished)
            raise
        except Exception as error:
            self._settle_apart(finished, error)
            return
        points.reach("claim.after")
        self._deliver(finished, cycle)
        self._hand.committed(time.monotonic() - began)

    def _settle_apart(self, finished: list[FinishedAttempt], error: Exception) -> None:
        """Something in this group cannot be saved: it must not take the rest along."""
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
                # It has gone back itself; those after it must not be forgotten.
                self._finished.give(finished[place + 1 :])
                raise

    def _cycle(self, tx: Transaction, finished: list[FinishedAttempt], orders: Sequence[ClaimOrder]) -> Settled:
        identity = self._heartbeat.identity
        goes_on = self._claiming and not self._orders.is_solitary
        seconds = identity.lease_us / 1e6 * SHARE_FOR_EFFECTS
        return self._cycles.run(tx, identity.id, finished, orders, goes_on=goes_on, seconds=seconds)

    def _commit(self, work: Callable[[Transaction], T], exclusive: bool = False, at_once: AtOnce[T] | None = None) -> T:
        """Commit, however long it takes: the same write is tried again until it is known to have taken place."""
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
        self._note(finished)
        known: dict[int, list[Lease]] = {}
        for lease in cycle.moved:
            known.setdefault(lease.stage, []).append(lease)
        for stage, leases in cycle.claimed.items():
            if leases:
                known.setdefault(stage, []).extend(leases)
        self._orders.ran_dry(cycle.dry)
        if cycle.undecided:
            self._news = True
        self._claim_first = bool(cycle.late)
        if finished:
            self._orders.ended(finished, self._known)
        for stage, blocked in cycle.blocked.items():
            self._orders.note(stage, blocked, cycle.at, now)
        calls = [call for stage, leases in known.items() for call in self._calls(stage, leases, now, cycle.began)]
        if calls:
            self._started = all(self._hand.may_be_quick(stage) for stage in known)
            self._hand.take(calls)
        self._crowded = self._is_near and len(self._hand) >= MANY
        if calls:
            self._start_calls(calls)

    def _note(self, finished: Sequence[FinishedAttempt]) -> None:
        """How these ended."""
        odd = [one for one in finished if one.lost or not one.routine]
        self.done[_DONE] += len(finished) - len(odd)
        for one in odd:
            if one.lost:
                log.warning(
                    "%s",
                    LeaseLost(
                        f"item {one.lease.key!r}: the lease of attempt {one.lease.attempt} ended before the attempt did; "
                        f"its result is not saved, another worker has the item"
                    ),
                )
                continue
            self.done[one.state] += 1
            if one.state == _RETRY_LATER:
                self._promoter.expect(one.delay_us)

    def _calls(self, stage: int, leases: list[Lease], now: float, granted: float) -> list[StageCall]:
        pipeline, spec = self._offer[stage]
        known = self._known
        start_by = None
        if known is not None and known.resources_of(stage):
            limit = known.hand_over_seconds(stage)
            start_by = math.inf if limit is None else granted + limit
        return calls_of(pipeline, spec, leases, now, start_by)

    def _give_up(self, one: FinishedAttempt, error: Exception) -> None:
        """An attempt that cannot be saved as it is fails like one that raised; it must not hold up the others."""
        text, trace = describe(error)
        stage = self._offer[one.lease.stage][1].name
        log.error("item %r, stage %r: could not be saved", one.lease.key, stage, exc_info=error)
        one.state, one.result, one.output_hash, one.routine = State.RETRY_LATER, None, None, False
        one.error, one.traceback = f"the attempt could not be saved: {text}", trace
        one.delay_us = one.backoff_us or 1_000_000
        one.snooze = False
        if one.used or one.costs:
            log.error("what it has used is not recorded: %r, %r", one.used, one.costs)
        # It may be these that cannot be saved.
        one.used, one.costs = {}, []
        try:
            cycle = self._commit(lambda tx: self._cycle(tx, [one], []))
        except StoreError:
            self._finished.put_back([one])
            raise
        except Exception:
            # Nobody can say what is wrong with it. Let go, its lease is found by those who look for such.
            log.exception("item %r, stage %r: given up", one.lease.key, stage)
            self._hand.drop([one])
            return
        self._deliver([one], cycle)

    def _is_called(self) -> bool:
        """Whether there is something to claim or to commit, or may be."""
        return bool(self._news or self._told or self._finished)

    def _rest(self) -> float:
        """Nothing to do: see whether everything is done, and how long to wait for a reason to go on."""
        if self._claiming and not len(self._hand) and not self.drained.is_set():
            if not self._store.read(lambda tx: unfinished(tx, versions_of(self._offer))):
                self.drained.set()
        # Before a last look: what comes after it rings.
        self.idle = True
        if self._finished or self._memos or self._stopped or ((self._news or self._told) and self._claiming):
            return 0.0
        now = time.monotonic()
        wake = min(self._look_at, self._orders.wake_at(), self._services.due) if self._claiming else now + 0.1
        # Never quite zero: that is to go on at once, and something else may be what is waited for.
        return max(0.0001, min(wake - now, self._poll))

    def _complain(self, error: StoreError) -> None:
        now = time.monotonic()
        if now - self._complained_at >= COMPLAIN_SECONDS:
            self._complained_at = now
            log.warning("the store is not available, work waits: %s", error)
