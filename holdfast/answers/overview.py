"""An overview of a store: its pipelines and limits, the columns in which stages are counted, and the money of today."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

from holdfast.answers.blocker import Blocker
from holdfast.answers.cost import Costs
from holdfast.answers.limit import ResourceLimits
from holdfast.answers.rate_and_eta import StageRate
from holdfast.answers.status import StageStatus, Status
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
    #: Everything that keeps work from beginning, where it was asked for.
    blockers: tuple[Blocker, ...] = ()


def count_of(stage: StageStatus, states: Sequence[State]) -> int:
    return sum(stage.states.get(state, 0) for state in states)


def spent_today(costs: Costs, limits: ResourceLimits, now: datetime) -> dict[str | None, Decimal]:
    """What each pipeline has spent today, from sums by `BY_DAY`. A resource has the day of its time zone."""
    zones = {one.name: str(one.allowed.get("zone", "UTC")) for one in limits}
    spent: dict[str | None, Decimal] = defaultdict(Decimal)
    for one in costs.sums:
        if one.day == now.astimezone(ZoneInfo(zones.get(one.resource or "", "UTC"))).date():
            spent[one.pipeline] += one.spent
    return dict(spent)
