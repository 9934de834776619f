"""Durations counted in buckets, four to each doubling: a percentile is right to about a tenth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

#: Longer than anything can have taken. We did not write a row with a higher number.
LAST = 255


@lru_cache(maxsize=4096)
def bucket(us: int) -> int:
    """The bucket of a duration in microseconds."""
    return int(math.log2(us) * 4) if us > 1 else 0


def bucket_middle_us(number: int) -> float:
    """A duration in the middle of a bucket."""
    return float(2 ** ((min(number, LAST) + 0.5) / 4))


def percentile_us(buckets: Mapping[int, int], share: float) -> float:
    """The duration that `share` percent of those in the buckets do not exceed; 0 if there are none."""
    wanted, seen = sum(buckets.values()) * share / 100, 0
    for number, n in sorted(buckets.items()):
        seen += n
        if n > 0 and seen >= wanted:
            return bucket_middle_us(number)
    return 0.0
