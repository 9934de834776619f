"""Decides what to claim next: from which stages, and how much.

Later stages come first, so that items finish early; pipelines take turns. It skips stages in which the last claim found
less than it asked for, stages whose resources are exhausted for a known time, and pipelines that are paused or held by
guards.

A stage that uses resources claims almost nothing in advance. Stages that claim in advance would leave it no place. Each
stage that uses resources therefore gets an equal share of the places, is asked first, and its calls start before
waiting ones. Other stages get what it cannot use.
"""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.engine.claim import Lease, look_for_work, peek
from holdfast.engine.claim_within_limits import Blocked, Weight
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.engine.layout import layout
from holdfast.model import codec
from holdfast.model.error_fingerprint import describe
from holdfast.model.item import Item
from holdfast.model.layout import Layout
from holdfast.model.money import micros
from holdfast.model.stage import StageSpec
from holdfast.model.states import Alone
from holdfast.store import Store
from holdfast.worker.call import Offer, StageCall, calls_of
from holdfast.worker.commit.prefetch import HORIZON_SECONDS, InHand

#: The most items to weigh before a claim, and how long that may take.
MOST_WEIGHED = 100
WEIGH_SECONDS = 5.0
MOST_UNITS = 1e12


class ClaimOrder(NamedTuple):
    """A claim of up to `most` items of a stage."""

    stage: int
    most: int
    #: Room for all claims of this transaction together; items claimed by earlier ones count.
    room: int
    #: What an item is expected to use, if the stage uses resources; None otherwise.
    weight: Weight | None = None
    #: Whether to include items that are on hold until a worker with the current version of the code takes them.
    held: bool = False
    #: The next items with what each is expected to use, if items differ; and for which items that failed, and why.
    weighed: list[tuple[int, Weight]] | None = None
    unsure: Mapping[int, str] = {}


