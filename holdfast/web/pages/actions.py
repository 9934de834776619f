"""Actions: what was done to many items at once, newest first."""

from __future__ import annotations

from holdfast.answers.action import ActionList, ActionRecord
from holdfast.app import Holdfast
from holdfast.web.filters import Filter, Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.page import Page

OPEN = Filter("state", "State", choices=("open",))


def ask(app: Holdfast, query: Query) -> ActionList:
    return app.actions(only_open=query["state"] == "open")


page = Page(name="actions", title="Actions", place=90, filters=(OPEN,), ask=ask, columns=columns_of(ActionRecord))
