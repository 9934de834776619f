"""Blockers: everything in a store that keeps work from beginning, since when and until when."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from holdfast.answers.blocker import Blocker
from holdfast.answers.limit import ResourceLimit
from holdfast.answers.overview import Overview
from holdfast.answers.status import PipelineStatus, StageStatus, Status
from holdfast.model.states import State


def blockers(overview: Overview) -> Iterable[Blocker]:
    """Everything that keeps work from beginning."""
    status = overview.status
    if status.cannot_write:
        yield Blocker("the store", status.cannot_write)
    for pipeline in status.pipelines:
        yield from _of_pipeline(pipeline, status)
    for worker in status.workers:
        if not worker.alive:
            yield Blocker(
                f"worker {worker.name}", "is silent: a living one takes over its work", since=worker.heartbeat_at
            )
            continue
        for guard in worker.guards:
            yield Blocker(f"{guard.pipeline} on {worker.name}", guard.text, guard.since, guard.until)
    told = {
        (stage.held.resource, stage.held.reason)
        for pipeline in status.pipelines
        for stage in pipeline.stages
        if stage.held
    }
    for one in overview.limits:
        yield from _of_resource(one, {reason for resource, reason in told if resource == one.name})


def _of_resource(one: ResourceLimit, told: Collection[str]) -> Iterable[Blocker]:
    """What stages that wait for it do not say already."""
    if one.paused and not {"paused", "budget"} & set(told):
        yield Blocker(one.name, f"paused: {one.reason or 'no reason given'}", one.paused_at, one.paused_until)
    if one.cool_until and "cool_down" not in told:
        yield Blocker(one.name, "cooling down after a rate limit", one.cooled_at, one.cool_until)
    if one.breaker != "closed" and "breaker" not in told:
        what = f"its breaker is {one.breaker} after {one.failures} failures in a row"
        yield Blocker(one.name, what, one.breaker_opened_at, one.breaker_until)


def _of_pipeline(pipeline: PipelineStatus, status: Status) -> Iterable[Blocker]:
    if pipeline.paused:
        what = f"paused: {pipeline.reason or 'no reason given'}"
        do = f"holdfast resume {pipeline.name}"
        yield Blocker(pipeline.name, what, pipeline.paused_at, pipeline.paused_until, do)
    offered = {name for worker in status.workers if worker.alive for name in worker.stages}
    for stage in pipeline.stages:
        where = f"{pipeline.name}/{stage.name}"
        # A pause of the whole pipeline is one line.
        if stage.held and not pipeline.paused:
            resume = f"holdfast resume {where}" if stage.paused else None
            yield Blocker(where, stage.held.text, stage.held.since, stage.held.until, resume)
        for hold in stage.on_hold:
            yield Blocker(where, hold.reason, hold.since, do=hold.do)
        if stage.backfilling:
            yield Blocker(where, "is new and is being back-filled")
        if (stage.states.get(State.PENDING) or stage.due) and where not in offered:
            yield Blocker(where, "no living worker offers this stage", _alone_since(stage, where, status))


def _alone_since(stage: StageStatus, where: str, status: Status) -> datetime | None:
    """Since when nobody is there for the work of a stage: since it waits, or since the last worker was heard of."""
    heard = [worker.heartbeat_at for worker in status.workers if where in worker.stages]
    return max([*heard, *([stage.pending_since] if stage.pending_since else [])], default=None)
