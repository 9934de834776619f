"""Value: one large value of an item as plain text, a part at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.answers.json_of import json_of
from holdfast.app import Holdfast
from holdfast.web.filters import Filter, Query, whole_number
from holdfast.web.page import Page
from holdfast.web.values import WHICH_VALUE, as_shown, blobs_in, item_of, names_item, value_of

#: Characters of a part. Each may be five in HTML.
PART = 15_000

FROM = Filter("from", read=whole_number(), default=0, is_place=True)


@dataclass(frozen=True)
class Value:
    #: Whose it is.
    pipeline: str
    key: str
    value: Any

    def json(self) -> dict[str, Any]:
        return {"value": json_of(self.value)}


def ask(app: Holdfast, query: Query) -> Value | None:
    if not names_item(query):
        return None
    item = item_of(app, query)
    return Value(item.pipeline, item.key, value_of(item.without_secrets(), query))


def view(answer: Value | None, query: Query) -> Mapping[str, Any]:
    if answer is None:
        return {}
    text, begin = as_shown(answer.value), query["from"]
    end = min(len(text), begin + PART)
    return {
        "text": text[begin:end],
        "begin": min(begin, end),
        "end": end,
        "length": len(text),
        "blobs": blobs_in(answer.value),
        "first_page": query.link() if begin else None,
        "next_page": query.link(**{"from": str(end)}) if end < len(text) else None,
        "what": ", ".join(str(query[name]) for name in ("part", "stage", "name", "number") if query[name] is not None),
    }


def rows(answer: Value | None) -> Iterable[Any]:
    return () if answer is None else (answer.json(),)


page = Page(
    name="value",
    title="Value",
    under="items",
    filters=(*WHICH_VALUE, FROM),
    ask=ask,
    view=view,
    rows=rows,
    columns=("value",),
    is_live=False,
)
