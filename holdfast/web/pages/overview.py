"""Overview: every pipeline as a strip of stages, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from holdfast.answers.blockers import blockers
from holdfast.answers.overview import COLUMNS, Overview, count_of
from holdfast.answers.rate_and_eta import StageRate, money_today, rates
from holdfast.answers.status import StageStatus
from holdfast.app import Holdfast
from holdfast.model.states import State
from holdfast.web import charts
from holdfast.web.filters import Query
from holdfast.web.long_lists import AFTER, Line, in_parts
from holdfast.web.page import Page
from holdfast.worker.background.throughput import WRITE_SECONDS

#: Of the CSV.
CSV_COLUMNS = (
    *("pipeline", "stage"),
    *(state.value for state in State),
    *("pending_since", "in_the_way", "per_minute", "eta_seconds"),
)
#: So much of what stands in the way comes before the stages.
MOST_FIRST = 50


def ask(app: Holdfast, query: Query) -> Overview:
    status = app.status()
    found = Overview(status, app.limits(), rates(status, app.throughput(last="1h")))
    return replace(found, blockers=tuple(blockers(found)))


def view(answer: Overview, query: Query) -> Mapping[str, Any]:
    return {
        "columns": COLUMNS,
        "count_of": count_of,
        **in_parts(_lines(answer), query),
        "rates": _by_stage(answer),
        "rates_at": max((one.last_at for one in answer.rates if one.last_at), default=None),
        "rates_written_seconds": round(WRITE_SECONDS),
        "strip": _strip,
        "money_today": lambda pipeline: list(money_today(pipeline, answer.limits)),
    }


def _lines(answer: Overview) -> Iterator[Line]:
    """What stands in the way, stages, limits and workers. Where very much stands in the way, the rest of it comes last."""
    blocks = [Line("blocker", one, f"way-{one.where}-{one.what}") for one in answer.blockers]
    yield from blocks[:MOST_FIRST]
    for n, pipeline in enumerate(answer.status.pipelines, 1):
        for stage in pipeline.stages or (None,):
            yield Line("stage", (n, pipeline, stage), f"{pipeline.name}/{stage.name if stage else ''}", pipeline.name)
    yield Line("note", None, "note")
    yield from (Line("limit", one, f"limit-{one.name}") for one in answer.limits)
    yield from (Line("worker", one, f"worker-{one.id}") for one in answer.status.workers)
    if not answer.status.workers:
        yield Line("no worker", None, "no-worker")
    yield from (Line("more", one.value, one.place) for one in blocks[MOST_FIRST:])


def _strip(stage: StageStatus) -> Markup:
    """How far a stage is, beside the numbers: what is done first, what waits last."""
    counts = {name: count_of(stage, states) for name, states in COLUMNS.items()}
    ordered = sorted(COLUMNS, key=lambda name: (name == "waiting", name != "done"))
    label = ", ".join(f"{counts[name]:,} {name}" for name in ordered if counts[name]) or "nothing yet"
    return charts.strip(label, [(COLUMNS[name][0].value, counts[name]) for name in ordered])


def _by_stage(answer: Overview) -> dict[tuple[str, str], StageRate]:
    return {(one.pipeline, one.stage): one for one in answer.rates}


def rows(answer: Overview) -> Iterable[Mapping[str, Any]]:
    known = _by_stage(answer)
    for pipeline in answer.status.pipelines:
        for stage in pipeline.stages:
            counts = {state.value: stage.states.get(state, 0) for state in State}
            since = {"pending_since": stage.pending_since, "in_the_way": stage.held.text if stage.held else None}
            rate = known.get((pipeline.name, stage.name))
            eta = rate.eta.total_seconds() if rate and rate.eta else None
            pace = {"per_minute": rate.per_minute if rate else None, "eta_seconds": eta}
            yield {"pipeline": pipeline.name, "stage": stage.name, **counts, **since, **pace}


page = Page(
    name="overview",
    title="Overview",
    place=10,
    filters=(AFTER,),
    ask=ask,
    view=view,
    rows=rows,
    columns=CSV_COLUMNS,
)
