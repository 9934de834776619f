"""What a worker has in hand, and how much more it should take.

Enough to keep every handler busy while a commit is under way, and no more: work that waits here is work another worker
could do. How much that is follows from how long the handlers of a stage take.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.engine.finish import Finished
from holdfast.worker.call import Call

#: Waiting calls should be started within this time.
HORIZON_SECONDS = 0.1
#: The most that may wait, and the most one claim takes.
MOST_AHEAD = 2000
MOST_CLAIMED = 1000
#: How much a new duration moves the average.
WEIGHT = 0.2


class Hand:
    """The leases of this worker, from claim to commit. Used by the committer's thread; `pace` may be read by others."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._calls: dict[int, Call] = {}
        self._pace: dict[int, float] = {}

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

    def learn(self, stage: int, took_seconds: float, calls: int = 1) -> None:
        """So many calls of this stage took so long per item, on average."""
        old = self._pace.get(stage)
        weight = 1 - (1 - WEIGHT) ** calls
        self._pace[stage] = took_seconds if old is None else old + weight * (took_seconds - old)

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
