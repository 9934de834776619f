"""Costs: what was spent, by what one chooses, and day by day against the budgets; what is in doubt stands apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from markupsafe import Markup

from holdfast.answers.cost import Costs, CostSum
from holdfast.answers.limit import ResourceLimit, ResourceLimits
from holdfast.answers.text_tables import as_text
from holdfast.answers.units import amount
from holdfast.app import Holdfast
from holdfast.model.money import micros
from holdfast.model.money import spoken as money
from holdfast.web import charts
from holdfast.web.filters import PIPELINE, Filter, Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.long_lists import AFTER, Line, in_parts
from holdfast.web.page import Page
from holdfast.web.reprocessing import NO_CODE, pipelines_known

BY = Filter(
    "by",
    "By",
    choices=("pipeline", "stage", "model", "resource", "day"),
    many=True,
    default=("pipeline", "stage"),
    as_chips=True,
)

#: So many sums come before charts and budgets; the others come last.
MOST_FIRST = 100
#: So many days, and so many budgets beside the sum of all, have charts.
DAYS = 30
#: Days that a chart has at least, however young the store is.
LEAST_DAYS = 10
MOST_BUDGETS = 4
EVERYTHING = "Everything"
NOTHING = (Decimal(0), Decimal(0))


@dataclass(frozen=True)
class Day:
    day: date
    costs: Decimal
    in_doubt: Decimal


@dataclass(frozen=True)
class Curve:
    """What was spent day by day, in all or from a budget; or, of a budget in all, what had been spent by each day."""

    name: str
    budget_per_day: Decimal | None
    days: tuple[Day, ...]
    #: None unless it is of a budget in all.
    budget: Decimal | None = None

    @property
    def title(self) -> str:
        return "by day" if self.budget is None else "in all, up to each day"


@dataclass(frozen=True)
class Spending:
    costs: Costs
    #: The last days, in all and for each budget.
    curves: tuple[Curve, ...]
    limits: ResourceLimits
    #: The pipelines of which the server has the code, and can plan.
    pipelines: tuple[str, ...]


@dataclass(frozen=True)
class CurveChart:
    curve: Curve
    chart: Markup
    numbers: Markup


def ask(app: Holdfast, query: Query) -> Spending:
    pipeline = query["pipeline"]
    limits = ResourceLimits(one for one in app.limits() if _concerns(one, pipeline))
    daily = app.costs(("pipeline", "stage", "resource", "day"), pipeline=pipeline).sums
    costs = app.costs(query["by"], pipeline=pipeline)
    return Spending(costs, tuple(_curves(daily, limits, pipeline)), limits, pipelines_known(app))


def _concerns(limit: ResourceLimit, pipeline: str | None) -> bool:
    return pipeline is None or any(stage.partition("/")[0] == pipeline for stage in limit.stages)


def _curves(daily: Sequence[CostSum], limits: ResourceLimits, pipeline: str | None) -> Iterable[Curve]:
    last = max((one.day for one in daily if one.day is not None), default=None)
    if last is None:
        return
    days = [last - timedelta(days=n) for n in reversed(range(DAYS))]
    everything = _by_day(daily, days)
    # What other pipelines spend from a shared budget is not known here if one is chosen.
    alone = [one for one in limits if pipeline is None or all(of.partition("/")[0] == pipeline for of in one.stages)]
    curves: list[Curve] = []
    in_all: list[Curve] = []
    for one in alone:
        if (total := one.allowed.get("budget")) is not None:
            from_it = [each for each in daily if one.name in _budgets_of(each)]
            in_all.append(Curve(one.name, None, _up_to(one, from_it, days), amount(micros(total, what=one.name))))
        if (budget := one.allowed.get("budget_per_day")) is not None:
            from_it = [each for each in daily if one.name in _budgets_of(each)]
            curves.append(Curve(one.name, amount(micros(budget, what=one.name)), _by_day(from_it, days)))
    if all(one.days != everything for one in curves):
        yield Curve(EVERYTHING if pipeline is None else pipeline, None, everything)
    yield from curves[:MOST_BUDGETS]
    yield from in_all[:MOST_BUDGETS]


def _budgets_of(one: CostSum) -> tuple[str | None, str, str]:
    """The names of the limits that a sum counts against."""
    return (one.resource, f"@{one.pipeline}", f"@{one.pipeline}/{one.stage}")


def _by_day(sums: Iterable[CostSum], days: Sequence[date]) -> tuple[Day, ...]:
    found: dict[date | None, tuple[Decimal, Decimal]] = defaultdict(lambda: NOTHING)
    for one in sums:
        costs, in_doubt = found[one.day]
        found[one.day] = (costs + one.costs, in_doubt + one.in_doubt)
    return tuple(Day(day, *found[day]) for day in days)


def _up_to(limit: ResourceLimit, sums: Sequence[CostSum], days: Sequence[date]) -> tuple[Day, ...]:
    """What had been spent from a budget by the end of each day: what is spent now, without what came later."""
    by_day, found = _by_day(sums, days), [Day(days[-1], limit.costs, limit.in_doubt)]
    for later in reversed(by_day[1:]):
        now = found[-1]
        before = ((now.costs - later.costs).normalize(), (now.in_doubt - later.in_doubt).normalize())
        found.append(Day(later.day - timedelta(days=1), *before))
    return tuple(reversed(found))


def view(answer: Spending, query: Query) -> Mapping[str, Any]:
    costs = answer.costs
    sums = sorted(costs.sums, key=lambda one: one.day or date.min, reverse=True) if "day" in costs.by else costs.sums
    spent = [[float(day.costs + day.in_doubt) for day in one.days] for one in answer.curves if one.budget is None]
    begin = min((charts.first_shown(one, LEAST_DAYS) for one in spent), default=0)
    return {
        **in_parts(_lines(answer, sums, begin), query),
        "patterns": charts.patterns(),
        "draw": _chart,
        "legend": charts.legend(("charged", "in_doubt")),
        "no_code": NO_CODE,
        "amount_allowed": lambda one, name: (
            None if (n := one.allowed.get(name)) is None else amount(micros(n, what=name))
        ),
    }


def _lines(answer: Spending, sums: Sequence[CostSum], begin: int) -> Iterator[Line]:
    """Sums, charts, budgets and plans. Where there are very many sums, the rest of them comes last."""
    if not sums:
        yield Line("empty", "Nothing was spent.", "nothing")
    found = [
        Line("sum", (n, one), f"sum-{as_text([_named(one, name) for name in answer.costs.by])}")
        for n, one in enumerate(sums, 1)
    ]
    yield from found[:MOST_FIRST]
    for n, curve in enumerate(answer.curves, 1):
        yield Line("chart", (n, curve, begin), f"chart-{curve.title}-{curve.name}", n)
    for limit in answer.limits:
        if limit.spent or "budget" in limit.allowed or "budget_per_day" in limit.allowed:
            yield Line("budget", limit, f"budget-{limit.name}")
    yield from (Line("plan", name, f"plan-{name}") for name in answer.pipelines)
    if not answer.pipelines:
        yield Line("no plan", None, "no-plan")
    yield from (Line("more", one.value, one.place) for one in found[MOST_FIRST:])


def _named(one: CostSum, name: str) -> str | None:
    value = getattr(one, name)
    return None if value is None else str(value)


def _chart(n: int, one: Curve, begin: int) -> CurveChart:
    days = one.days[begin:]
    places = [day.day.isoformat() for day in days]
    layers = [
        charts.Layer("charged", [float(day.costs) for day in days]),
        charts.Layer("in_doubt", [float(day.in_doubt) for day in days]),
    ]
    levels = {} if one.budget_per_day is None else {"daily budget": float(one.budget_per_day)}
    if one.budget is not None:
        levels = {"budget": float(one.budget)}
    label = f"{one.name}: spent {one.title}, from {places[0]} to {places[-1]}"
    rows = ([day.day.isoformat(), money(day.costs), money(day.in_doubt)] for day in days if day.costs or day.in_doubt)
    return CurveChart(
        one,
        charts.bar_chart(label, places, layers, lambda value: f"{value:,.4g}", levels),
        charts.numbers(f"numbers-{n}", f"{one.name} {one.title}: numbers", ("Day", "charged", "in doubt"), rows),
    )


def rows(answer: Spending) -> Iterable[Any]:
    return answer.costs.sums


page = Page(
    name="costs",
    title="Costs",
    place=50,
    filters=(BY, PIPELINE, AFTER),
    ask=ask,
    view=view,
    rows=rows,
    columns=columns_of(CostSum),
)
