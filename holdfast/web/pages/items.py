"""Items: a list by pipeline, stage, state, key pattern, error text and error group, a hundred at a time; and by attempts,
version, cost and time, for which a slice of it is looked through."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from holdfast.answers.item import Items, ListedItem
from holdfast.app import Holdfast
from holdfast.web.filters import NARROWED, WHICH_ITEMS, Filter, Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.long_lists import Line, fit
from holdfast.web.page import Page
from holdfast.web.ticked_rows import row_of

PAGE_SIZE = 100

#: The last entry of the page before.
AFTER = Filter("after", "After", default=0, is_place=True)


def ask(app: Holdfast, query: Query) -> Items:
    return app.items(**query.named(*(one.name for one in page.filters)), most=PAGE_SIZE)


def view(answer: Items, query: Query) -> Mapping[str, Any]:
    return {
        "lines": partial(fit, [Line("item", one, one.cursor) for one in answer], query),
        "row_of": row_of,
        "next_page": query.link(after=answer.cursor) if answer.cursor else None,
        # So far no row was found, or less than a page, and there is more to look at.
        "looked_at": answer.looked_at if answer.cursor and len(answer) < PAGE_SIZE else None,
        "first_page": query.link() if query.given.get("after") else None,
        # Without a stage, a state or an error, the rows are whole items.
        "of_stages": any(one.stage for one in answer),
    }


page = Page(
    name="items",
    title="Items",
    place=30,
    filters=(*WHICH_ITEMS, *NARROWED, AFTER),
    ask=ask,
    view=view,
    columns=columns_of(ListedItem),
)