class ClaimPlanner:
    """Used only by the thread whose turn it is to commit."""

    def __init__(
        self,
        offer: Offer,
        hand: InHand,
        pipelines: Sequence[str],
        held_by_guards: Callable[[], Collection[str]],
        poll_seconds: float,
    ) -> None:
        self.offer = offer
        self.hand = hand
        self._guarded = held_by_guards
        self._poll = poll_seconds
        self._turns = deque(
            [number for number in reversed(list(offer)) if offer[number][0] == pipeline] for pipeline in pipelines
        )
        #: Stages in which the last claim found less than it asked for.
        self.dry: set[int] = set()
        #: Stages whose resources allow nothing before a time, and whether other changes may allow it earlier.
        self._resting: dict[int, tuple[float, bool]] = {}
        #: Stages with work on hold for the current version of the code, which this worker has.
        self._held: set[int] = set()
        #: A call that needs this worker to itself. It starts when no other lease is held, and nothing is claimed until
        #: it ends.
        self._solitary: StageCall | None = None
        self._waits = False
        #: The last call needed the worker to itself, and the next item may need that too: claim a single one.
        self._one_by_one = False

    def look(self, store: Store) -> None:
        """Look where work waits, and whether the pipelines have changed."""
        self.news()
        # Needed even if no stage has run dry: a stage or pipeline may have been paused or changed.
        found = store.glance(lambda tx: look_for_work(tx, list(self.dry)))
        known: Layout | None = store.cache.get("layout")
        if known is None or known.generation != found.generation:
            # The layout may be newer than the generation it is cached under. In that case the next write reads it again.
            known = store.cache["layout"] = replace(store.read(layout), generation=found.generation)
        self.dry -= found.waiting
        if found.held:
            self._held |= {stage for stage in found.held if not self.is_outdated(stage, known)}
            self.dry -= self._held

    def ran_dry(self, stages: Collection[int]) -> None:
        """The last claim in these stages found less than it asked for."""
        self.dry.update(stages)
        self._held.difference_update(stages)

    def is_outdated(self, stage: int, known: Layout) -> bool:
        """Whether this worker's code of a stage differs from the registered version."""
        return not known.stages[stage].stands(self.offer[stage][1].version)

    def news(self) -> None:
        """Something has changed: a slot may be free."""
        self._resting = {stage: rest for stage, rest in self._resting.items() if not rest[1]}

    def wake_at(self) -> float:
        if self._solitary is not None:
            return float("inf")
        return min((until for until, _ in self._resting.values()), default=float("inf"))

    def next(self, known: Layout, now: float, ending: Mapping[int, int]) -> list[ClaimOrder]:
        """What to claim now, in the transaction that ends this many leases per stage."""
        if self._solitary is not None or len(self.dry) == len(self.offer):
            return []
        if self._resting and any(known.resources_of(stage) for stage in ending):
            self.news()  # the transaction that frees slots also takes them again
        freed = sum(n for stage, n in ending.items() if not self._goes_on(stage, known))
        still = self.standing_still(known)
        self._turns.rotate(-1)
        open_ = [
            stage
            for stages in self._turns
            for stage in stages
            if stage not in self.dry
            and not self._rests(stage, now)
            and self.offer[stage][0] not in still
            and stage not in known.paused
        ]
        limited = [stage for stage in open_ if known.resources_of(stage)]
        orders = self._limited(known, limited, len(open_)) if limited else []
        beside_limited = any(known.resources_of(stage) for stage in self.offer.keys() - self.dry)
        for stage in open_:
            if stage not in limited:
                spec = self.offer[stage][1]
                room = self.hand.room(
                    stage, spec.batch or 1, spec.isolate is not None, freed, beside_limited=beside_limited
                )
                orders.append(ClaimOrder(stage, room, room))
        if len(limited) >= self.hand.concurrency:
            # More stages than places: shuffle, or the last ones would never get a place.
            random.shuffle(orders)
        orders = [order for order in orders if order.most > 0 and order.room > 0]
        if self._held:
            orders = [order._replace(held=order.stage in self._held) for order in orders]
        if self._one_by_one and orders:
            self._one_by_one = False
            return [orders[0]._replace(most=1, room=1)]
        return orders

    def _limited(self, known: Layout, stages: Sequence[int], sharing: int) -> list[ClaimOrder]:
        """Claims for stages that use resources; `sharing` stages share the places."""
        load = self.hand.load({stage for stage in self.offer if self._goes_on(stage, known)})
        width = self.hand.concurrency
        # The remainder goes to the stages without resources, if there are any.
        places = max(1, width // sharing) if len(stages) < sharing else -(-width // sharing)
        orders = []
        for stage in stages:
            spec = self.offer[stage][1]
            size = spec.batch or 1
            within = known.hand_over_seconds(stage)
            held, onward = 0, stage
            while True:
                # Items that it finished and that moved straight on still count towards its share.
                held += load.leases.get(onward, 0)
                following = self._straight(onward, known)
                if following is None:
                    break
                onward = following
            most = self.hand.share(stage, size, places, held, within)
            # With more stages than places, stages compete only for places that are free now.
            soon = 0.0 if len(stages) >= width else HORIZON_SECONDS if within is None else within / 2
            room = size * self.hand.free_within(soon, load)
            estimate = spec.estimate if isinstance(spec.estimate, int) else 0
            orders.append(ClaimOrder(stage, most, room, Weight(estimate)))
        return orders

    # Work that needs the worker to itself ---------------------------------------------------------------------------

    @property
    def is_solitary(self) -> bool:
        """Whether this worker holds such a call. If so, it claims nothing, and no lease moves on to its next stage."""
        return self._solitary is not None

    def set_aside(self, calls: list[StageCall]) -> tuple[list[StageCall], list[StageCall]]:
        """Split calls into those that may start now and those to hand back. Of the calls that need the worker to
        themselves, one is kept until no other lease is held. The others are handed back, or it would never be alone.
        """
        solitary = [call for call in calls if call.leases[0].alone >= Alone.SOLITARY and call is not self._solitary]
        if not solitary:
            return calls, []
        start = [call for call in calls if call not in solitary]
        if self._solitary is None:
            self._solitary, self._waits = solitary.pop(0), True
        return start, solitary

    def set_aside_now(self) -> list[StageCall]:
        """The call that is waiting to have the worker to itself, if there is one."""
        call = self._solitary
        return [call] if call is not None and self._waits else []

    def solitary_now(self) -> list[StageCall]:
        """The call that may start now because no other lease is held. Claiming resumes once it has ended."""
        call = self._solitary
        if call is None:
            return []
        if not any(lease.id in self.hand for lease in call.leases):
            self._solitary, self._one_by_one = None, True
        elif self._waits and len(self.hand) == len(call.leases):
            self._waits = False
            return [call]
        return []

    def needs_weighing(self, order: ClaimOrder) -> bool:
        spec = self.offer[order.stage][1]
        return order.weight is not None and bool(spec.units or callable(spec.estimate))

    def weighed(self, order: ClaimOrder, store: Store) -> ClaimOrder:
        """The claim with what each of the next items is expected to use.

        User functions compute that, in a separate thread that is abandoned if they hang. If they fail for an item, the
        item is admitted and its attempt fails with that error.
        """
        order = order._replace(most=min(order.most, order.room, MOST_WEIGHED))
        rows = store.read(lambda tx: peek(tx, order.stage, order.most, held=order.held))
        pipeline, spec = self.offer[order.stage]
        weights: dict[int, Weight] = {}
        unsure: dict[int, str] = {}

        def look() -> None:
            for number, key, data, _ in rows:
                try:
                    weights[number] = _weight(spec, Item(pipeline, key, spec.data_of(codec.decode(data))))
                except BaseException as error:
                    unsure[number] = f"what it will use cannot be told: {describe(error)[0]}"

        thread = threading.Thread(target=look, name="holdfast-weigh", daemon=True)
        thread.start()
        thread.join(WEIGH_SECONDS)
        known, doubtful = dict(weights), dict(unsure)
        weighed: list[tuple[int, Weight]] = []
        for number, *_ in rows:
            if number not in known and number not in doubtful:
                # The functions hang on this item. The items after it were not weighed and are left out of this claim.
                doubtful[number] = f"what it will use could not be told within {WEIGH_SECONDS:.0f} s"
                weighed.append((number, Weight()))
                return order._replace(most=len(weighed), weighed=weighed, unsure=doubtful)
            weighed.append((number, known.get(number, Weight())))
        return order._replace(weighed=weighed, unsure=doubtful)

    def calls(
        self, leases: Mapping[int, list[Lease]], known: Layout, arrived: float, granted: float
    ) -> list[StageCall]:
        """The calls for leases, by stage, that were granted and have arrived at these times."""
        calls = []
        for stage, some in leases.items():
            start_by = None
            if known.resources_of(stage):
                limit = known.hand_over_seconds(stage)
                start_by = math.inf if limit is None else granted + limit
            calls += calls_of(*self.offer[stage], some, arrived, start_by)
        return calls

    def onward(self, known: Layout) -> Collection[int]:
        """Stages to which leases may move straight on, because no resource, pause or guard is in the way."""
        still = self.standing_still(known)
        if not known.resources and not still and not known.paused:
            return self.offer
        return {
            stage
            for stage, (pipeline, _) in self.offer.items()
            if pipeline not in still and stage not in known.paused and not known.resources_of(stage)
        }

    def standing_still(self, known: Layout) -> Collection[str]:
        return {*(name for name, row in known.pipelines.items() if row.paused), *self._guarded()}

    def note(self, stage: int, blocked: Blocked, store_now: int, now: float) -> None:
        """Resources prevented a claim."""
        # If a person or another limit lifts the block early, the next poll finds out.
        rest = self._poll
        if blocked.until is not None:
            rest = min(rest, max(0.0, (blocked.until - store_now) / 1e6) + random.uniform(0, 0.002))
        self._resting[stage] = (now + rest, blocked.until is None)

    def ended(self, finished: Sequence[FinishedAttempt], known: Layout) -> None:
        """Attempts that have just finished may have added work to the next stages and freed slots."""
        if self._resting:
            self.news()
        if self.dry:
            onward = self.onward(known)
            for stage in {one.lease.stage for one in finished}:
                if stage in known.stages:
                    following = known.successors(stage)
                    # If leases moved straight on to a stage, no work waits there.
                    straight = next((after for after in following.simple if after in onward), None)
                    self.dry.difference_update(following.checked, [one for one in following.simple if one != straight])

    def _goes_on(self, stage: int, known: Layout) -> bool:
        """Whether leases of this stage usually move on to another stage here instead of freeing their places."""
        return stage not in known.stages or self._straight(stage, known) is not None

    def _straight(self, stage: int, known: Layout) -> int | None:
        """The stage to which leases of this one move straight on."""
        for after in known.successors(stage).simple:
            if after in self.offer and not known.resources_of(after):
                return after
        return None

    def _rests(self, stage: int, now: float) -> bool:
        if stage in self._resting and now >= self._resting[stage][0]:
            del self._resting[stage]
        return stage in self._resting


def _weight(spec: StageSpec, item: Any) -> Weight:
    money = micros(spec.estimate(item), what="estimate") if callable(spec.estimate) else spec.estimate or 0
    units = {unit: float(function(item)) for unit, function in spec.units.items()}
    for unit, n in units.items():
        if not 0 <= n <= MOST_UNITS:
            raise ValueError(f"units: {unit}: {n!r} is not a number from 0 to {MOST_UNITS:g}")
    return replace(Weight(money), units=units)
