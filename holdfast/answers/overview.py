"""An overview of a store: its pipelines and limits, what stands in the way of work, and the money of today."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

from holdfast.answers.cost import Costs
from holdfast.answers.limit import ResourceLimits
from holdfast.answers.rate_and_eta import StageRate
from holdfast.answers.status import PipelineStatus, StageStatus, Status
from holdfast.model.states import State

#: The columns in which stages are counted, and the states that each of them counts.
COLUMNS: Mapping[str, tuple[State, ...]] = {
    "waiting": (State.PENDING,),
    "running": (State.IN_PROGRESS,),
    "retrying": (State.RETRY_LATER,),
    "on hold": (State.ON_HOLD,),
    "failed": (State.FAILED, State.EXHAUSTED),
    "cancelled": (State.CANCELLED,),
    "done": (State.DONE, State.SKIPPED),
}

#: What `spent_today` needs costs to be summed by.
BY_DAY = ("pipeline", "resource", "day")


@dataclass(frozen=True)
class Overview:
    status: Status
    limits: ResourceLimits
    #: By the attempts of the last hour, where they were asked for.
    rates: tuple[StageRate, ...] = ()


@dataclass(frozen=True)
class InTheWay:
    """Something that keeps work from beginning."""

    where: str
    what: str
    since: datetime | None = None
    until: datetime | None = None
    #: A command that helps.
    do: str = ""


def count_of(stage: StageStatus, states: Sequence[State]) -> int:
    return sum(stage.states.get(state, 0) for state in states)


def in_the_way(overview: Overview) -> Iterable[InTheWay]:
    """Everything that keeps work from beginning."""
    status = overview.status
    if status.cannot_write:
        yield InTheWay("the store", status.cannot_write)
    for pipeline in status.pipelines:
        yield from _of_pipeline(pipeline, status)
    for worker in status.workers:
        for guard in worker.guards:
            yield InTheWay(f"{guard.pipeline} on {worker.name}", guard.text, until=guard.until)
        if not worker.alive:
            yield InTheWay(f"worker {worker.name}", "is silent; others take over its work", since=worker.heartbeat_at)
    for one in overview.limits:
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


def spent_today(costs: Costs, limits: ResourceLimits, now: datetime) -> dict[str | None, Decimal]:
    """What each pipeline has spent today, from sums by `BY_DAY`. A resource has the day of its time zone."""
    zones = {one.name: str(one.allowed.get("zone", "UTC")) for one in limits}
    spent: dict[str | None, Decimal] = defaultdict(Decimal)
    for one in costs.sums:
        if one.day == now.astimezone(ZoneInfo(zones.get(one.resource or "", "UTC"))).date():
            spent[one.pipeline] += one.spent
    return dict(spent)
