"""The rate of a worker that is under way: what its start took is left out. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence


def steady_rate(times: Sequence[float], most: int) -> float:
    """Items per second from the moment a tenth of them had begun until the last of them did."""
    first = max(1, most // 10)
    # What is committed together counts as one: begin behind it.
    while first < most - 1 and times[first] == times[first - 1]:
        first += 1
    return (most - first) / (times[most - 1] - times[first - 1])
