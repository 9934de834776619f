"""The queue of finished attempts that await their commit, and the event that wakes the committer.

Passing thousands of small results to another thread costs more than committing them. Quick handlers therefore report
quietly, without waking the committer. The thread that ran them commits the accumulated results once it has nothing left
to run. Quiet results do not wait for long: if the next handler is slow, the committer is woken after all.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from holdfast.engine.finish_leases import FinishedAttempt

#: How long quiet results may wait.
QUIET_SECONDS = 0.05


class FinishedQueue:
    """Any thread may add to it; only the thread whose turn it is to commit takes from it."""

    def __init__(self) -> None:
        self._finished: deque[FinishedAttempt] = deque()
        self._wake_up = threading.Event()
        #: Since when quiet results have been waiting (0: none), and whether the committer was woken for any others.
        self._quiet_since = 0.0
        self._is_woken = False

    def __len__(self) -> int:
        return len(self._finished)

    @property
    def is_quiet(self) -> bool:
        """Whether results are waiting and all of them are quiet."""
        return self._quiet_since > 0 and not self._is_woken

    def put(self, finished: Sequence[FinishedAttempt], *, quietly: bool) -> None:
        """Add the results of a call. `quietly` wakes nobody: the thread that reports them will soon run out of work and
        commit.
        """
        self._finished.extend(finished)
        if quietly:
            if not self._quiet_since:
                self._quiet_since = time.monotonic()
            return
        self._is_woken = True
        if not self._wake_up.is_set():
            self._wake_up.set()

    def put_back(self, finished: Sequence[FinishedAttempt]) -> None:
        """Put attempts that could not be committed back at the front."""
        self._finished.extendleft(reversed(finished))

    def give(self, finished: Iterable[FinishedAttempt]) -> None:
        """Add attempts without waking the committer; the caller does that."""
        self._finished.extend(finished)

    def take(self, most: int, *, routine: bool = False) -> list[FinishedAttempt]:
        """Take the oldest attempts; with `routine`, only those that are routine."""
        self._quiet_since, self._is_woken = 0.0, False
        take = self._finished.popleft
        taken = [take() for _ in range(min(len(self._finished), most))]
        if routine and (others := [one for one in taken if not one.routine]):
            self.put_back(others)
            self._is_woken = True
            taken = [one for one in taken if one.routine]
        return taken

    def look(self, now: float, since: float) -> None:
        """Wake the committer if quiet results have waited too long, counted from `since` at the earliest."""
        if self._quiet_since and now - max(self._quiet_since, since) > QUIET_SECONDS:
            self.wake()

    def wake(self) -> None:
        self._wake_up.set()

    def wait(self, seconds: float) -> None:
        """Wait until the event is set; returns at once if it was set since it was last cleared."""
        self._wake_up.wait(seconds)

    def clear(self) -> None:
        """Clear the event; the caller is about to handle everything that it was set for."""
        self._wake_up.clear()
