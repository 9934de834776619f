"""Numbers and times that can be true: something other than holdfast may have written the others."""

from __future__ import annotations

#: No counter of ours gets as far, and any column can hold the next number.
MOST = 2**31 - 2
#: No item is isolated so often.
MOST_ALONE = 1000
#: The last moment that a calendar knows, in microseconds since 1970.
LAST = 253_402_300_799_999_999

#: More than anybody can have spent in all, in millionths, or worked, in microseconds.
MOST_IN_ALL = 10**17


def is_count(n: int) -> bool:
    return 0 <= n <= MOST


def is_time(at: int) -> bool:
    """Whether a calendar knows it."""
    return 0 <= at <= LAST


def bounded(n: int) -> int:
    """A part of a sum, with which the sum cannot leave its column: as the statements add up (`{sum}`)."""
    return min(max(n, -MOST_IN_ALL), MOST_IN_ALL)
