"""Overview: every pipeline as a strip of stages, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.answers.limit import ResourceLimits
from holdfast.answers.status import PipelineStatus, StageStatus, Status
from holdfast.app import Holdfast
from holdfast.model.states import State
from holdfast.web.filters import Query
from holdfast.web.page import Page

#: The columns of the strips, and the states that each of them counts.
COLUMNS: Mapping[str, tuple[State, ...]] = {
    "waiting": (State.PENDING,),
    "running": (State.IN_PROGRESS,),
    "retrying": (State.RETRY_LATER,),
    "on hold": (State.ON_HOLD,),
    "failed": (State.FAILED, State.EXHAUSTED),
    "cancelled": (State.CANCELLED,),
    "done": (State.DONE, State.SKIPPED),
}


@dataclass(frozen=True)
class Overview:
    status: Status
    limits: ResourceLimits


@dataclass(frozen=True)
class InTheWay:
    """Something that keeps work from beginning."""

    where: str
    what: str
    since: datetime | None = None
    until: datetime | None = None
    #: A command that helps.
    do: str = ""


def ask(app: Holdfast, query: Query) -> Overview:
    return Overview(app.status(), app.limits())


def view(answer: Overview, query: Query) -> Mapping[str, Any]:
    return {
        "columns": COLUMNS,
        "count_of": _count_of,
        "in_the_way": list(_in_the_way(answer)),
        "workers": answer.status.workers,
    }


def _count_of(stage: StageStatus, states: Sequence[State]) -> int:
    return sum(stage.states.get(state, 0) for state in states)


def rows(answer: Overview) -> Iterable[Mapping[str, Any]]:
    for pipeline in answer.status.pipelines:
        for stage in pipeline.stages:
            counts = {state.value: stage.states.get(state, 0) for state in State}
            since = {"pending_since": stage.pending_since, "in_the_way": stage.held.text if stage.held else None}
            yield {"pipeline": pipeline.name, "stage": stage.name, **counts, **since}


def _in_the_way(answer: Overview) -> Iterable[InTheWay]:
    status = answer.status
    if status.cannot_write:
        yield InTheWay("the store", status.cannot_write)
    for pipeline in status.pipelines:
        yield from _of_pipeline(pipeline, status)
    for worker in status.workers:
        for guard in worker.guards:
            yield InTheWay(f"{guard.pipeline} on {worker.name}", guard.text, until=guard.until)
        if not worker.alive:
            yield InTheWay(f"worker {worker.name}", "is silent; others take over its work", since=worker.heartbeat_at)
    for one in answer.limits:
        if one.paused:
            yield InTheWay(one.name, f"paused: {one.reason or 'no reason given'}", until=one.paused_until)
        if one.cool_until:
            yield InTheWay(one.name, "cooling down after a rate limit", until=one.cool_until)
        if one.breaker != "closed":
            yield InTheWay(one.name, f"its breaker is {one.breaker} after {one.failures} failures in a row")


def _of_pipeline(pipeline: PipelineStatus, status: Status) -> Iterable[InTheWay]:
    if pipeline.paused:
        what = f"paused: {pipeline.reason or 'no reason given'}"
        do = f"holdfast resume {pipeline.name}"
        yield InTheWay(pipeline.name, what, pipeline.paused_at, pipeline.paused_until, do)
    offered = {name for worker in status.workers if worker.alive for name in worker.stages}
    for stage in pipeline.stages:
        where = f"{pipeline.name}/{stage.name}"
        if stage.held:
            yield InTheWay(where, stage.held.text, stage.pending_since, stage.held.until)
        for hold in stage.on_hold:
            yield InTheWay(where, hold.reason, do=hold.do)
        if stage.backfilling:
            yield InTheWay(where, "is new and is being back-filled")
        if stage.states.get(State.PENDING) and where not in offered:
            yield InTheWay(where, "no living worker offers this stage", stage.pending_since)


page = Page(name="overview", title="Overview", place=10, ask=ask, view=view, rows=rows)
