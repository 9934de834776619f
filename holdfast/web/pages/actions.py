"""Actions: what was done to many items at once, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from holdfast.answers.action import ActionList, ActionRecord
from holdfast.app import Holdfast
from holdfast.web.filters import Filter, Query, whole_number
from holdfast.web.json_and_csv import columns_of
from holdfast.web.long_lists import Line, fit
from holdfast.web.page import Page

PAGE_SIZE = 100

#: The last action of the page before.
AFTER = Filter("after", read=whole_number(), is_place=True)
OPEN = Filter("state", "State", choices=("open",))


def ask(app: Holdfast, query: Query) -> ActionList:
    return app.actions(only_open=query["state"] == "open", after=query["after"], most=PAGE_SIZE)


def view(answer: ActionList, query: Query) -> Mapping[str, Any]:
    return {
        "lines": partial(fit, [Line("action", one, str(one.id)) for one in answer], query),
        "next_page": query.link(after=str(answer[-1].id)) if len(answer) == PAGE_SIZE else None,
        "first_page": query.link() if query.given.get("after") else None,
    }


page = Page(
    name="actions",
    title="Actions",
    place=90,
    filters=(OPEN, AFTER),
    ask=ask,
    view=view,
    columns=columns_of(ActionRecord),
)
