"""Metrics by OpenTelemetry, where the user's program has set up its SDK before the work begins. We use the API alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.metrics_counts import Labels
from holdfast.telemetry.metrics_gauges import Sample, build_info
from holdfast.telemetry.metrics_table import BUILD, OF_STORE, OF_WORKERS, Metric, MetricKind
from holdfast.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation

#: The counts that an SDK reads: it wants each instrument to be created once.
_SHARED: dict[Any, Metrics] = {}

#: What the API answers with as long as nobody has set up an SDK.
_NOT_SET_UP = ("_ProxyMeterProvider", "NoOpMeterProvider")


def meter() -> Meter | None:
    """The meter of the user's SDK; None if there is none. A program that has one has imported the API."""
    api: Any = sys.modules.get("opentelemetry.metrics")
    if api is None:
        return None
    provider = api.get_meter_provider()
    if type(provider).__name__ in _NOT_SET_UP:
        return None
    found: Meter = provider.get_meter("holdfast", VERSION)
    return found


def new_metrics(store: str, *, wanted: bool) -> Metrics | None:
    """Counts for a worker: those that the user's SDK reads, if there is one, which all workers of a process share; or else new
    ones, if they are wanted."""
    found = meter()
    if found is None:
        return Metrics() if wanted else None
    if found not in _SHARED:
        _SHARED.clear()
        _SHARED[found] = _observed(found, store)
    return _SHARED[found]


def _observed(found: Meter, store: str) -> Metrics:
    metrics = Metrics(_Histograms(found))
    for metric in OF_WORKERS:
        if metric.kind is MetricKind.COUNTER:
            found.create_observable_counter(metric.name, [_counter(metrics, metric)], metric.unit, metric.help)
    observe_gauges(found, (BUILD,), lambda: [build_info(store)])
    return metrics


def observe_store(samples: Callable[[], Iterable[Sample]]) -> bool:
    """Have the user's SDK read the gauges of a store; False if there is no SDK."""
    found = meter()
    if found is not None:
        observe_gauges(found, OF_STORE, samples)
    return found is not None


class _Histograms:
    """An SDK wants every observation of a histogram."""

    def __init__(self, meter: Meter) -> None:
        self._histograms: dict[Metric, Histogram] = {
            metric: meter.create_histogram(
                metric.name,
                metric.unit,
                metric.help,
                explicit_bucket_boundaries_advisory=metric.shown_bounds,
            )
            for metric in OF_WORKERS
            if metric.kind is MetricKind.HISTOGRAM
        }

    def observe(self, metric: Metric, labels: Labels, values: Iterable[float]) -> None:
        histogram, attributes = self._histograms[metric], _attributes(metric, labels)
        for value in values:
            histogram.record(value, attributes)


def _counter(metrics: Metrics, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        numbers = metrics.read().numbers
        return [
            Observation(n / metric.scale if metric.scale > 1 else n, _attributes(metric, labels))
            for (counted, labels), n in numbers.items()
            if counted is metric
        ]

    return observe


def observe_gauges(meter: Meter, several: Iterable[Metric], samples: Callable[[], Iterable[Sample]]) -> None:
    """Have a meter read these gauges whenever it likes."""

    def of(metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            from opentelemetry.metrics import Observation

            return [
                Observation(one.value, _attributes(metric, one.labels)) for one in samples() if one.metric is metric
            ]

        return observe

    for metric in several:
        meter.create_observable_gauge(metric.name, [of(metric)], metric.unit, metric.help)


def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))
