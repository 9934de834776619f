"""Plans: what is stale, and what it would cost and take to run it again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

from holdfast.answers.answer import Answer, Answers
from holdfast.answers.text_tables import counted, spoken, table
from holdfast.answers.units import amount, length
from holdfast.model.money import micros
from holdfast.model.money import spoken as money

#: The reasons for which a result is stale.
_WHY = ("version", "type", "input changed", "upstream")


class OutdatedWorker(Answer, frozen=True):
    """A living worker with another version of a stage's code."""

    _brief: ClassVar = ("worker", "version")

    worker: str
    #: None for a worker of an older holdfast, which does not report it.
    version: str | None


class StagePlan(Answer, frozen=True):
    """What is stale at a stage, and what running it would do, cost and take, from what was recorded."""

    _brief: ClassVar = ("stage", "why", "sure", "perhaps", "cost")

    stage: str
    #: How many are stale for which reason.
    why: Mapping[str, int]
    #: How many are sure to run, and how many run only if the result of a stage before them changes.
    sure: int
    perhaps: int
    #: How many items begin at this stage, as far as the budget lasts: what an action counts.
    begins: int
    #: Of those that are sure, with one standard deviation.
    cost: Decimal
    spread: Decimal
    perhaps_cost: Decimal
    #: How long handlers take, one after another.
    handler_time: timedelta
    #: How many are not fast, where only that is wanted, by `cost` or `time`; and what they may cost.
    left_out: Mapping[str, int]
    left_out_cost: Decimal
    outdated_workers: tuple[OutdatedWorker, ...]

    @classmethod
    def from_forecast(cls, forecast: Any, outdated: Iterable[tuple[str, str | None]] = ()) -> StagePlan:
        return cls(
            stage=forecast.stage,
            why=dict(forecast.why),
            sure=forecast.sure,
            perhaps=forecast.perhaps,
            begins=forecast.begins,
            cost=amount(forecast.cost),
            spread=amount(round(forecast.spread)),
            perhaps_cost=amount(forecast.perhaps_cost),
            handler_time=length(forecast.took_us),
            left_out=dict(forecast.left_out),
            left_out_cost=amount(forecast.left_out_cost),
            outdated_workers=tuple(OutdatedWorker(*one) for one in outdated),
        )


class Effort(Answer, frozen=True):
    """The sum of several stages."""

    _brief: ClassVar = ("sure", "perhaps", "cost", "spread")

    sure: int
    perhaps: int
    cost: Decimal
    spread: Decimal
    perhaps_cost: Decimal
    handler_time: timedelta

    @classmethod
    def total_of(cls, stages: Sequence[StagePlan]) -> Effort:
        return cls(
            sure=sum(one.sure for one in stages),
            perhaps=sum(one.perhaps for one in stages),
            cost=amount(sum(micros(one.cost) for one in stages)),
            spread=amount(round(math.hypot(*(micros(one.spread) for one in stages)))),
            perhaps_cost=amount(sum(micros(one.perhaps_cost) for one in stages)),
            handler_time=sum((one.handler_time for one in stages), timedelta()),
        )

    def lines(self, width: int | None = None) -> list[str]:
        perhaps = f", perhaps {self.perhaps:,} more" if self.perhaps else ""
        more = f", perhaps {money(self.perhaps_cost)} more" if self.perhaps_cost else ""
        cost = about(self.cost, self.spread)
        return [f"total: {self.sure:,} to run{perhaps}; cost {cost}{more}; handler time {spoken(self.handler_time)}"]


class PlannedRun(NamedTuple):
    """A stage of an item that is sure to run, why, and what its last run has cost."""

    key: str
    stage: str
    why: str
    cost: Decimal


class Plan(Answers[StagePlan]):
    """What is stale in a pipeline, by stage."""

    #: A few of those that are sure to run, the first ones of each stage.
    samples: tuple[PlannedRun, ...] = ()

    @classmethod
    def from_forecasts(cls, forecasts: Sequence[Any], outdated: Mapping[str, Any]) -> Plan:
        made = cls(StagePlan.from_forecast(one, outdated.get(one.stage, ())) for one in forecasts)
        made.samples = tuple(
            PlannedRun(some.key, one.stage, some.why, amount(some.cost)) for one in forecasts for some in one.some
        )
        return made

    @property
    def total(self) -> Effort:
        return Effort.total_of(self)

    def lines(self, width: int | None = None) -> list[str]:
        rows = [
            [
                one.stage,
                counted(one.why, _WHY),
                one.sure,
                one.perhaps,
                about(one.cost, one.spread),
                money(one.perhaps_cost) if one.perhaps else "-",
                spoken(one.handler_time) if one.sure else "-",
            ]
            for one in self
            if one.why
        ]
        if not rows:
            return [] if self else ["Nothing is stale."]
        head = ["stage", "why", "run", "perhaps", "cost", "perhaps more", "handler time"]
        return table(head, rows, width=width, indent="  ", right=head[4:], least=("handler time", "perhaps more"))


def about(cost: Decimal, spread: Decimal) -> str:
    """A forecast for people: `400.00 ± 12.00`. What is uncertain has two digits that mean something."""
    exact = micros(spread)
    around = amount(round(exact, min(2 - len(str(exact)), 0)))
    return f"{money(cost)} ± {money(around)}" if around else money(cost)
