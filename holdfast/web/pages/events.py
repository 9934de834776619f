"""Events: what happened, newest first, by name, pipeline, stage, item and time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from holdfast.answers.event import EventPage, LoggedEvent
from holdfast.answers.units import micros_since_1970
from holdfast.app import Holdfast
from holdfast.web.filters import PIPELINE, SINCE, STAGE, Filter, Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.long_lists import Line, fit
from holdfast.web.page import Page

PAGE_SIZE = 100
#: So many facts of an event are in the list.
MOST_FACTS = 20
#: Facts that say nothing.
EMPTY: tuple[Any, ...] = (None, "", (), [], {})

EVENT = Filter("event", "Event", hint="failed")
KEY = Filter("key", "Item", hint="its whole key")
AFTER = Filter("after", default="", is_place=True)


def ask(app: Holdfast, query: Query) -> EventPage:
    chosen = query.named("event", "pipeline", "stage", "key", "after")
    return app.newest_events(**chosen, since=query["since"], most=PAGE_SIZE)


def view(answer: EventPage, query: Query) -> Mapping[str, Any]:
    lines = [Line("event", one, f"{micros_since_1970(one.at, what='at')}/{one.id}") for one in answer.events]
    return {
        "lines": partial(fit, lines, query),
        "facts_of": _facts_of,
        "next_page": query.link(after=answer.cursor) if answer.cursor else None,
        "first_page": query.link() if query.given.get("after") else None,
    }


def _facts_of(event: LoggedEvent) -> list[tuple[str, Any]]:
    """What the list shows of an event's facts: those that say something. Its own page has them all."""
    told = [(name, value) for name, value in event.data.items() if name != "traceback" and value not in EMPTY]
    return told[:MOST_FACTS] if len(told) <= MOST_FACTS else [*told[:MOST_FACTS], ("more", len(told) - MOST_FACTS)]


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
