"""Metrics as a Prometheus reads them, with a registry of our own: nothing is added to the one of the user's program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.telemetry.metrics_counts import Counts
from holdfast.telemetry.metrics_gauges import Sample
from holdfast.telemetry.metrics_table import OF_STORE, OF_WORKERS, Metric, MetricKind

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def has_extra() -> bool:
    return find_spec("prometheus_client") is not None


def require_extra() -> None:
    if not has_extra():
        raise UsageError("this needs prometheus-client, which comes with the extra metrics: install holdfast[metrics]")


def text_of(counts: Counts, samples: Iterable[Sample]) -> bytes:
    """Counts and samples in the text format. Every metric that has them is there once, with its help and type."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Ours(Collector):
        def collect(self) -> Iterator[Family]:
            return _families(counts, samples)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Ours())
    return generate_latest(registry)


def _families(counts: Counts, samples: Iterable[Sample]) -> Iterator[Family]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {
        MetricKind.COUNTER: CounterMetricFamily,
        MetricKind.GAUGE: GaugeMetricFamily,
        MetricKind.HISTOGRAM: HistogramMetricFamily,
    }
    families = {
        metric: kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
        for metric in dict.fromkeys((*OF_WORKERS, *OF_STORE))
    }
    for (metric, labels), n in sorted(counts.numbers.items(), key=lambda one: one[0][1]):
        families[metric].add_metric(labels, n / metric.scale)
    for metric, labels, buckets, total in sorted(counts.spreads(), key=lambda one: one[1]):
        bounds = [_bound(metric, place) for place in range(len(buckets))]
        families[metric].add_metric(labels, list(zip(bounds, accumulate(buckets), strict=True)), total / metric.scale)
    for sample in samples:
        families[sample.metric].add_metric(sample.labels, sample.value)
    yield from (family for family in families.values() if family.samples)


def _bound(metric: Metric, place: int) -> str:
    """The upper bound of a bucket as its label has it."""
    bounds = metric.shown_bounds
    return f"{bounds[place]:g}" if place < len(bounds) else "+Inf"
