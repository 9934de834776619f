"""Events: what happened, newest first, by name, pipeline, stage, item and time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.answers.event import EventPage, LoggedEvent
from holdfast.app import Holdfast
from holdfast.web.filters import PIPELINE, SINCE, STAGE, Filter, Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.page import Page

PAGE_SIZE = 100

EVENT = Filter("event", "Event", hint="failed")
KEY = Filter("key", "Item", hint="its whole key")
AFTER = Filter("after", default="", is_place=True)


def ask(app: Holdfast, query: Query) -> EventPage:
    chosen = query.named("event", "pipeline", "stage", "key", "after")
    return app.newest_events(**chosen, since=query["since"], most=PAGE_SIZE)


def view(answer: EventPage, query: Query) -> Mapping[str, Any]:
    return {
        "next_page": query.link(after=answer.cursor) if answer.cursor else None,
        "first_page": query.link() if query.given.get("after") else None,
    }


def rows(answer: EventPage) -> Iterable[Any]:
    return answer.events


page = Page(
    name="events",
    title="Events",
    place=75,
    filters=(EVENT, PIPELINE, STAGE, KEY, SINCE, AFTER),
    ask=ask,
    view=view,
    rows=rows,
    columns=columns_of(LoggedEvent),
)
