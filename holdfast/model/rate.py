"""How often something may be done: a rate, and a token bucket that is one number.

The number is the time up to which everything is used up. Taking n pushes it n intervals ahead, and it may not run further
ahead of now than the burst allows: over any window, at most rate × window + burst are taken. Nothing has to be refilled.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from holdfast.errors import UsageError

_PERIODS = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "m": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_PERIODS |= {"d": 86400.0, "day": 86400.0}
_RATE = re.compile(r"(\d+(?:_\d+)*(?:\.\d+)?)\s*/\s*([a-z]+)")
_MOST_PER_SECOND = 1e9
_LEAST_PER_SECOND = 1 / (366 * 86400)
#: Nothing is used up for longer than this, whatever was taken.
_FURTHEST_NS = 86_400_000_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate per second, and as its author wrote it."""

    per_second: float
    text: str

    @classmethod
    def read(cls, text: object, *, what: str = "rate") -> Rate:
        """Read `60/min`, `10/s`, `1000/hour`, `0.5/s`."""
        found = _RATE.fullmatch(text.strip().lower()) if isinstance(text, str) else None
        if found is None or found[2] not in _PERIODS:
            raise UsageError(
                f"{what}: {text!r} is not a rate; write it like '10/s', '60/min', '1000/hour' or '500/day'"
            )
        per_second = float(found[1].replace("_", "")) / _PERIODS[found[2]]
        if not _LEAST_PER_SECOND <= per_second <= _MOST_PER_SECOND:
            raise UsageError(f"{what}: {text!r} must be one a year at least, and a billion a second at most")
        return cls(per_second, found[0])

    @property
    def default_burst(self) -> int:
        """What accrues in a second, at least one."""
        return max(1, math.ceil(self.per_second))


@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket in nanoseconds: `used_until` is all it remembers."""

    interval_ns: float
    burst: float

    @classmethod
    def of(cls, rate: Rate, burst: float, pace: float = 1.0) -> Bucket:
        """`pace` is the share of the full rate that may be used now."""
        return cls(1e9 / (rate.per_second * pace), burst)

    def fits(self, used_until: int, now: int, n: float) -> bool:
        """Whether n may be taken at once. More than a burst may be taken when nothing else is outstanding."""
        ahead = max(used_until, now) - now
        # Each take was rounded up to a nanosecond.
        return ahead + n * self.interval_ns <= self.burst * (self.interval_ns + 1) or ahead <= 0

    def take(self, used_until: int, now: int, n: float) -> int:
        """Take n. Never more than a day ahead, or a burst: one large take does not block the others forever."""
        furthest = now + max(_FURTHEST_NS, math.ceil(self.burst * self.interval_ns))
        return min(furthest, max(used_until, now) + math.ceil(min(n * self.interval_ns, 2.0**60)))

    def settle(self, used_until: int, now: int, n: float) -> int:
        """Correct for n more than was taken, or less if negative."""
        if n >= 0:
            return self.take(used_until, now, n)
        return used_until - math.floor(min(-n * self.interval_ns, 2.0**60))

    def free_at(self, used_until: int, n: float = 1) -> int:
        """When n can be taken."""
        return used_until - math.floor(max(0.0, self.burst - n) * self.interval_ns)
