"""Errors: failures grouped by cause, with their money, and buttons that act on a whole group."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from holdfast.answers.error_group import ErrorGroup, ErrorGroups
from holdfast.app import Holdfast
from holdfast.model.durations import seconds
from holdfast.web.charts import sparkline
from holdfast.web.filters import PIPELINE, STAGE, Filter, Query, length_of_time, link
from holdfast.web.json_and_csv import columns_of
from holdfast.web.long_lists import AFTER, Line, in_parts
from holdfast.web.page import Page

MOST = 50
#: What can be done to a whole group.
ON_GROUPS = ("retry", "cancel", "forget")

WITHIN = Filter("within", "Last seen within", read=length_of_time, hint="90m, 2d")


def ask(app: Holdfast, query: Query) -> ErrorGroups:
    within = query["within"]
    since = None if within is None else datetime.now(UTC) - timedelta(seconds=seconds(within, what="within"))
    return app.errors(**query.named("pipeline", "stage"), since=since, most=MOST)


def view(answer: ErrorGroups, query: Query) -> Mapping[str, Any]:
    def which(one: ErrorGroup) -> dict[str, str]:
        """The filter of a group: within what is looked at, and within its stage if it has only one, which gives it a price."""
        narrowed = {name: query[name] for name in ("pipeline", "stage") if query[name]}
        if len(one.stages) == 1:
            pipeline, _, stage = one.stages[0].partition("/")
            narrowed = {"pipeline": pipeline, "stage": stage}
        return {"group": one.group, **narrowed}

    def trend(one: ErrorGroup) -> Markup:
        each = ", ".join(map(str, one.by_hour))
        return sparkline(f"Failed in each of the last {len(one.by_hour)} hours, the oldest first: {each}", one.by_hour)

    return {
        **in_parts((Line("group", one, one.group) for one in answer), query),
        "which": which,
        "trend_of": trend,
        "items_of": lambda one: link("items", **which(one)),
        "sample_of": lambda one: link("item", pipeline=one.pipeline, key=one.key),
        "over_time": query.link("throughput", within=None, last="24h"),
        "most": MOST,
        "on_groups": ON_GROUPS,
    }


page = Page(
    name="errors",
    title="Errors",
    place=40,
    filters=(PIPELINE, STAGE, WITHIN, AFTER),
    ask=ask,
    view=view,
    columns=columns_of(ErrorGroup),
)
