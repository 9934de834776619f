"""What a worker has in hand, and how much more it should take.

Enough to keep every handler busy while a commit is under way, and no more: work that waits here is work another worker
could do. How much that is follows from how long the handlers of a stage take.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.engine.finish import FinishedAttempt
from holdfast.model.states import State
from holdfast.worker.call import StageCall

#: Waiting calls should be started within this time.
HORIZON_SECONDS = 0.1
#: The most that may wait, and the most one claim takes.
MOST_AHEAD = 2000
MOST_CLAIMED = 1000
#: How much a new duration moves the average.
WEIGHT = 0.2
#: From the end of a handler until what is claimed in its place is there: half a commit that is under way, and another one.
COMMITS_BETWEEN = 1.5
#: What takes less waits for nothing, and is over before a thread could be woken. Half of the calls of a quick stage take
#: less; some are always held up, where threads share the interpreter, but not so that all take this long on average.
QUICK_SECONDS = 0.0001
QUICK_ON_AVERAGE_SECONDS = 0.0005
#: So many of those that end together are enough to learn from.
LEARNT_FROM = 100
#: Looking up a member of an Enum is worth avoiding where every item passes.
_PENDING = State.PENDING


class Load(NamedTuple):
    """What a worker has in hand, by stage."""

    leases: Mapping[int, int]
    #: How many calls serve them: fewer than there are leases, where handlers take batches.
    calls: Mapping[int, int]


class InHand:
    """The leases of this worker, from claim to commit. Used by whoever commits; `pace` and `is_quick` by others as well."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._calls: dict[int, StageCall] = {}
        self._pace: dict[int, float] = {}
        self._quick: set[int] = set()
        self._commit_seconds = 0.0
        #: By stage with a rate: how many calls can be claimed at once and still begin in time, where some came too late.
        self._in_time: dict[int, float] = {}
        self._late_at: dict[int, float] = {}

    @property
    def concurrency(self) -> int:
        return self._concurrency

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, lease: int) -> bool:
        return lease in self._calls

    @property
    def calls(self) -> set[StageCall]:
        return set(self._calls.values())

    def take(self, calls: Iterable[StageCall]) -> None:
        for call in calls:
            for lease in call.leases:
                self._calls[lease.id] = call

    def drop(self, finished: Iterable[FinishedAttempt]) -> None:
        for one in finished:
            # A lease that moved on has this number too; it is taken again afterwards.
            self._calls.pop(one.lease.id, None)

    def learn_from(self, finished: Sequence[FinishedAttempt]) -> None:
        """How long handlers take, from what they have just done."""
        took: dict[int, list[float]] = {}
        for one in finished[:: 1 + len(finished) // LEARNT_FROM]:
            if one.state != _PENDING:
                took.setdefault(one.lease.stage, []).append(one.took_us / one.share / 1e6)
        for stage, times in took.items():
            self._learn(stage, times)

    def _learn(self, stage: int, times: list[float]) -> None:
        """Calls of this stage took so many seconds per item."""
        old = self._pace.get(stage)
        weight = 1 - (1 - WEIGHT) ** len(times)
        mean = sum(times) / len(times)
        self._pace[stage] = mean if old is None else old + weight * (mean - old)
        if sorted(times)[len(times) // 2] < QUICK_SECONDS and mean < QUICK_ON_AVERAGE_SECONDS:
            self._quick.add(stage)
        else:
            self._quick.discard(stage)

    def may_be_quick(self, stage: int) -> bool:
        """Whether handlers of this stage are not known to be slow."""
        return stage in self._quick or stage not in self._pace

    def is_quick(self, stage: int) -> bool:
        """Whether handlers of this stage are known to be quick, as a rule."""
        return stage in self._quick

    def pace(self, stage: int) -> float | None:
        """Seconds per item at this stage, as far as is known."""
        return self._pace.get(stage)

    def committed(self, seconds: float) -> None:
        """From a claim that was decided on until its calls were there, it took so long."""
        old = self._commit_seconds
        self._commit_seconds = old + WEIGHT * (seconds - old) if old else seconds

    def began(self, call: StageCall, *, late: bool) -> None:
        """A call with a place in a pace was to begin. Called by whoever runs calls."""
        stage = call.leases[0].stage
        most = self._in_time.get(stage)
        if late:
            # Once for all that were claimed together; and not if the commit took so long, for then fewer would help nobody.
            if self._late_at.get(stage, 0.0) < call.granted < (call.start_by or 0.0):
                self._late_at[stage] = time.monotonic()
                self._in_time[stage] = max(1.0, (most or self._concurrency) / 2)
        elif most is not None:
            if most < self._concurrency:
                self._in_time[stage] = most + 1 / most
            else:
                self._in_time.pop(stage, None)

    def room(self, stage: int, per_call: int, alone: bool, freed: int, *, beside_limited: bool = False) -> int:
        """How many items of this stage to claim now, in the transaction that frees so many places.

        Beside stages that use resources, little more than what begins until the next claim is committed: whatever waits here
        takes a place the moment it is free, and the others could not come back to theirs.
        """
        running = self._concurrency * per_call
        horizon = min(HORIZON_SECONDS, 2 * self._until_next) if beside_limited else HORIZON_SECONDS
        ahead = 0 if alone else round(self._ahead(stage, self._concurrency, horizon))
        held = len(self._calls) - freed
        return min(running + ahead - held, max(MOST_CLAIMED, per_call))

    def load(self, going_on: Collection[int]) -> Load:
        """What takes up a place: calls that have not ended, and what goes on to another stage once it is committed."""
        taken = [
            (call.leases[0].stage, call)
            for call in self._calls.values()
            if not call.is_over or call.leases[0].stage in going_on
        ]
        return Load(Counter([stage for stage, _ in taken]), Counter([stage for stage, _ in set(taken)]))

    def share(self, stage: int, per_call: int, places: int, held: int, start_within: float | None) -> int:
        """How many items of a stage that uses resources to claim now, if on average so many handlers of it shall run at once.

        Little waits: what is claimed holds slots and a place in the pace. Only as many as will end before the next claim is
        committed. `start_within` is how late a call may begin, if there is a rate.
        """
        commit = self._until_next
        most = MOST_CLAIMED
        if start_within is not None:
            commit = min(commit, start_within / 2)
            most = int(self._in_time.get(stage, most)) * per_call
        ahead = math.ceil(self._ahead(stage, places, commit)) if places < self._concurrency else 0
        return min(places * per_call + ahead - held, max(most, per_call))

    @property
    def _until_next(self) -> float:
        """From the end of a handler until what is claimed in its place is there, in seconds."""
        return COMMITS_BETWEEN * self._commit_seconds

    def free_within(self, seconds: float, load: Load) -> int:
        """How many places are free, or will be within a time, given how long calls of these stages take."""
        busy = sum(load.calls.values())
        free = float(max(self._concurrency - busy, 0))
        if busy:
            ends = sum(
                n / max(pace, 1e-6) for stage, n in load.calls.items() if (pace := self._pace.get(stage)) is not None
            )
            free += seconds * ends * min(1.0, self._concurrency / busy)
        return min(int(free), MOST_CLAIMED)

    def _ahead(self, stage: int, places: int, seconds: float) -> float:
        """How many calls of a stage begin within a time, in so many places."""
        pace = self._pace.get(stage)
        return 0.0 if pace is None else min(places * seconds / max(pace, 1e-6), MOST_AHEAD)
