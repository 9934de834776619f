"""When each piece of a loop's upkeep is due."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.adopt.loop.loop import Loop

#: The longest interval between recoveries of stale rows.
LONGEST_SECONDS = 30.0
#: How often to check for rows on their last attempt, which wait until a busy loop holds no other rows.
SUSPECT_SECONDS = 5.0


class UpkeepTimes:
    """Schedules recovery, the check for rows that must run alone, and the report; jittered, so that loops spread out."""

    def __init__(self, loop: Loop) -> None:
        every = min(LONGEST_SECONDS, (loop.stale_seconds or 2 * LONGEST_SECONDS) / 2)
        self._every = {"recover": every, "look": loop.report_seconds, "suspect": SUSPECT_SECONDS}
        # Recover at once: the process before this one may have left stale rows.
        now = time.monotonic()
        self._next = {"recover": now, "look": now + loop.report_seconds, "suspect": now + SUSPECT_SECONDS}

    def due(self) -> Iterator[str]:
        """The pieces that are due now."""
        for piece, at in list(self._next.items()):
            if time.monotonic() >= at:
                self._next[piece] = time.monotonic() + self._every[piece] * random.uniform(0.8, 1.2)
                yield piece

    def seconds_left(self) -> float:
        """Seconds until the next piece is due."""
        return max(0.001, min(self._next.values()) - time.monotonic())
