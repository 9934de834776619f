"""What to claim next: of which stages, and how much.

The last stages first, so that items finish early; pipelines take turns at being first. Not asked are stages in which the
last claim found less than it wanted, those whose resources say until when it is no use, and pipelines that stand still.

A stage that uses resources claims next to nothing in advance, so beside one that does it would never find a place. Each
such stage has an equal share of the places, is asked before the others, and its calls begin before those that wait;
what it has no use for goes to the others.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.engine.admit import Blocked, Weight
from holdfast.engine.claim import Lease
from holdfast.engine.finish import FinishedAttempt
from holdfast.model import codec
from holdfast.model.faults import describe
from holdfast.model.item import Item
from holdfast.model.layout import Layout
from holdfast.model.money import micros
from holdfast.model.stage import StageSpec
from holdfast.model.states import Alone
from holdfast.worker.call import Offer, StageCall
from holdfast.worker.commit.in_hand import HORIZON_SECONDS, InHand

#: Items that are weighed before a claim, at most, and how long that may take.
MOST_WEIGHED = 100
WEIGH_SECONDS = 5.0
MOST_UNITS = 1e12


class ClaimOrder(NamedTuple):
    """Up to `most` items of a stage."""

    stage: int
    most: int
    #: How many there is room for, of all stages together: what was claimed by earlier orders counts.
    room: int
    #: What one is expected to use, at a stage that uses resources; None at others.
    weight: Weight | None = None
    #: Whether also what is on hold for those with today's version of the code is meant.
    held: bool = False
    #: The next items, each with what it is expected to use, where that differs; and why one cannot be told.
    weighed: list[tuple[int, Weight]] | None = None
    unsure: Mapping[int, str] = {}

    def mark(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            lease.unsure = self.unsure.get(lease.item)


class ClaimPlanner:
    """Used by the committer's thread alone."""

    def __init__(
        self,
        offer: Offer,
        hand: InHand,
        pipelines: Sequence[str],
        held_by_guards: Callable[[], Collection[str]],
        poll_seconds: float,
    ) -> None:
        self._offer = offer
        self._hand = hand
        self._guarded = held_by_guards
        self._poll = poll_seconds
        self._turns = deque(
            [number for number in reversed(list(offer)) if offer[number][0] == pipeline] for pipeline in pipelines
        )
        #: Stages in which the last claim found less than it asked for.
        self._dry: set[int] = set()
        #: Stages whose resources allow nothing before a time; and whether something else may allow it earlier.
        self._resting: dict[int, tuple[float, bool]] = {}
        #: Stages in which work is on hold for those who have today's version, as this worker does.
        self._held: set[int] = set()
        #: A call that needs this worker to itself. Nothing is claimed until it has ended; it starts when all else has.
        self._solitary: StageCall | None = None
        self._waits = False
        #: What ran last needed the worker to itself, and so may what comes next: claim one item to see.
        self._one_by_one = False

    @property
    def dry(self) -> set[int]:
        return self._dry

    def held(self, stages: Collection[int], known: Layout | None) -> None:
        """In these stages work is on hold for those who have today's version of the code."""
        if stages and known is not None:
            self._held |= {stage for stage in stages if not self.is_outdated(stage, known)}
            self._dry -= self._held

    def ran_dry(self, stages: Collection[int]) -> None:
        """The last claim in these stages found less than it asked for."""
        self._dry.update(stages)
        self._held.difference_update(stages)

    def is_outdated(self, stage: int, known: Layout) -> bool:
        """Whether this worker has another version of a stage's code than the registered one."""
        return not known.stages[stage].stands(self._offer[stage][1].version)

    def news(self) -> None:
        """Something has changed: a slot may be free."""
        self._resting = {stage: rest for stage, rest in self._resting.items() if not rest[1]}

    def wake_at(self) -> float:
        if self._solitary is not None:
            return float("inf")
        return min((until for until, _ in self._resting.values()), default=float("inf"))

    def next(self, known: Layout | None, now: float, ending: Mapping[int, int]) -> list[ClaimOrder]:
        """What to claim now, in the transaction that ends so many leases of these stages."""
        if self._solitary is not None or len(self._dry) == len(self._offer):
            return []
        if self._resting and known is not None and any(known.resources_of(stage) for stage in ending):
            self.news()  # slots that are freed in this transaction are taken again in it
        freed = sum(n for stage, n in ending.items() if not self._goes_on(stage, known))
        still = self.standing_still(known)
        self._turns.rotate(-1)
        open_ = [
            stage
            for stages in self._turns
            for stage in stages
            if stage not in self._dry
            and not self._rests(stage, now)
            and self._offer[stage][0] not in still
            and (known is None or stage not in known.paused)
        ]
        limited: list[int] = []
        beside_limited = False
        if known is not None and known.resources:
            limited = [stage for stage in open_ if known.resources_of(stage)]
            beside_limited = any(known.resources_of(stage) for stage in self._offer if stage not in self._dry)
        orders = self._limited(known, limited, len(open_)) if known is not None and limited else []
        for stage in open_:
            if stage not in limited:
                spec = self._offer[stage][1]
                room = self._hand.room(
                    stage, spec.batch or 1, spec.isolate is not None, freed, beside_limited=beside_limited
                )
                orders.append(ClaimOrder(stage, room, room))
        if len(limited) >= self._hand.concurrency:
            # More stages than places: by lot, or those that come last would never have one.
            random.shuffle(orders)
        orders = [order for order in orders if order.most > 0 and order.room > 0]
        if self._held:
            orders = [order._replace(held=order.stage in self._held) for order in orders]
        if self._one_by_one and orders:
            self._one_by_one = False
            return [orders[0]._replace(most=1, room=1)]
        return orders

    def _limited(self, known: Layout, stages: Sequence[int], sharing: int) -> list[ClaimOrder]:
        """Orders for stages that use resources, of so many that share the places."""
        load = self._hand.load({stage for stage in self._offer if self._goes_on(stage, known)})
        width = self._hand.concurrency
        # What is left over goes to the stages without a resource, if there are any.
        places = max(1, width // sharing) if len(stages) < sharing else -(-width // sharing)
        orders = []
        for stage in stages:
            spec = self._offer[stage][1]
            size = spec.batch or 1
            within = known.hand_over_seconds(stage)
            held, onward = 0, stage
            while True:
                # What it has finished and went straight on still takes up its share.
                held += load.leases.get(onward, 0)
                following = self._straight(onward, known)
                if following is None:
                    break
                onward = following
            most = self._hand.share(stage, size, places, held, within)
            # With more stages than places, a place is drawn for when it is free.
            soon = 0.0 if len(stages) >= width else HORIZON_SECONDS if within is None else within / 2
            room = size * self._hand.free_within(soon, load)
            estimate = spec.estimate if isinstance(spec.estimate, int) else 0
            orders.append(ClaimOrder(stage, most, room, Weight(estimate)))
        return orders

    # Work that needs the worker to itself ---------------------------------------------------------------------------

    @property
    def is_solitary(self) -> bool:
        """Whether such work is in hand: nothing else may be taken, nor go on to its next stage."""
        return self._solitary is not None

    def set_aside(self, calls: list[StageCall]) -> tuple[list[StageCall], list[StageCall]]:
        """The calls of these that may start now, and those that must be handed back. Of those that need the worker to
        itself one is kept until nothing else is in hand; as long as more are held here, it is not alone."""
        solitary = [call for call in calls if call.leases[0].alone >= Alone.SOLITARY and call is not self._solitary]
        if not solitary:
            return calls, []
        start = [call for call in calls if call not in solitary]
        if self._solitary is None:
            self._solitary, self._waits = solitary.pop(0), True
        return start, solitary

    def set_aside_now(self) -> list[StageCall]:
        """The call that waits to have the worker to itself, if there is one."""
        call = self._solitary
        return [call] if call is not None and self._waits else []

    def solitary_now(self) -> list[StageCall]:
        """The call that may start now, because nothing else is in hand. Once it has ended, claims go on."""
        call = self._solitary
        if call is None:
            return []
        if not any(lease.id in self._hand for lease in call.leases):
            self._solitary, self._one_by_one = None, True
        elif self._waits and len(self._hand) == len(call.leases):
            self._waits = False
            return [call]
        return []

    def needs_weighing(self, order: ClaimOrder) -> bool:
        spec = self._offer[order.stage][1]
        return order.weight is not None and bool(spec.units or callable(spec.estimate))

    def weigh(self, order: ClaimOrder, rows: Sequence[tuple[int, str, str, int]]) -> ClaimOrder:
        """The order with what each of these items (number, key, data) is expected to use.

        Functions of the user's say so: in a thread of their own, which is left behind if they do not come back. An item of
        which it cannot be told is let in, and fails as any other attempt would, with this as its error.
        """
        pipeline, spec = self._offer[order.stage]
        weights: dict[int, Weight] = {}
        unsure: dict[int, str] = {}

        def look() -> None:
            for number, key, data, _ in rows:
                try:
                    weights[number] = _weight(spec, Item(pipeline, key, codec.decode(data)))
                except BaseException as error:
                    unsure[number] = f"what it will use cannot be told: {describe(error)[0]}"

        thread = threading.Thread(target=look, name="holdfast-weigh", daemon=True)
        thread.start()
        thread.join(WEIGH_SECONDS)
        known, doubtful = dict(weights), dict(unsure)
        weighed: list[tuple[int, Weight]] = []
        for number, *_ in rows:
            if number not in known and number not in doubtful:
                # Here it did not come back. Those after it were not looked at, and are no part of this order.
                doubtful[number] = f"what it will use could not be told within {WEIGH_SECONDS:.0f} s"
                weighed.append((number, Weight()))
                return order._replace(most=len(weighed), weighed=weighed, unsure=doubtful)
            weighed.append((number, known.get(number, Weight())))
        return order._replace(weighed=weighed, unsure=doubtful)

    def onward(self, known: Layout) -> Collection[int]:
        """Stages with which a worker may go straight on: those that ask nobody."""
        still = self.standing_still(known)
        if not known.resources and not still and not known.paused:
            return self._offer
        return {
            stage
            for stage, (pipeline, _) in self._offer.items()
            if pipeline not in still and stage not in known.paused and not known.resources_of(stage)
        }

    def standing_still(self, known: Layout | None) -> Collection[str]:
        paused = [name for name, row in known.pipelines.items() if row.paused] if known is not None else []
        return {*paused, *self._guarded()} if paused or self._guarded() else ()

    def note(self, stage: int, blocked: Blocked, store_now: int, now: float) -> None:
        """Resources stood in the way."""
        if blocked.until is None:
            self._resting[stage] = (now + self._poll, True)
        else:
            late = random.uniform(0, 0.002)
            self._resting[stage] = (now + max(0.0, (blocked.until - store_now) / 1e6) + late, False)
            # Whatever clears it early (a person, another limit) is seen within a while.
            self._resting[stage] = (min(self._resting[stage][0], now + self._poll), False)

    def ended(self, finished: Sequence[FinishedAttempt], known: Layout | None) -> None:
        """What just finished may have put work into the stages after it, and freed slots."""
        if self._resting:
            self.news()
        if self._dry and known is not None:
            onward = self.onward(known)
            for stage in {one.lease.stage for one in finished}:
                if stage in known.stages:
                    following = known.successors(stage)
                    # Nothing waits where leases went straight on.
                    straight = next((after for after in following.simple if after in onward), None)
                    self._dry.difference_update(following.checked, [one for one in following.simple if one != straight])

    def _goes_on(self, stage: int, known: Layout | None) -> bool:
        """Whether leases of this stage go on to another one here, as a rule, instead of making room."""
        return known is None or stage not in known.stages or self._straight(stage, known) is not None

    def _straight(self, stage: int, known: Layout) -> int | None:
        """The stage to which leases of this one go on."""
        for after in known.successors(stage).simple:
            if after in self._offer and not known.resources_of(after):
                return after
        return None

    def _rests(self, stage: int, now: float) -> bool:
        rest = self._resting.get(stage)
        if rest is None:
            return False
        if now < rest[0]:
            return True
        del self._resting[stage]
        return False


def _weight(spec: StageSpec, item: Any) -> Weight:
    money = micros(spec.estimate(item), what="estimate") if callable(spec.estimate) else spec.estimate or 0
    units = {unit: float(function(item)) for unit, function in spec.units.items()}
    for unit, n in units.items():
        if not 0 <= n <= MOST_UNITS:
            raise ValueError(f"units: {unit}: {n!r} is not a number from 0 to {MOST_UNITS:g}")
    return replace(Weight(money), units=units)
