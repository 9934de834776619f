"""How fast stages go, how long what waits will take, and the money of today: what an overview says beside counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from holdfast.answers.limit import ResourceLimits
from holdfast.answers.status import PipelineStatus, StageStatus, Status
from holdfast.answers.throughput import StageThroughput, Throughput
from holdfast.answers.units import amount
from holdfast.model.money import micros
from holdfast.model.states import State

#: How an attempt ends that leaves no work waiting.
ENDS = ("done", "skipped", "failed", "exhausted")


@dataclass(frozen=True)
class StageRate:
    """How fast a stage goes, by what workers have written of its attempts."""

    pipeline: str
    stage: str
    #: Attempts that ended in a minute, since the first of them in the time that was asked for.
    per_minute: float
    #: How long what waits takes at this pace; None if nothing waits or nothing moves.
    eta: timedelta | None
    #: When the last attempts ended: the beginning of their span.
    last_at: datetime | None


@dataclass(frozen=True)
class MoneyToday:
    """What was spent on a resource today."""

    resource: str
    spent: Decimal
    #: None if it has no budget per day.
    budget: Decimal | None
    #: Whether other pipelines spend from it, too.
    is_shared: bool


def rates(status: Status, throughput: Throughput) -> tuple[StageRate, ...]:
    past = {(one.pipeline, one.stage): one for one in throughput}
    offered = {name for worker in status.workers if worker.alive for name in worker.stages}
    return tuple(
        rate(pipeline, stage, past[pipeline.name, stage.name], f"{pipeline.name}/{stage.name}" in offered)
        for pipeline in status.pipelines
        for stage in pipeline.stages
        if (pipeline.name, stage.name) in past
    )


def rate(pipeline: PipelineStatus, stage: StageStatus, past: StageThroughput, is_offered: bool) -> StageRate:
    """Of one stage; nothing moves unless a living worker offers it."""
    waiting, ended = stage.states.get(State.PENDING, 0), past.ended_per_minute(*ENDS)
    moves = ended and is_offered and not pipeline.paused and not stage.held
    return StageRate(
        pipeline.name,
        stage.name,
        round(past.per_minute, 2),
        timedelta(seconds=round(waiting / ended * 60)) if waiting and moves else None,
        max((point.begins_at for point in past.points if point.attempts), default=None),
    )


def money_today(pipeline: PipelineStatus, limits: ResourceLimits) -> Iterable[MoneyToday]:
    """The resources that a pipeline's stages spend from, or have a budget for."""
    for one in limits:
        of = {stage.partition("/")[0] for stage in one.stages}
        budget = one.allowed.get("budget_per_day")
        if pipeline.name in of and (one.spent_today or budget is not None):
            most = None if budget is None else amount(micros(budget, what=one.name))
            yield MoneyToday(one.name, one.spent_today, most, len(of) > 1)
