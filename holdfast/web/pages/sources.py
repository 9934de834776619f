"""Sources: the last look, what it found, the next look, and what went wrong."""

from __future__ import annotations

from holdfast.answers.source import Sources, SourceStatus
from holdfast.app import Holdfast
from holdfast.web.filters import Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.page import Page


def ask(app: Holdfast, query: Query) -> Sources:
    return app.sources()


page = Page(name="sources", title="Sources", place=70, ask=ask, columns=columns_of(SourceStatus))
