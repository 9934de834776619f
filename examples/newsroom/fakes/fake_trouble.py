"""When the fake server does not do what it is asked: by count, so that the same requests always meet the same trouble."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["fine", "down", "limited", "failed"]


@dataclass
class FakeTrouble:
    """Every n-th request goes wrong in one way or another; 0: never. What is set while it runs counts from then on."""

    #: Nobody answers, until somebody says otherwise.
    down: bool = False
    #: After so many requests that were answered, so many in a row are not.
    down_every: int = 0
    down_for: int = 0
    #: 429 with Retry-After; until then everything is refused.
    limit_every: int = 0
    retry_after: float = 1.0
    #: 500.
    fail_every: int = 0
    #: How long an answer takes, in seconds.
    seconds: float = 0.0
    _count: int = field(default=0, repr=False)
    _left_down: int = field(default=0, repr=False)
    _until: float = field(default=0.0, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def next(self, now: float) -> tuple[Verdict, float]:
        """What becomes of the next request, and for how long it is refused."""
        with self._lock:
            if self.down:
                return "down", 0.0
            if self._left_down:
                self._left_down -= 1
                return "down", 0.0
            if now < self._until:
                return "limited", self._until - now
            self._count += 1
            if self.down_every and self._count % self.down_every == 0:
                self._left_down = max(0, self.down_for - 1)
                return "down", 0.0
            if self.limit_every and self._count % self.limit_every == 0:
                self._until = now + self.retry_after
                return "limited", self.retry_after
            if self.fail_every and self._count % self.fail_every == 0:
                return "failed", 0.0
            return "fine", 0.0

    def settings(self) -> dict[str, bool | int | float]:
        """What can be set, and how it is."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}
