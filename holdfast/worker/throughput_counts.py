"""Counts the attempts of this worker by minute, once they are committed, for its background service to write."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

from holdfast.engine.finish_leases import LOST, RETRIED, FinishedAttempt
from holdfast.model.attempt_counts import MINUTE_US, AttemptCounts
from holdfast.model.duration_buckets import bucket
from holdfast.model.states import WORDS, State

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


def _count(counts: AttemptCounts, attempts: Sequence[FinishedAttempt]) -> None:
    # Every attempt comes through here, and most are alike: what took or waited equally long is put into a bucket once.
    leases = [one.lease for one in attempts]
    waits = [lease.since - lease.ready_at for lease in leases if lease.ready_at]
    for buckets, durations in ((counts.run, [one.took_us for one in attempts]), (counts.wait, waits)):
        for us, n in Counter(durations).items():
            buckets[bucket(us)] += n
