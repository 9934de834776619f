"""The queue of finished attempts that are not committed yet, and the bell that wakes the committer.

To wake a thread and let it have a thousand small things costs more than what it does with them, and on another core they
all have to be fetched first. So quick handlers report quietly: nobody is woken, and whoever runs them commits what has
gathered once there is nothing left to run. What was reported quietly does not wait for long: if the next handler is slow,
the thread that commits is woken after all.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from holdfast.engine.finish import FinishedAttempt

#: So long may what was reported quietly lie here.
QUIET_SECONDS = 0.05


class FinishedQueue:
    """Filled by any thread, emptied by the one whose turn it is to commit."""

    def __init__(self) -> None:
        self._finished: deque[FinishedAttempt] = deque()
        self._bell = threading.Event()
        #: Since when something has lain here of which nobody was told; and whether somebody was told of something.
        self._quiet_since = 0.0
        self._told = False

    def __len__(self) -> int:
        return len(self._finished)

    @property
    def is_quiet(self) -> bool:
        """Whether something lies here, and nobody was told of any of it."""
        return self._quiet_since > 0 and not self._told

    def put(self, finished: Sequence[FinishedAttempt], *, quietly: bool) -> None:
        """What a call came to. Quietly: whoever reports it will soon say that there is nothing left to run."""
        self._finished.extend(finished)
        if quietly:
            if not self._quiet_since:
                self._quiet_since = time.monotonic()
            return
        self._told = True
        if not self._bell.is_set():
            self._bell.set()

    def put_back(self, finished: Sequence[FinishedAttempt]) -> None:
        """These could not be committed: they come first again."""
        self._finished.extendleft(reversed(finished))

    def give(self, finished: Iterable[FinishedAttempt]) -> None:
        """More of what is to be written; whoever has it sees to the bell."""
        self._finished.extend(finished)

    def take(self, most: int, *, routine: bool = False) -> list[FinishedAttempt]:
        """The first of what lies here; only what is routine, if so wanted."""
        self._quiet_since, self._told = 0.0, False
        take = self._finished.popleft
        taken = [take() for _ in range(min(len(self._finished), most))]
        if routine and (others := [one for one in taken if not one.routine]):
            self.put_back(others)
            self._told = True
            taken = [one for one in taken if one.routine]
        return taken

    def look(self, now: float, since: float) -> None:
        """Tell the thread that commits of what has been lying here for too long; what came before a time, since then."""
        if self._quiet_since and now - max(self._quiet_since, since) > QUIET_SECONDS:
            self.ring()

    def ring(self) -> None:
        self._bell.set()

    def wait(self, seconds: float) -> None:
        """Until somebody rings, or has rung since the last time that was heard."""
        self._bell.wait(seconds)

    def hear(self) -> None:
        """Whatever anybody has rung for up to now is about to be looked at."""
        self._bell.clear()
