"""Audit: who did what, when and why, newest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from holdfast.answers.audit import AuditEntry, AuditPage
from holdfast.answers.units import micros_since_1970
from holdfast.app import Holdfast
from holdfast.model.acts import VERBS
from holdfast.web.filters import SINCE, Filter, Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.long_lists import Line, fit
from holdfast.web.page import Page

PAGE_SIZE = 100
#: Behind every event and every action.
NEWEST = 2**62

BY = Filter("by", "Person")
VERB = Filter("verb", "What", choices=VERBS)
AFTER = Filter("after", default="", is_place=True)


def ask(app: Holdfast, query: Query) -> AuditPage:
    return app.audit(**query.named("by", "verb", "after"), since=query["since"], most=PAGE_SIZE)


def view(answer: AuditPage, query: Query) -> Mapping[str, Any]:
    return {
        "lines": partial(fit, _lines(answer, query["after"]), query),
        "next_page": query.link(after=answer.cursor) if answer.cursor else None,
        "first_page": query.link() if query.given.get("after") else None,
    }


def _lines(answer: AuditPage, after: str) -> Iterator[Line]:
    """The entries, each with its place: that of the last event and of the last action so far."""
    at, event, action = map(int, after.split("/")) if after else (NEWEST, NEWEST, NEWEST)
    for one in answer.entries:
        if one.action is not None:
            action = one.action
        elif one.event is not None:
            at, event = micros_since_1970(one.at, what="at"), one.event
        yield Line("act", one, f"{at}/{event}/{action}")


def rows(answer: AuditPage) -> Iterable[Any]:
    return answer.entries


page = Page(
    name="audit",
    title="Audit",
    place=95,
    filters=(BY, VERB, SINCE, AFTER),
    ask=ask,
    view=view,
    rows=rows,
    columns=columns_of(AuditEntry),
)
