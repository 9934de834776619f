"""The leases that a worker holds, and how many more it should claim.

It should hold enough to keep every handler busy during a commit and no more, because other workers could do the work
that waits here. The right number depends on how long the handlers of a stage take.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.model.states import State
from holdfast.worker.call import StageCall

#: Waiting calls should start within this time.
HORIZON_SECONDS = 0.1
#: The most calls that may wait, and the most items per claim.
MOST_AHEAD = 2000
MOST_CLAIMED = 1000
#: The weight of a new duration in the moving average.
WEIGHT = 0.2
#: How many commits pass between the end of a handler and the arrival of its replacement: half of the current commit,
#: and the next one.
COMMITS_BETWEEN = 1.5
#: A stage is quick if its median call takes less than the first limit, too short to wake a thread for. The limit on the
#: mean allows for a few calls that are delayed because threads share the interpreter.
QUICK_SECONDS = 0.0001
QUICK_ON_AVERAGE_SECONDS = 0.0005
#: How many of the attempts that end together are sampled.
LEARNT_FROM = 100
#: Avoids an Enum lookup on a path that every item takes.
_PENDING = State.PENDING


class Load(NamedTuple):
    """What a worker holds, by stage."""

    leases: Mapping[int, int]
    #: How many calls serve the leases: fewer than there are leases if handlers take batches.
    calls: Mapping[int, int]


class InHand:
    """The leases of this worker, from claim to commit. Other threads read it; of the methods that change it,
    they may call only `began`.
    """

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self._calls: dict[int, StageCall] = {}
        self._pace: dict[int, float] = {}
        self._quick: set[int] = set()
        self._commit_seconds = 0.0
        #: By stage with a rate limit: how many calls can be claimed together and still start in time, if some were
        #: late.
        self._in_time: dict[int, float] = {}
        self._late_at: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, lease: object) -> bool:
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
            # A lease that moved on to the next stage keeps its id; it is added again afterwards.
            self._calls.pop(one.lease.id, None)

    def learn_from(self, finished: Sequence[FinishedAttempt]) -> None:
        """Update the average durations of handlers, in seconds per item, from these attempts."""
        took: dict[int, list[float]] = {}
        for one in finished[:: 1 + len(finished) // LEARNT_FROM]:
            if one.state != _PENDING:
                took.setdefault(one.lease.stage, []).append(one.took_us / one.share / 1e6)
        for stage, times in took.items():
            mean = sum(times) / len(times)
            old = self._pace.get(stage, mean)
            self._pace[stage] = old + (1 - (1 - WEIGHT) ** len(times)) * (mean - old)
            if sorted(times)[len(times) // 2] < QUICK_SECONDS and mean < QUICK_ON_AVERAGE_SECONDS:
                self._quick.add(stage)
            else:
                self._quick.discard(stage)

    def may_be_quick(self, stage: int) -> bool:
        """Whether handlers of this stage are not known to be slow."""
        return stage in self._quick or stage not in self._pace

    def is_quick(self, stage: int) -> bool:
        """Whether handlers of this stage are known to be quick."""
        return stage in self._quick

    def pace(self, stage: int) -> float | None:
        """Seconds per item at this stage; None if unknown."""
        return self._pace.get(stage)

    def committed(self, seconds: float) -> None:
        """Record how long it took from the decision to claim until the calls were there."""
        old = self._commit_seconds
        self._commit_seconds = old + WEIGHT * (seconds - old) if old else seconds

    def began(self, call: StageCall, *, late: bool) -> None:
        """Record whether a rate-limited call started in time. Called by the thread that runs it."""
        stage = call.leases[0].stage
        most = self._in_time.get(stage)
        if late:
            # Counted once for all calls that were claimed together. A slow commit does not count: claiming fewer items
            # would not help.
            if self._late_at.get(stage, 0.0) < call.granted < (call.start_by or 0.0):
                self._late_at[stage] = time.monotonic()
                self._in_time[stage] = max(1.0, (most or self.concurrency) / 2)
        elif most is not None:
            if most < self.concurrency:
                self._in_time[stage] = most + 1 / most
            else:
                self._in_time.pop(stage, None)

    def room(self, stage: int, per_call: int, alone: bool, freed: int, *, beside_limited: bool = False) -> int:
        """How many items of this stage to claim now, in the transaction that frees `freed` leases.

        Next to stages that use resources, claim little more than what starts before the next claim is committed.
        Waiting calls would take every free place at once, and the other stages would never get theirs back.
        """
        running = self.concurrency * per_call
        horizon = min(HORIZON_SECONDS, 2 * self._until_next) if beside_limited else HORIZON_SECONDS
        ahead = 0 if alone else round(self._ahead(stage, self.concurrency, horizon))
        held = len(self._calls) - freed
        return min(running + ahead - held, max(MOST_CLAIMED, per_call))

    def load(self, going_on: Collection[int]) -> Load:
        """What occupies a place: calls that have not ended, and leases that move on to another stage later."""
        taken = [
            (call.leases[0].stage, call)
            for call in self._calls.values()
            if not call.is_over or call.leases[0].stage in going_on
        ]
        return Load(Counter([stage for stage, _ in taken]), Counter([stage for stage, _ in set(taken)]))

    def share(self, stage: int, per_call: int, places: int, held: int, start_within: float | None) -> int:
        """How many items of a stage that uses resources to claim now, if `places` of its handlers should run at once on
        average.

        Few may wait, because claimed items hold slots and their turn under the rate limit: only as many as will end
        before the next claim is committed. `start_within` is how late a call may start, if there is a rate limit.
        """
        commit = self._until_next
        most = MOST_CLAIMED
        if start_within is not None:
            commit = min(commit, start_within / 2)
            most = int(self._in_time.get(stage, most)) * per_call
        ahead = math.ceil(self._ahead(stage, places, commit)) if places < self.concurrency else 0
        return min(places * per_call + ahead - held, max(most, per_call))

    @property
    def _until_next(self) -> float:
        """Seconds from the end of a handler until its replacement is claimed."""
        return COMMITS_BETWEEN * self._commit_seconds

    def free_within(self, seconds: float, load: Load) -> int:
        """How many places are free now or will be within this time, judging by how long calls of these stages take."""
        busy = sum(load.calls.values())
        free = float(max(self.concurrency - busy, 0))
        if busy:
            ends = sum(
                n / max(pace, 1e-6) for stage, n in load.calls.items() if (pace := self._pace.get(stage)) is not None
            )
            free += seconds * ends * min(1.0, self.concurrency / busy)
        return min(int(free), MOST_CLAIMED)

    def _ahead(self, stage: int, places: int, seconds: float) -> float:
        """How many calls of a stage start within this time, in this many places."""
        pace = self._pace.get(stage)
        return 0.0 if pace is None else min(places * seconds / max(pace, 1e-6), MOST_AHEAD)
