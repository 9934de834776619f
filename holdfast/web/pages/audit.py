"""Audit: who did what, when and why, newest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.answers.audit import AuditEntry, AuditPage
from holdfast.app import Holdfast
from holdfast.model.acts import VERBS
from holdfast.web.filters import SINCE, Filter, Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.page import Page

PAGE_SIZE = 100

BY = Filter("by", "Person")
VERB = Filter("verb", "What", choices=VERBS)
AFTER = Filter("after", default="", is_place=True)


def ask(app: Holdfast, query: Query) -> AuditPage:
    return app.audit(**query.named("by", "verb", "after"), since=query["since"], most=PAGE_SIZE)


def view(answer: AuditPage, query: Query) -> Mapping[str, Any]:
    return {
        "next_page": query.link(after=answer.cursor) if answer.cursor else None,
        "first_page": query.link() if query.given.get("after") else None,
    }


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
