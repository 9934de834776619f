"""Writes what this worker's attempts have come to, minute by minute, and joins what all workers have written.

Nothing waits for it: an attempt counts here only after its commit, and what a killed worker had counted but not written, less
than half a minute of attempts, is missing from the curves alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.engine import throughput_by_minute
from holdfast.runtime.services import Service
from holdfast.store import Store
from holdfast.store.store import new_identity
from holdfast.worker.throughput_counts import MinuteCounts

WRITE_SECONDS = 20.0
JOIN_SECONDS = 60.0


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
