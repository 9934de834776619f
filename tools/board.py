"""Writes the Grafana board, from a table of what it shows: `python -m tools.board > deploy/grafana.json`.

No job name and no name of a data source is in it: both are chosen where it is imported. A test compares the file with this.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 24, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
MINE = 'pipeline=~"$pipeline"'
OPEN = 'state=~"pending|retry_later|in_progress|on_hold"'
LOST = 'outcome="lost"'
RATE = "[$__rate_interval]"
STAGE = "{{pipeline}}/{{stage}}"


@dataclass(frozen=True)
class Panel:
    title: str
    #: What is asked, and how its lines are named.
    lines: tuple[tuple[str, str], ...]
    unit: str = "short"
    about: str = ""
    kind: str = "timeseries"
    stacked: bool = False


def quantiles(metric: str, by: str, legend: str, where: str = "") -> tuple[tuple[str, str], ...]:
    """The middle and the slow end of a histogram."""
    buckets = f"sum by (le, {by}) (rate({metric}_bucket{where}{RATE}))"
    return tuple((f"histogram_quantile({share}, {buckets})", f"{legend} {name}") for share, name in _SHARES)


def _rate(series: str) -> str:
    return f"sum by (op) (rate({series}{RATE}))"


_SHARES = ((0.5, "p50"), (0.95, "p95"))

ROWS: dict[str, tuple[Panel, ...]] = {
    "Work": (
        Panel(
            "Stages of items by state",
            ((f"sum by (state) (holdfast_stages{{{MINE}}})", "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Open work by stage",
            ((f"sum by (pipeline, stage) (holdfast_stages{{{MINE}, {OPEN}}})", STAGE),),
        ),
        Panel(
            "Failed and exhausted",
            (
                (
                    f'sum by (pipeline, stage, state) (holdfast_stages{{{MINE}, state=~"failed|exhausted"}}) > 0',
                    f"{STAGE} {{{{state}}}}",
                ),
            ),
        ),
        Panel(
            "Attempts by outcome",
            ((f"sum by (outcome) (rate(holdfast_attempts_total{{{MINE}}}{RATE}))", "{{outcome}}"),),
            unit="ops",
            stacked=True,
        ),
        Panel(
            "Attempts by stage",
            ((f"sum by (pipeline, stage) (rate(holdfast_attempts_total{{{MINE}}}{RATE}))", STAGE),),
            unit="ops",
        ),
        Panel(
            "Lost attempts",
            ((f"sum by (pipeline, stage) (increase(holdfast_attempts_total{{{MINE}, {LOST}}}[$__range])) > 0", STAGE),),
            about="Attempts whose worker died or was cut off, in the time that is shown.",
            kind="bargauge",
        ),
    ),
    "Latency": (
        Panel(
            "Age of the oldest work that is due",
            ((f"max by (pipeline, stage) (holdfast_due_age_seconds{{{MINE}}})", STAGE),),
            unit="s",
        ),
        Panel(
            "How long work waits",
            quantiles("holdfast_wait_seconds", "pipeline, stage", STAGE, f"{{{MINE}}}"),
            unit="s",
        ),
        Panel(
            "How long attempts take",
            quantiles("holdfast_attempt_duration_seconds", "pipeline, stage", STAGE, f"{{{MINE}}}"),
            unit="s",
        ),
    ),
    "Money": (
        Panel(
            "Cost per hour",
            ((f"sum by (resource) (increase(holdfast_cost_total{{{MINE}}}[1h]))", "{{resource}}"),),
            about="Settled amounts only, each in the unit of its resource.",
            stacked=True,
        ),
        Panel("Budget that remains", (("min by (resource) (holdfast_budget_remaining)", "{{resource}}"),)),
        Panel(
            "Tokens per second",
            ((f"sum by (model, direction) (rate(holdfast_tokens_total{{{MINE}}}{RATE}))", "{{model}} {{direction}}"),),
        ),
        Panel(
            "Paid calls in doubt",
            (
                (f"sum by (pipeline, stage) (holdfast_in_doubt{{{MINE}}})", f"{STAGE} now"),
                (f"sum by (pipeline, stage) (increase(holdfast_in_doubt_total{{{MINE}}}[1h]))", f"{STAGE} in an hour"),
            ),
            about="May have been charged, until somebody settles them: holdfast resolve.",
        ),
    ),
    "Limits": (
        Panel("Slots in use", (("max by (resource) (holdfast_resource_slots_used)", "{{resource}}"),)),
        Panel("Tokens in the bucket", (("min by (resource) (holdfast_resource_tokens)", "{{resource}}"),)),
        Panel(
            "Cool-down that is left",
            (("max by (resource) (holdfast_resource_cooldown_seconds)", "{{resource}}"),),
            unit="s",
        ),
        Panel(
            "Open breakers",
            (("max by (resource) (holdfast_resource_open)", "{{resource}}"),),
            about="1 while a circuit breaker keeps everybody from using the resource.",
        ),
    ),
    "Workers": (
        Panel("Workers by version", (("sum by (version) (holdfast_workers)", "{{version}}"),), stacked=True),
        Panel(
            "Oldest heartbeat of a living worker",
            (("max by (version) (holdfast_worker_beat_age_seconds)", "{{version}}"),),
            unit="s",
        ),
        Panel(
            "Versions that report",
            (("count by (version, store) (holdfast_build_info)", "{{version}} on {{store}}"),),
            kind="bargauge",
        ),
    ),
    "Store": (
        Panel("How long commits take", quantiles("holdfast_store_commit_seconds", "op", "{{op}}"), unit="s"),
        Panel(
            "Commits per second",
            ((_rate("holdfast_store_commit_seconds_count"), "{{op}}"),),
            unit="ops",
        ),
        Panel(
            "Rows per commit",
            ((f"{_rate('holdfast_store_batch_rows_sum')} / {_rate('holdfast_store_batch_rows_count')}", "{{op}}"),),
        ),
        Panel("Schema version", (("max by (store) (holdfast_schema_version)", "{{store}}"),), kind="stat"),
    ),
}


def board() -> dict[str, Any]:
    return {
        "uid": "holdfast",
        "title": "holdfast",
        "description": "What a store and its workers do. Made by tools/board.py.",
        "tags": ["holdfast"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source_variable(), _pipeline_variable()]},
        "panels": list(_panels()),
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _pipeline_variable() -> dict[str, Any]:
    query = "label_values(holdfast_stages, pipeline)"
    return {
        "name": "pipeline",
        "label": "Pipeline",
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "pipelines"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panels() -> Iterator[dict[str, Any]]:
    """Each row below the one before, its panels side by side, three to a line."""
    number, top = 1, 0
    for title, panels in ROWS.items():
        place = {"h": 1, "w": WIDTH, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        number, top = number + 1, top + 1
        for first in range(0, len(panels), 3):
            line = panels[first : first + 3]
            width = WIDTH // len(line)
            for column, panel in enumerate(line):
                yield _panel(panel, number, {"h": HEIGHT, "w": width, "x": column * width, "y": top})
                number += 1
            top += HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 20} if panel.stacked else {}
    at_once = panel.kind != "timeseries"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            | ({"instant": True} if at_once else {})
            for at, (expression, legend) in enumerate(panel.lines)
        ],
    }


if __name__ == "__main__":
    json.dump(board(), sys.stdout, indent=1)
    print()
