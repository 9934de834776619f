"""Gauges: what is true of the whole store now, in numbers for monitoring, from kept counts and bounded looks."""

from __future__ import annotations

from collections import defaultdict

from holdfast import schema
from holdfast.engine.claim_within_limits import CALLS
from holdfast.engine.layout import layout
from holdfast.engine.limits import limits
from holdfast.engine.status import HEAD
from holdfast.model import codec
from holdfast.model.facts import Facts
from holdfast.model.rate import Bucket
from holdfast.model.resource import ResourceSpec
from holdfast.model.states import State
from holdfast.store import Transaction

#: How many delayed stages of items that are due, and that no worker has promoted, are looked at.
MOST_DUE = 100


def gauges(tx: Transaction) -> Facts:
    """States and ages of stages, resources, and the last heartbeats of living workers by version of holdfast."""
    return {"schema": schema.newest(), "stages": _stages(tx), "resources": _resources(tx), "beat_ages_us": _beats(tx)}


def _stages(tx: Transaction) -> list[Facts]:
    states: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(State, 0))
    for stage, state, _, n, _, _ in tx.run("read_counts"):
        states[stage][state] += n
    doubts: dict[int, int] = defaultdict(int)
    for sums in tx.records("sum_money"):
        doubts[sums["stage"]] += sums["doubts"]
    due: dict[int, int] = dict(tx.run("due_since", now=tx.now, most=MOST_DUE))
    found = []
    for row in sorted(layout(tx).stages.values(), key=lambda row: (row.pipeline_name, row.position)):
        if not row.active:
            continue
        begins = [due.get(row.id)]
        if states[row.id][State.PENDING]:
            begins.append(tx.run("waiting_since", stage=row.id, most=HEAD)[0][0])
        ages = [tx.now - at for at in begins if at]
        found.append(
            {
                "pipeline": row.pipeline_name,
                "stage": row.name,
                "states": {str(state): n for state, n in states[row.id].items()},
                "due_age_us": max(0, *ages) if ages else 0,
                "in_doubt": doubts[row.id],
            }
        )
    return found


def _resources(tx: Transaction) -> list[Facts]:
    known = layout(tx)
    numbers = {row.spec.name: number for number, row in known.resources.items()}
    used: dict[int, int] = {}
    if numbers:
        used = {
            resource: until
            for resource, unit, until in tx.run("read_buckets", ids=list(known.resources))
            if unit == CALLS
        }
    found = []
    for one in limits(tx):
        number = numbers[one["name"]]
        spec = known.resources[number].spec
        found.append(
            {
                "name": one["name"],
                "in_use": one["in_use"],
                "cool_us": max(0, (one["cool_until"] or 0) - tx.now),
                "is_open": int(one["breaker"] == "open"),
                "tokens": _tokens(spec, one["pace"], used.get(number, 0), tx.now * 1000),
                "budget": _budget(spec, one),
            }
        )
    return found


def _tokens(spec: ResourceSpec, pace: float, used_until: int, now_ns: int) -> float | None:
    """How many attempts the rate allows at once; None without a rate."""
    if spec.rate is None:
        return None
    bucket = Bucket.of(spec.rate, spec.bursts, pace)
    return max(0.0, bucket.burst - max(0, used_until - now_ns) / bucket.interval_ns)


def _budget(spec: ResourceSpec, one: Facts) -> int | None:
    """What is left of the budget, of two the smaller rest; None without a budget."""
    rests = []
    if spec.budget is not None:
        rests.append(spec.budget - one["spent"] - one["set_aside"])
    if spec.budget_per_day is not None:
        rests.append(spec.budget_per_day - one["spent_today"] - one["set_aside"])
    return max(0, min(rests)) if rests else None


def _beats(tx: Transaction) -> dict[str, list[int]]:
    ages: dict[str, list[int]] = defaultdict(list)
    for row in tx.records("read_workers"):
        if row["clock"] == tx.store.driver.clock_name and row["alive_until"] > tx.steady:
            version = codec.stored(row["facts"], {}).get("holdfast")
            ages[version if isinstance(version, str) else "unknown"].append(max(0, tx.now - row["beat_at"]))
    return dict(ages)
