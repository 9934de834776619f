"""Every metric: its name, kind, labels and meaning. Dashboards and alerts of users depend on names and labels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Upper bounds of the buckets of durations, in microseconds: from 5 ms to an hour, each about √10 times the one before.
DURATIONS_US = tuple(1000 * ms for ms in (5, 16, 50, 160, 500, 1600, 5000, 16_000, 50_000, 160_000, 500_000, 1_600_000))
DURATIONS_US += (3_600_000_000,)
#: The same for transactions, from half a millisecond to 16 seconds, and for their rows.
COMMITS_US = (500, 1600, 5000, 16_000, 50_000, 160_000, 500_000, 1_600_000, 5_000_000, 16_000_000)
ROWS = (1, 3, 10, 30, 100, 300, 1000, 3000)

MICRO = 1_000_000


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A metric. Durations are counted in microseconds and money in millionths: `scale` of them are one that is shown."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str
    scale: int = 1
    #: The upper bounds of a histogram's buckets, as they are counted.
    bounds: tuple[int, ...] = ()

    @property
    def unit(self) -> str:
        return "s" if self.name.endswith("_seconds") else ""

    @property
    def shown_bounds(self) -> tuple[float, ...]:
        return tuple(bound / self.scale for bound in self.bounds)


_STAGE = ("pipeline", "stage")
_WHERE = ("version", "store")
_RESOURCE = ("resource",)

ATTEMPTS = Metric(
    "holdfast_attempts_total", MetricKind.COUNTER, (*_STAGE, "outcome"), "Attempts that have ended, by outcome."
)
ATTEMPT_DURATION = Metric(
    "holdfast_attempt_duration_seconds",
    MetricKind.HISTOGRAM,
    _STAGE,
    "How long handlers ran, one observation per attempt.",
    MICRO,
    DURATIONS_US,
)
WAIT = Metric(
    "holdfast_wait_seconds",
    MetricKind.HISTOGRAM,
    _STAGE,
    "How long work was ready before it was claimed, one observation per attempt.",
    MICRO,
    DURATIONS_US,
)
COST = Metric(
    "holdfast_cost_total",
    MetricKind.COUNTER,
    (*_STAGE, "resource"),
    "Money that was charged, in the currency in which your handlers give amounts.",
    MICRO,
)
TOKENS = Metric(
    "holdfast_tokens_total",
    MetricKind.COUNTER,
    (*_STAGE, "model", "direction"),
    "Tokens of paid calls. Cached ones are a part of in, reasoning ones a part of out.",
)
IN_DOUBT_TOTAL = Metric(
    "holdfast_in_doubt_total",
    MetricKind.COUNTER,
    _STAGE,
    "Paid calls of which it was not known whether they were charged.",
)
COMMIT = Metric(
    "holdfast_store_commit_seconds",
    MetricKind.HISTOGRAM,
    ("op",),
    "How long transactions of this process took, from their begin to the end of their commit.",
    MICRO,
    COMMITS_US,
)
BATCH = Metric(
    "holdfast_store_batch_rows",
    MetricKind.HISTOGRAM,
    ("op",),
    "How many attempts, memos, workers or items a transaction was about.",
    1,
    ROWS,
)
BUILD = Metric("holdfast_build_info", MetricKind.GAUGE, _WHERE, "Always 1; the labels say what runs.")

STAGES = Metric("holdfast_stages", MetricKind.GAUGE, (*_STAGE, "state"), "Stages of items by state.")
DUE_AGE = Metric(
    "holdfast_due_age_seconds",
    MetricKind.GAUGE,
    _STAGE,
    "How long the oldest of the next items could have been claimed; 0 if none waits.",
)
BUDGET = Metric(
    "holdfast_budget_remaining",
    MetricKind.GAUGE,
    _RESOURCE,
    "Money left of the budget, without what is set aside; of two budgets, the smaller rest.",
    MICRO,
)
IN_DOUBT = Metric("holdfast_in_doubt", MetricKind.GAUGE, _STAGE, "Paid calls in doubt now, for a person to settle.")
SLOTS = Metric("holdfast_resource_slots_used", MetricKind.GAUGE, _RESOURCE, "Attempts that use the resource now.")
BUCKET = Metric(
    "holdfast_resource_tokens",
    MetricKind.GAUGE,
    _RESOURCE,
    "Attempts that the rate of the resource allows at once now.",
)
COOL_DOWN = Metric(
    "holdfast_resource_cooldown_seconds",
    MetricKind.GAUGE,
    _RESOURCE,
    "How long nobody uses the resource, because its provider asked for a pause.",
)
OPEN = Metric(
    "holdfast_resource_open", MetricKind.GAUGE, _RESOURCE, "1 while the circuit breaker is open and no attempt begins."
)
WORKERS = Metric("holdfast_workers", MetricKind.GAUGE, ("version",), "Workers that are alive, by version of holdfast.")
BEAT_AGE = Metric(
    "holdfast_worker_beat_age_seconds",
    MetricKind.GAUGE,
    ("version",),
    "Time since the last heartbeat, of the living worker for which it is longest.",
)
SCHEMA = Metric("holdfast_schema_version", MetricKind.GAUGE, _WHERE, "The version of the tables.")

#: What every worker counts by itself, and what is true of a whole store.
OF_WORKERS = (ATTEMPTS, ATTEMPT_DURATION, WAIT, COST, TOKENS, IN_DOUBT_TOTAL, COMMIT, BATCH, BUILD)
OF_STORE = (STAGES, DUE_AGE, BUDGET, IN_DOUBT, SLOTS, BUCKET, COOL_DOWN, OPEN, WORKERS, BEAT_AGE, BUILD, SCHEMA)
