"""What a worker has in hand, and how much more it should take.

Enough to keep every handler busy while a commit is under way, and no more: work that waits here is work another worker
could do. How much that is follows from how long the handlers of a stage take.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.engine.finish import Finished
from holdfast.model.states import State
from holdfast.worker.call import Call

#: Waiting calls should be started within this time.
HORIZON_SECONDS = 0.1
#: The most that may wait, and the most one claim takes.
MOST_AHEAD = 2000
MOST_CLAIMED = 1000
#: How much a new duration moves the average.
WEIGHT = 0.2
#: What takes less waits for nothing, and is over before a thread could be woken. Half of the calls of a quick stage take
#: less; some are always held up, where threads share the interpreter, but not so that all take this long on average.
QUICK_SECONDS = 0.0001
QUICK_ON_AVERAGE_SECONDS = 0.0005
#: So many of those that end together are enough to learn from.
LEARNT_FROM = 100
#: Looking up a member of an Enum is worth avoiding where every item passes.
_PENDING = State.PENDING


class Hand:
    """The leases of this worker, from claim to commit. Used by whoever commits; `pace` and `is_quick` by others as well."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._calls: dict[int, Call] = {}
        self._pace: dict[int, float] = {}
        self._quick: set[int] = set()

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, lease: int) -> bool:
        return lease in self._calls

    @property
    def calls(self) -> set[Call]:
        return set(self._calls.values())

    def take(self, calls: Iterable[Call]) -> None:
        for call in calls:
            for lease in call.leases:
                self._calls[lease.id] = call

    def drop(self, finished: Iterable[Finished]) -> None:
        for one in finished:
            # A lease that moved on has this number too; it is taken again afterwards.
            self._calls.pop(one.lease.id, None)

    def learn_from(self, finished: Sequence[Finished]) -> None:
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

    def room(self, stage: int, per_call: int, alone: bool, freed: int) -> int:
        """How many items of this stage to claim now, in the transaction that frees so many places."""
        running = self._concurrency * per_call
        pace = self._pace.get(stage)
        ahead = 0 if pace is None or alone else round(self._concurrency * HORIZON_SECONDS / max(pace, 1e-6))
        held = len(self._calls) - freed
        return min(running + min(ahead, MOST_AHEAD) - held, max(MOST_CLAIMED, per_call))
