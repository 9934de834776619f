"""Overview: every pipeline as a strip of stages, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from holdfast.web.page import Page
from holdfast.worker.background.throughput import WRITE_SECONDS

#: Of the CSV.
CSV_COLUMNS = (
    *("pipeline", "stage"),
    *(state.value for state in State),
    *("pending_since", "in_the_way", "per_minute", "eta_seconds"),
)


def ask(app: Holdfast, query: Query) -> Overview:
    status = app.status()
    return Overview(status, app.limits(), rates(status, app.throughput(last="1h")))


def view(answer: Overview, query: Query) -> Mapping[str, Any]:
    return {
        "columns": COLUMNS,
        "count_of": count_of,
        "blockers": list(blockers(answer)),
        "workers": answer.status.workers,
        "rates": _by_stage(answer),
        "rates_at": max((one.last_at for one in answer.rates if one.last_at), default=None),
        "rates_written_seconds": round(WRITE_SECONDS),
        "strip": _strip,
        "money_today": lambda pipeline: list(money_today(pipeline, answer.limits)),
    }


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


page = Page(name="overview", title="Overview", place=10, ask=ask, view=view, rows=rows, columns=CSV_COLUMNS)
