"""What a loop looks after between claims, and when."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.adopt.loop.loop import Loop

#: Stale rows are looked for at least this often.
LONGEST_SECONDS = 30.0
#: How long rows on their last attempt may wait for a busy loop to have its hands free.
SUSPECT_SECONDS = 5.0


class UpkeepTimes:
    """Recovery of stale rows, jittered so that loops do not all do it at once; rows that must run alone; a report."""

    def __init__(self, loop: Loop) -> None:
        every = min(LONGEST_SECONDS, (loop.stale_seconds or 2 * LONGEST_SECONDS) / 2)
        self._every = {"recover": every, "look": loop.report_seconds, "suspect": SUSPECT_SECONDS}
        # What a loop finds at its start may have been left by the one before it.
        now = time.monotonic()
        self._next = {"recover": now, "look": now + loop.report_seconds, "suspect": now + SUSPECT_SECONDS}

    def due(self) -> Iterator[str]:
        """Whatever is to be done now."""
        for piece, at in list(self._next.items()):
            if time.monotonic() >= at:
                self._next[piece] = time.monotonic() + self._every[piece] * random.uniform(0.8, 1.2)
                yield piece

    def seconds_left(self) -> float:
        """Until the next one."""
        return max(0.001, min(self._next.values()) - time.monotonic())
