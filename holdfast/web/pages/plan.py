"""Plan: what is stale in a pipeline, and what running it again would cost and take; the way to do it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.answers.plan import Effort, Plan, StagePlan, about
from holdfast.app import Holdfast
from holdfast.errors import UsageError
from holdfast.web.filters import Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.long_lists import AFTER, Line, in_parts
from holdfast.web.page import Page
from holdfast.web.reprocessing import WHICH_RESULTS, forecast, pipelines_known, price
from holdfast.web.shared_answers import GaveUp

#: So many pipelines are offered above the list.
MOST_CHIPS = 20


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
    return {
        **in_parts(_lines(answer), query),
        "about": about,
        "price": price(answer.plan, query["budget"]),
        "first_pipelines": answer.pipelines[:MOST_CHIPS],
    }


def _lines(answer: PlanOfPipeline) -> Iterator[Line]:
    """The stages, and then the pipelines for which there is no room above them."""
    yield from (Line("stage", one, f"stage-{one.stage}") for one in answer.plan)
    yield from (Line("pipeline", name, f"pipeline-{name}") for name in answer.pipelines[MOST_CHIPS:])


def rows(answer: PlanOfPipeline) -> Iterable[Any]:
    return answer.plan


page = Page(
    name="plan",
    title="Plan",
    under="costs",
    filters=(*WHICH_RESULTS, AFTER),
    ask=ask,
    view=view,
    rows=rows,
    columns=columns_of(StagePlan),
    is_live=False,
)
