"""Sources: the last look, what it found, the next look, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.answers.source import Sources, SourceStatus
from holdfast.app import Holdfast
from holdfast.web.filters import Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.long_lists import AFTER, Line, in_parts
from holdfast.web.page import Page


def ask(app: Holdfast, query: Query) -> Sources:
    return app.sources()


def view(answer: Sources, query: Query) -> Mapping[str, Any]:
    return in_parts((Line("source", one, f"{one.pipeline}/{one.source}") for one in answer), query)


page = Page(
    name="sources",
    title="Sources",
    place=70,
    filters=(AFTER,),
    ask=ask,
    view=view,
    columns=columns_of(SourceStatus),
)
