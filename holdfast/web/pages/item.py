"""Item: why it does not run, its data, every stage, its paid calls and its history. Without a key, a form that asks for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.answers.item import ItemDetails, StageOfItem
from holdfast.answers.why import Explanation
from holdfast.app import Holdfast
from holdfast.model.key_pattern import exactly
from holdfast.model.states import PASSED, State
from holdfast.web.bulk_verbs import VERBS
from holdfast.web.differences import differences
from holdfast.web.filters import Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.page import Page
from holdfast.web.values import OF_ITEM, blobs_in, value_link

#: The newest entries that the page shows; the JSON has all of them.
MOST_ENTRIES = 200
MOST_CALLS = 100

#: What a stage in some state can be sent: retries of what passed, and what is open, name the state.
_CAN_RETRY = frozenset({*VERBS["retry"].states, State.RETRY_LATER, State.ON_HOLD, *PASSED})
_CAN_CANCEL = frozenset(VERBS["cancel"].states)


@dataclass(frozen=True)
class ItemAnswer:
    why: Explanation
    item: ItemDetails


def ask(app: Holdfast, query: Query) -> ItemAnswer | None:
    if query["key"] is None:
        return None
    item = app.show(query["key"], query["pipeline"])
    return ItemAnswer(app.why(item.key, item.pipeline), item.without_secrets())


def view(answer: ItemAnswer | None, query: Query) -> Mapping[str, Any]:
    if answer is None:
        return {}
    item = answer.item
    history = list(enumerate(item.history))[-MOST_ENTRIES:]
    return {
        "item": item,
        "why": answer.why,
        "value_link": partial(value_link, "value", item),
        "blob_link": partial(value_link, "download/blob", item),
        "blobs_in": blobs_in,
        "verbs_of": _verbs_of,
        "differences": differences,
        #: As acts take it: the pattern that means this key alone.
        "only_this": {"pipeline": item.pipeline, "key": exactly(item.key)},
        "history": history[::-1],
        "calls": item.calls[-MOST_CALLS:][::-1],
    }


def _verbs_of(stage: StageOfItem) -> list[str]:
    """What can be done to a stage as it stands."""
    if stage.state is None:
        return []
    return [
        *(["retry"] if stage.state in _CAN_RETRY else []),
        *(["cancel"] if stage.state in _CAN_CANCEL else []),
    ]


def rows(answer: ItemAnswer | None) -> Iterable[Any]:
    return () if answer is None else answer.item.stages


page = Page(
    name="item",
    title="Item",
    under="items",
    filters=OF_ITEM,
    ask=ask,
    view=view,
    rows=rows,
    columns=columns_of(StageOfItem),
)
