"""Limits: every resource with what is allowed, used and in the way; pipelines and stages that can be paused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.answers.limit import ResourceLimit, ResourceLimits
from holdfast.answers.status import PipelineStatus, StageStatus
from holdfast.app import Holdfast
from holdfast.web.filters import Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.long_lists import AFTER, Line, in_parts
from holdfast.web.page import Page


@dataclass(frozen=True)
class LimitsPage:
    limits: ResourceLimits
    pipelines: tuple[PipelineStatus, ...]


def ask(app: Holdfast, query: Query) -> LimitsPage:
    return LimitsPage(app.limits(), app.status().pipelines)


def view(answer: LimitsPage, query: Query) -> Mapping[str, Any]:
    return in_parts(_lines(answer), query)


def _lines(answer: LimitsPage) -> Iterator[Line]:
    """Resources, then pipelines with their stages."""
    yield from (Line("resource", one, f"resource-{one.name}") for one in answer.limits)
    if not answer.limits:
        yield Line("empty", "No stage uses a resource.", "no-resource")
    for pipeline in answer.pipelines:
        yield Line("place", (pipeline.name, pipeline), f"place-{pipeline.name}")
        for stage in pipeline.stages:
            name = f"{pipeline.name}/{stage.name}"
            yield Line("place", (name, stage), f"place-{name}")
    if not answer.pipelines:
        yield Line("empty", "There are no pipelines in this store yet.", "no-pipeline")


def rows(answer: LimitsPage) -> Iterable[Mapping[str, Any]]:
    """Resources, then pipelines with their stages, which can be paused."""
    for one in answer.limits:
        yield {"kind": "resource", **one.json()}
    for pipeline in answer.pipelines:
        yield {"kind": "pipeline", "name": pipeline.name, **_pause(pipeline)}
        for stage in pipeline.stages:
            yield {"kind": "stage", "name": f"{pipeline.name}/{stage.name}", **_pause(stage)}


def _pause(one: PipelineStatus | StageStatus) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ("paused", "reason", "paused_at", "paused_until")}


page = Page(
    name="limits",
    title="Limits",
    place=60,
    filters=(AFTER,),
    ask=ask,
    view=view,
    rows=rows,
    columns=("kind", *columns_of(ResourceLimit), "paused_at"),
)
