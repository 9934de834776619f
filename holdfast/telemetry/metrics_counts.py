"""Counts by series: whole numbers only, so that they add up exactly, in one process or over the pipes of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.telemetry.metrics_table import OF_WORKERS, Metric

#: The values of the labels, in the order of the metric's labels.
Labels = tuple[str, ...]

_BY_NAME = {metric.name: metric for metric in OF_WORKERS}


class Spread:
    """The observations of a histogram: how many fell into which bucket, and their sum."""

    __slots__ = ("buckets", "total")

    def __init__(self, buckets: Counter[int] | None = None, total: int = 0) -> None:
        self.buckets: Counter[int] = Counter() if buckets is None else buckets
        self.total = total


class SentCounts(msgspec.Struct):
    """Counts as they are sent to another process: name, labels, and the number or the buckets and the sum."""

    numbers: list[tuple[str, Labels, int]] = []
    spreads: list[tuple[str, Labels, dict[int, int], int]] = []


class Counts:
    """Numbers and spreads by metric and labels."""

    def __init__(self) -> None:
        self.numbers: Counter[tuple[Metric, Labels]] = Counter()
        self._spreads: dict[tuple[Metric, Labels], Spread] = {}

    def __bool__(self) -> bool:
        return bool(self.numbers or self._spreads)

    def spread(self, metric: Metric, labels: Labels) -> Spread:
        found = self._spreads.get((metric, labels))
        if found is None:
            found = self._spreads[metric, labels] = Spread()
        return found

    def spreads(self) -> Iterator[tuple[Metric, Labels, Sequence[int], int]]:
        """Each with the number of observations per bucket, the last one without an upper bound, and their sum."""
        for (metric, labels), one in self._spreads.items():
            yield metric, labels, [one.buckets[place] for place in range(len(metric.bounds) + 1)], one.total

    def add(self, sent: SentCounts) -> None:
        """Add what another process has counted. Metrics that this version does not know are left out."""
        for name, labels, n in sent.numbers:
            if name in _BY_NAME:
                self.numbers[_BY_NAME[name], labels] += n
        for name, labels, buckets, total in sent.spreads:
            if name in _BY_NAME:
                mine = self.spread(_BY_NAME[name], labels)
                mine.buckets.update(buckets)
                mine.total += total

    def sent(self) -> SentCounts:
        return SentCounts(
            [(metric.name, labels, n) for (metric, labels), n in self.numbers.items()],
            [(metric.name, labels, dict(one.buckets), one.total) for (metric, labels), one in self._spreads.items()],
        )

    def since(self, earlier: Counts) -> Counts:
        """What was added to these counts since they were `earlier`. A new series counts, even at zero."""
        grown, had_numbers = Counts(), earlier.numbers
        for number, n in self.numbers.items():
            if number not in had_numbers or n != had_numbers[number]:
                grown.numbers[number] = n - had_numbers[number]
        for series, one in self._spreads.items():
            had = earlier.spread(*series)
            if one.buckets != had.buckets:
                grown._spreads[series] = Spread(one.buckets - had.buckets, one.total - had.total)
        return grown

    def copy(self) -> Counts:
        return self.since(Counts())
