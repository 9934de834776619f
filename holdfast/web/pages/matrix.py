"""Matrix: all items of a pipeline × its stages as one picture; a click leads to the items of a stretch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.answers.matrix import Matrix
from holdfast.app import Holdfast
from holdfast.model.states import State
from holdfast.web.filters import PIPELINE, Query
from holdfast.web.long_questions import Counting, OnStep
from holdfast.web.page import Page

#: How many stretches there are at most, and how many cells: the page stays below 100 kB.
MOST_STRETCHES, MOST_CELLS = 100, 500


#: The hatching of each state, beside its colour: the path of a tile of 6 × 6.
TILES: Mapping[str, str] = {
    State.PENDING: "M1 1.5h1M4 4.5h1",
    State.RETRY_LATER: "M0 6L6 0",
    State.IN_PROGRESS: "M1.5 0v6M4.5 0v6",
    State.ON_HOLD: "M2.5 0v6M0 2.5h6",
    State.DONE: "",
    State.SKIPPED: "M1.5 1.5h3v3h-3z",
    State.FAILED: "M0 0L6 6M0 6L6 0",
    State.EXHAUSTED: "M0 1.5h6M0 4.5h6",
    State.CANCELLED: "M0 0L6 6",
}


@dataclass(frozen=True)
class PipelineMatrix:
    pipelines: tuple[str, ...]
    #: Of the pipeline that was chosen, or of the first; None if there is none.
    matrix: Matrix | None


def walk(app: Holdfast, query: Query, on_step: OnStep) -> PipelineMatrix:
    known = {one.name: len(one.stages) for one in app.status().pipelines}
    chosen = query["pipeline"] or next(iter(known), None)
    if chosen is None:
        return PipelineMatrix((), None)
    rows = max(1, min(MOST_STRETCHES, MOST_CELLS // max(1, known.get(chosen, 1))))
    return PipelineMatrix(tuple(known), app.matrix(chosen, rows=rows, on_step=on_step))


def view(answer: PipelineMatrix | Counting, query: Query) -> Mapping[str, Any]:
    counting = answer if isinstance(answer, Counting) else None
    return {"counting": counting, "states": [state.value for state in State], "tiles": TILES}


def rows(answer: PipelineMatrix | Counting) -> Iterable[Mapping[str, Any]]:
    if isinstance(answer, Counting) or answer.matrix is None:
        return
    for stretch in answer.matrix.stretches:
        for cell in stretch.stages:
            counts = {state.value: cell.states.get(state, 0) for state in State}
            yield {
                "after": stretch.after,
                "until": stretch.until,
                "items": stretch.items,
                "stage": cell.stage,
                **counts,
            }


page = Page(
    name="matrix",
    title="Matrix",
    place=20,
    filters=(PIPELINE,),
    walk=walk,
    view=view,
    rows=rows,
    columns=("after", "until", "items", "stage", *(state.value for state in State)),
)
