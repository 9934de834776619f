"""Counts this worker's attempts by minute, once they are committed, writes the counts, and joins what all workers have written.

Nothing waits for it: an attempt counts here only after its commit, and what a killed worker had counted but not written, less
than half a minute of attempts, is missing from the curves alone.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from holdfast.engine import throughput_by_minute
from holdfast.engine.finish_leases import LOST, RETRIED, FinishedAttempt
from holdfast.model.attempt_counts import MINUTE_US, AttemptCounts
from holdfast.model.duration_buckets import bucket
from holdfast.model.states import WORDS, State
from holdfast.runtime.services import Service
from holdfast.store import Store
from holdfast.store.store import new_identity

WRITE_SECONDS = 20.0
JOIN_SECONDS = 60.0
#: Outcomes that have a cause.
FAILED = frozenset((RETRIED, LOST, WORDS[State.FAILED], WORDS[State.EXHAUSTED]))
#: By minute since 1970 and stage.
ByMinute = dict[tuple[int, int], AttemptCounts]


class MinuteCounts:
    """What has ended in which minute at which stage. The committer adds, another thread takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: ByMinute = {}

    def add(self, at: int, ended: Sequence[tuple[int, str, Sequence[FinishedAttempt]]]) -> None:
        """Count the attempts that a transaction has ended at this time."""
        minute = at // MINUTE_US
        with self._lock:
            for stage, outcome, attempts in ended:
                counts = self._counts.get((minute, stage))
                if counts is None:
                    counts = self._counts[minute, stage] = AttemptCounts()
                counts.outcomes[outcome] += len(attempts)
                if outcome in FAILED:
                    failed = [one.cause.group for one in attempts if one.cause is not None]
                    cast("Counter[str]", counts.groups).update(failed)
                if outcome != LOST:
                    _count(counts, attempts)

    def take(self) -> ByMinute:
        """What was counted since the last time."""
        with self._lock:
            taken, self._counts = self._counts, {}
        return taken

    def put_back(self, taken: Mapping[tuple[int, int], AttemptCounts]) -> None:
        """It could not be written."""
        with self._lock:
            for key, counts in taken.items():
                self._counts[key] = AttemptCounts.sum([counts, self._counts.get(key, AttemptCounts())])


class MinuteWriter(Service):
    """Writes and joins the counts of attempts by minute, on the connection of the heartbeat."""

    name = "minutes"
    retry_seconds = 5.0

    def __init__(self, store: Store, counts: MinuteCounts, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._counts = counts
        self._clock = clock
        self.due = clock() + WRITE_SECONDS
        self._join_at = clock() + JOIN_SECONDS

    def one_pass(self) -> bool:
        self.due = self._clock() + WRITE_SECONDS
        self._write()
        if self._clock() >= self._join_at:
            self._join_at = self._clock() + JOIN_SECONDS
            if self._store.read(throughput_by_minute.are_to_join):
                self._store.write(throughput_by_minute.join, exclusive=True)
        return False

    def last_pass(self) -> None:
        """A short run is counted, too."""
        self._write()

    def _write(self) -> None:
        taken = self._counts.take()
        if not taken:
            return
        slot = new_identity()
        try:
            self._store.write(lambda tx: throughput_by_minute.write(tx, slot, taken), patience_seconds=1.0)
        except BaseException:
            self._counts.put_back(taken)
            raise


def _count(counts: AttemptCounts, attempts: Sequence[FinishedAttempt]) -> None:
    # Every attempt comes through here, and most are alike: what took or waited equally long is put into a bucket once.
    leases = [one.lease for one in attempts]
    waits = [lease.since - lease.ready_at for lease in leases if lease.ready_at]
    for buckets, durations in ((counts.run, [one.took_us for one in attempts]), (counts.wait, waits)):
        for us, n in Counter(durations).items():
            buckets[bucket(us)] += n
