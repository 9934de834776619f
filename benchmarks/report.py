"""Figures as a person reads them: medians, from low to high, and ratios between figures of one round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

#: One measurement: what, stages, round, items, seconds, cpu_seconds.
Measured = dict[str, Any]


def spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    return f"{show(median(values))} ({show(min(values))}–{show(max(values))})"


def summary(measured: list[Measured]) -> list[dict[str, Any]]:
    """Per number of stages and way: items and steps per second, CPU per step, and the share of the raw loop's rate."""
    rows = []
    by_round = {(one["stages"], one["what"], one["round"]): one for one in measured}
    for stages, what in dict.fromkeys((one["stages"], one["what"]) for one in measured):
        same = [one for one in measured if (one["stages"], one["what"]) == (stages, what)]
        beside = [by_round[stages, "raw", one["round"]] for one in same]
        rows.append(
            {
                "stages": stages,
                "what": what,
                "items_per_second": [one["items"] / one["seconds"] for one in same],
                "steps_per_second": [one["items"] * stages / one["seconds"] for one in same],
                "against_raw": [raw["seconds"] / one["seconds"] for one, raw in zip(same, beside, strict=True)],
                "cpu_us_per_step": [
                    one["cpu_seconds"] * 1e6 / one["items"] / stages for one in same if "cpu_seconds" in one
                ],
            }
        )
    return rows


def rates(title: str, rows: list[dict[str, Any]]) -> str:
    lines = [[title, "items/s", "steps/s", "against raw", "CPU µs/step"]]
    for row in rows:
        many = f"{row['stages']} stage{'s' if row['stages'] > 1 else ''}"
        name = {"raw": "raw loop", "async": "async handler", "sync": "sync handler"}[row["what"]]
        lines.append(
            [
                f"{many}, {name}",
                spread(row["items_per_second"], _whole),
                spread(row["steps_per_second"], _whole),
                "" if row["what"] == "raw" else spread(row["against_raw"], _ratio),
                spread(row["cpu_us_per_step"], _whole) if row["cpu_us_per_step"] else "",
            ]
        )
    return _table(lines)


def claim_costs(costs: list[dict[str, Any]]) -> str:
    lines = [["claim of 500, with its commit", "few waiting", "many waiting", "many against few"]]
    for cost in costs:
        few, many = cost["few"], cost["many"]
        lines.append(
            [
                cost["database"],
                f"{cost['waiting'][0]:,}: {spread(few, _ms)}",
                f"{cost['waiting'][1]:,}: {spread(many, _ms)}",
                spread([b / a for a, b in zip(few, many, strict=True)], _ratio),
            ]
        )
    return _table(lines)


def _table(lines: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    shown = []
    for number, line in enumerate(lines):
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        shown.append("  ".join(cells).rstrip())
        if number == 0:
            shown.append("-" * len(shown[0]))
    return "\n".join(shown)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
