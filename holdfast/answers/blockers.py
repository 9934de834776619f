"""Blockers: everything in a store that keeps work from beginning, since when and until when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from holdfast.answers.overview import Overview
from holdfast.answers.status import PipelineStatus, Status
from holdfast.model.states import State


@dataclass(frozen=True)
class Blocker:
    """Something that keeps work from beginning."""

    where: str
    what: str
    since: datetime | None = None
    until: datetime | None = None
    #: A command that helps.
    do: str = ""


def blockers(overview: Overview) -> Iterable[Blocker]:
    """Everything that keeps work from beginning."""
    status = overview.status
    if status.cannot_write:
        yield Blocker("the store", status.cannot_write)
    for pipeline in status.pipelines:
        yield from _of_pipeline(pipeline, status)
    for worker in status.workers:
        for guard in worker.guards:
            yield Blocker(f"{guard.pipeline} on {worker.name}", guard.text, until=guard.until)
        if not worker.alive:
            yield Blocker(f"worker {worker.name}", "is silent; others take over its work", since=worker.heartbeat_at)
    for one in overview.limits:
        if one.paused:
            yield Blocker(one.name, f"paused: {one.reason or 'no reason given'}", until=one.paused_until)
        if one.cool_until:
            yield Blocker(one.name, "cooling down after a rate limit", until=one.cool_until)
        if one.breaker != "closed":
            yield Blocker(one.name, f"its breaker is {one.breaker} after {one.failures} failures in a row")


def _of_pipeline(pipeline: PipelineStatus, status: Status) -> Iterable[Blocker]:
    if pipeline.paused:
        what = f"paused: {pipeline.reason or 'no reason given'}"
        do = f"holdfast resume {pipeline.name}"
        yield Blocker(pipeline.name, what, pipeline.paused_at, pipeline.paused_until, do)
    offered = {name for worker in status.workers if worker.alive for name in worker.stages}
    for stage in pipeline.stages:
        where = f"{pipeline.name}/{stage.name}"
        if stage.held:
            yield Blocker(where, stage.held.text, stage.pending_since, stage.held.until)
        for hold in stage.on_hold:
            yield Blocker(where, hold.reason, do=hold.do)
        if stage.backfilling:
            yield Blocker(where, "is new and is being back-filled")
        if stage.states.get(State.PENDING) and where not in offered:
            yield Blocker(where, "no living worker offers this stage", stage.pending_since)
