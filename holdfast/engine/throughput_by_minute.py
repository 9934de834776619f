"""Minutes: how many attempts ended in each minute, how, how long they ran and how long they had waited.

Workers write rows of their own, a few a minute, beside their work. After some minutes all rows of a minute become one; after
some hours those of a quarter of an hour do; after two weeks they go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from holdfast.clock import SECOND
from holdfast.engine.layout import layout
from holdfast.model.attempt_counts import MINUTE_US, AttemptCounts
from holdfast.model.duration_buckets import percentile_us
from holdfast.model.facts import Facts
from holdfast.store import Transaction

#: Rows younger than this are not joined: a worker may still add to their minute.
JOIN_AFTER_MINUTES = 3
#: From then on a row stands for a quarter of an hour.
COARSE_AFTER_MINUTES = 4 * 60
COARSE_MINUTES = 15
#: Rows older than this are no longer looked at in order to join them.
JOIN_WITHIN_MINUTES = 24 * 60
KEPT_MINUTES = 14 * 24 * 60
#: How many rows are joined in one transaction.
CHUNK = 2000
#: How many points a curve has at most.
MOST_POINTS = 120
#: For how many hours failures of one cause are counted by the hour.
TREND_HOURS = 24


def write(tx: Transaction, slot: int, counted: Mapping[tuple[int, int], AttemptCounts]) -> None:
    """Write what a worker has counted, by minute and stage; the slot is a new number every time."""
    tx.run_rows("add_minutes", [(minute, stage, slot, counts.text()) for (minute, stage), counts in counted.items()])


def are_to_join(tx: Transaction) -> bool:
    """Whether there is something to join."""
    return bool(tx.run("minutes_to_join", **_ages(tx), most=1))


def join(tx: Transaction, most: int = CHUNK) -> int:
    """Join rows, and delete those past their time; return how many were joined. The transaction must be exclusive."""
    ages = _ages(tx)
    rows = tx.run("minutes_to_join", **ages, most=most)
    sums: dict[tuple[int, int], list[AttemptCounts]] = defaultdict(list)
    for minute, stage, _, text in rows:
        begin = minute - minute % COARSE_MINUTES if minute < ages["old"] else minute
        sums[begin, stage] += _readable(text)
    for minute, stage, text in tx.run("joined_minutes", minutes=sorted({minute for minute, _ in sums})):
        if (minute, stage) in sums:
            sums[minute, stage] += _readable(text)
    tx.run_rows("forget_minutes", [row[:3] for row in rows])
    joined = [(minute, stage, 0, AttemptCounts.sum(parts).text()) for (minute, stage), parts in sorted(sums.items())]
    tx.run_rows("put_joined_minutes", joined)
    tx.run("delete_minutes", before=tx.now // MINUTE_US - KEPT_MINUTES)
    return len(rows)


def throughput(tx: Transaction, pipeline: str | None, stage: str | None, minutes: int) -> list[Facts]:
    """For each stage, the attempts of the last `minutes`, in spans of equal length, the last of which is not yet over."""
    chosen = {row.id: row for row in layout(tx).chosen(pipeline, stage) if row.active}
    now = tx.now // MINUTE_US
    span = _span(minutes)
    # Whole spans, so that quarters of an hour are not cut.
    first = (now - minutes) // span * span
    by_stage: dict[int, dict[int, list[AttemptCounts]]] = {number: defaultdict(list) for number in chosen}
    for minute, number, text in tx.run("read_minutes", **{"from": first, "until": now + 1}):
        if number in by_stage:
            by_stage[number][(minute - first) // span] += _readable(text)
    return [
        {
            "pipeline": row.pipeline_name,
            "stage": row.name,
            "span_seconds": 60.0 * span,
            **_told(AttemptCounts.sum(one for several in by_stage[number].values() for one in several)),
            "points": [
                {"begins_at": (first + place * span) * MINUTE_US, **_told(AttemptCounts.sum(by_stage[number][place]))}
                for place in range((now - first) // span + 1)
            ],
        }
        for number, row in sorted(chosen.items(), key=lambda one: (one[1].pipeline_name, one[1].position))
    ]


def failures_by_hour(tx: Transaction, stages: Collection[int]) -> dict[str, list[int]]:
    """How many attempts at these stages failed in each of the last hours, the oldest first, by error group."""
    first = tx.now // MINUTE_US - TREND_HOURS * 60 + 1
    # A row of a quarter of an hour that begins before it belongs to it, too.
    begin = first - first % COARSE_MINUTES
    found: dict[str, list[int]] = defaultdict(lambda: [0] * TREND_HOURS)
    for minute, stage, text in tx.run("read_minutes", **{"from": begin, "until": first + TREND_HOURS * 60}):
        if stage in stages:
            for counts in _readable(text):
                for group, n in counts.groups.items():
                    found[group][max(0, minute - first) // 60] += n
    return found


def _span(minutes: int) -> int:
    """How many minutes a point of a curve stands for."""
    fine = -(-minutes // MOST_POINTS)
    return fine if minutes <= COARSE_AFTER_MINUTES else -(-fine // COARSE_MINUTES) * COARSE_MINUTES


def _told(counts: AttemptCounts) -> Facts:
    return {
        "outcomes": dict(sorted(counts.outcomes.items())),
        "attempts": sum(counts.outcomes.values()),
        **{
            f"{name}_{label}_seconds": percentile_us(buckets, share) / SECOND if buckets else None
            for name, buckets in (("run", counts.run), ("wait", counts.wait))
            for label, share in (("p50", 50), ("p95", 95))
        },
    }


def _ages(tx: Transaction) -> dict[str, Any]:
    now = tx.now // MINUTE_US
    return {
        "from": now - JOIN_WITHIN_MINUTES,
        "before": now - JOIN_AFTER_MINUTES,
        "old": now - COARSE_AFTER_MINUTES,
        "span": COARSE_MINUTES,
    }


def _readable(text: str) -> list[AttemptCounts]:
    counts = AttemptCounts.read(text)
    return [] if counts is None else [counts]
