"""Items: a list by pipeline, stage, state, key pattern, error text and error group, a hundred at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.answers.item import Items
from holdfast.app import Holdfast
from holdfast.web.filters import WHICH_ITEMS, Filter, Query
from holdfast.web.page import Page

PAGE_SIZE = 100

#: The last entry of the page before.
AFTER = Filter("after", "After", default=0, is_place=True)


def ask(app: Holdfast, query: Query) -> Items:
    chosen = query.named("pipeline", "stage", "state", "key", "error", "group", "after")
    return app.items(**chosen, most=PAGE_SIZE)


def view(answer: Items, query: Query) -> Mapping[str, Any]:
    return {
        "next_page": query.link(after=answer[-1].cursor) if len(answer) == PAGE_SIZE else None,
        "first_page": query.link() if query.given.get("after") else None,
        # Without a stage, a state or an error, the rows are whole items.
        "of_stages": any(one.stage for one in answer),
    }


page = Page(name="items", title="Items", place=30, filters=(*WHICH_ITEMS, AFTER), ask=ask, view=view)
