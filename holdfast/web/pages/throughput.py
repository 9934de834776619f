"""Throughput: attempts over time by outcome, and how long they ran and had waited, for each stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from markupsafe import Markup

from holdfast.answers.throughput import StageThroughput, Throughput, ThroughputPoint
from holdfast.app import Holdfast
from holdfast.web import charts
from holdfast.web.filters import PIPELINE, STAGE, Filter, Query, link
from holdfast.web.long_lists import AFTER, Line, in_parts
from holdfast.web.page import Page
from holdfast.web.rendering import number, span

LAST = Filter("last", "Last", choices=("1h", "6h", "24h", "7d", "14d"), default="1h", as_chips=True)

#: So many stages have charts; those of the others are a link away.
MOST_CHARTS = 3
#: Bars that a chart has at least, however young its stage is.
LEAST_BARS = 12
OUTCOMES = ("done", "skipped", "retried", "failed", "exhausted", "handed_back", "lost")
TIMES = {"run p50": "run_p50", "run p95": "run_p95", "wait p50": "wait_p50", "wait p95": "wait_p95"}
#: Of the CSV.
COLUMNS = (
    *("pipeline", "stage", "begins_at", "span_seconds", "attempts"),
    *OUTCOMES,
    *(f"{part}_seconds" for part in TIMES.values()),
)
#: Shorter times are not told apart.
LEAST_SECONDS = 0.001
DAY = timedelta(days=1)


@dataclass(frozen=True)
class StageCharts:
    stage: StageThroughput
    attempts: Markup
    legend: Markup
    times: Markup
    numbers: Markup


def ask(app: Holdfast, query: Query) -> Throughput:
    return app.throughput(query["pipeline"], stage=query["stage"], last=query["last"])


def view(answer: Throughput, query: Query) -> Mapping[str, Any]:
    return {
        **in_parts(_lines(answer), query),
        "patterns": charts.patterns(),
        "draw": _charts,
        "left_out": max(0, sum(1 for one in answer if one.attempts) - MOST_CHARTS),
        "dashes": charts.legend((), TIMES),
        "said": charts.said,
        "alone": lambda one: query.link(pipeline=one.pipeline, stage=one.stage),
        "failed": lambda one: link("errors", pipeline=one.pipeline, stage=one.stage),
    }


def _lines(answer: Throughput) -> Iterator[Line]:
    """The stages, then charts of the first of them that had attempts."""
    yield from (Line("stage", (n, one), f"stage-{one.pipeline}/{one.stage}") for n, one in enumerate(answer, 1))
    if not answer:
        return
    drawn = [one for one in answer if one.attempts][:MOST_CHARTS]
    yield Line("note", drawn, "note")
    # The same for all charts of a page, which can then be compared.
    begin = min((charts.first_shown([point.attempts for point in one.points], LEAST_BARS) for one in drawn), default=0)
    for n, one in enumerate(drawn, 1):
        yield Line("chart", (n, one, begin), f"chart-{one.pipeline}/{one.stage}", n)


def _charts(n: int, one: StageThroughput, begin: int) -> StageCharts:
    points = one.points[begin:]
    whole = points[-1].begins_at - points[0].begins_at > DAY
    places = [_moment(point.begins_at, whole) for point in points]
    name = f"{one.pipeline}/{one.stage}"
    found = _in_order(one.outcomes)
    layers = [charts.Layer(outcome, [point.outcomes.get(outcome, 0) for point in points]) for outcome in found]
    lines = [charts.Line(label, [_seconds(getattr(point, part)) for point in points]) for label, part in TIMES.items()]
    label = f"{name}: attempts that ended, for each {span(one.span)}, from {places[0]} to {places[-1]} UTC"
    return StageCharts(
        one,
        charts.bar_chart(label, places, layers, lambda value: f"{value:,.4g}"),
        charts.legend(found),
        charts.line_chart(f"{name}: how long attempts ran and had waited", places, lines, _said, LEAST_SECONDS),
        charts.numbers(
            f"numbers-{n}",
            f"{name}: numbers",
            ("UTC", "attempts", *map(charts.said, found), *TIMES),
            (_row(place, point, found) for place, point in zip(places, points, strict=True) if point.attempts),
        ),
    )


def _row(place: str, point: ThroughputPoint, found: Iterable[str]) -> list[str]:
    counts = [point.attempts, *(point.outcomes.get(outcome, 0) for outcome in found)]
    return [place, *map(number, counts), *(span(getattr(point, part)) for part in TIMES.values())]


def _in_order(outcomes: Mapping[str, int]) -> list[str]:
    return [name for name in OUTCOMES if outcomes.get(name)]


def _moment(at: datetime, with_day: bool) -> str:
    return at.strftime("%m-%d %H:%M" if with_day else "%H:%M")


def _seconds(took: timedelta | None) -> float | None:
    return None if took is None else took.total_seconds()


def _said(value: float) -> str:
    return span(timedelta(seconds=value))


def rows(answer: Throughput) -> Iterable[Mapping[str, Any]]:
    """A line for each span in which something ended."""
    for one in answer:
        for point in one.points:
            if point.attempts:
                times = {part: _seconds(getattr(point, part)) for part in TIMES.values()}
                counts = {name: point.outcomes.get(name, 0) for name in OUTCOMES}
                begins = {"begins_at": point.begins_at, "span_seconds": one.span.total_seconds()}
                yield {
                    "pipeline": one.pipeline,
                    "stage": one.stage,
                    **begins,
                    "attempts": point.attempts,
                    **counts,
                    **{f"{name}_seconds": value for name, value in times.items()},
                }


page = Page(
    name="throughput",
    title="Throughput",
    place=55,
    filters=(LAST, PIPELINE, STAGE, AFTER),
    ask=ask,
    view=view,
    rows=rows,
    columns=COLUMNS,
)
