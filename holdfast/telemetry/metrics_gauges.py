"""What is true of a whole store, as gauges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.clock import SECOND
from holdfast.model.facts import Facts
from holdfast.telemetry.metrics_table import (
    BEAT_AGE,
    BUCKET,
    BUDGET,
    BUILD,
    COOL_DOWN,
    DUE_AGE,
    IN_DOUBT,
    OPEN,
    SCHEMA,
    SLOTS,
    STAGES,
    WORKERS,
    Metric,
)
from holdfast.version import VERSION


class Sample(NamedTuple):
    """A gauge with the values of its labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def build_info(store: str) -> Sample:
    """Which holdfast runs, on which kind of database."""
    return Sample(BUILD, (VERSION, store), 1)


def gauges(facts: Facts) -> list[Sample]:
    """The gauges of a store, from what the engine has found."""
    where = (VERSION, facts["store"])
    samples = [build_info(facts["store"]), Sample(SCHEMA, where, facts["schema"])]
    for stage in facts["stages"]:
        labels = (stage["pipeline"], stage["stage"])
        samples += [Sample(STAGES, (*labels, state), n) for state, n in stage["states"].items()]
        samples.append(Sample(DUE_AGE, labels, stage["due_age_us"] / SECOND))
        samples.append(Sample(IN_DOUBT, labels, stage["in_doubt"]))
    for resource in facts["resources"]:
        samples += _of_resource(resource)
    for version, ages in facts["beat_ages_us"].items():
        samples.append(Sample(WORKERS, (version,), len(ages)))
        samples.append(Sample(BEAT_AGE, (version,), max(ages) / SECOND))
    return samples


def _of_resource(resource: dict[str, Any]) -> Iterator[Sample]:
    labels = (resource["name"],)
    yield Sample(SLOTS, labels, resource["in_use"])
    yield Sample(COOL_DOWN, labels, resource["cool_us"] / SECOND)
    yield Sample(OPEN, labels, resource["is_open"])
    if resource["tokens"] is not None:
        yield Sample(BUCKET, labels, resource["tokens"])
    if resource["budget"] is not None:
        yield Sample(BUDGET, labels, resource["budget"] / BUDGET.scale)
