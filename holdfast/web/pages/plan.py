"""Plan: what is stale in a pipeline, and what running it again would cost and take; the way to do it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.answers.plan import Effort, Plan, StagePlan, about
from holdfast.app import Holdfast
from holdfast.errors import UsageError
from holdfast.web.filters import Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.page import Page
from holdfast.web.reprocessing import WHICH_RESULTS, forecast, pipelines_known, price
from holdfast.web.shared_answers import GaveUp


@dataclass(frozen=True)
class PlanOfPipeline:
    plan: Plan
    total: Effort
    #: Why there is none.
    why_not: str | None
    #: The pipelines whose code is here.
    pipelines: tuple[str, ...]


def ask(app: Holdfast, query: Query) -> PlanOfPipeline:
    why_not = None
    try:
        plan = forecast(app, query)
    except (GaveUp, UsageError) as error:
        plan, why_not = Plan(), str(error)
    return PlanOfPipeline(plan, plan.total, why_not, pipelines_known(app))


def view(answer: PlanOfPipeline, query: Query) -> Mapping[str, Any]:
    return {"about": about, "price": price(answer.plan, query["budget"])}


def rows(answer: PlanOfPipeline) -> Iterable[Any]:
    return answer.plan


page = Page(
    name="plan",
    title="Plan",
    under="costs",
    filters=WHICH_RESULTS,
    ask=ask,
    view=view,
    rows=rows,
    columns=columns_of(StagePlan),
    is_live=False,
)
