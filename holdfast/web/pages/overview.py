"""Overview: every pipeline as a strip of stages, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.answers.overview import COLUMNS, Overview, count_of, in_the_way
from holdfast.app import Holdfast
from holdfast.model.states import State
from holdfast.web.filters import Query
from holdfast.web.page import Page


def ask(app: Holdfast, query: Query) -> Overview:
    return Overview(app.status(), app.limits())


def view(answer: Overview, query: Query) -> Mapping[str, Any]:
    return {
        "columns": COLUMNS,
        "count_of": count_of,
        "in_the_way": list(in_the_way(answer)),
        "workers": answer.status.workers,
    }


def rows(answer: Overview) -> Iterable[Mapping[str, Any]]:
    for pipeline in answer.status.pipelines:
        for stage in pipeline.stages:
            counts = {state.value: stage.states.get(state, 0) for state in State}
            since = {"pending_since": stage.pending_since, "in_the_way": stage.held.text if stage.held else None}
            yield {"pipeline": pipeline.name, "stage": stage.name, **counts, **since}


page = Page(name="overview", title="Overview", place=10, ask=ask, view=view, rows=rows)
