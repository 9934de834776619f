"""One event, with all of its facts."""

from __future__ import annotations

from holdfast.answers.event import LoggedEvent
from holdfast.app import Holdfast
from holdfast.errors import UsageError
from holdfast.web.filters import Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.page import Page


def ask(app: Holdfast, query: Query) -> LoggedEvent:
    number = query["number"]
    for one in app.events(after=number - 1, most=1):
        if one.id == number:
            return one
    raise UsageError(f"there is no event {number}; old ones are pruned after a while")


page = Page(
    name="event",
    title="Event",
    path="events/{number:holdfast_number}",
    under="events",
    ask=ask,
    columns=columns_of(LoggedEvent),
    is_live=False,
)
