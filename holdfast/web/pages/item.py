"""Item: why it does not run, its data, every stage, its paid calls and its history. Without a key, a form that asks for one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
from holdfast.web.long_lists import AFTER, Line, in_parts
from holdfast.web.page import Page
from holdfast.web.values import OF_ITEM_OR_ID, blobs_in, item_of, names_item, value_link

#: What a stage in some state can be sent: retries of what passed, and what is open, name the state.
_CAN_RETRY = frozenset({*VERBS["retry"].states, State.RETRY_LATER, State.ON_HOLD, *PASSED})
_CAN_CANCEL = frozenset(VERBS["cancel"].states)


@dataclass(frozen=True)
class ItemAnswer:
    why: Explanation
    item: ItemDetails


def ask(app: Holdfast, query: Query) -> ItemAnswer | None:
    if not names_item(query):
        return None
    item = item_of(app, query)
    return ItemAnswer(app.why(item.key, item.pipeline), item.without_secrets())


def view(answer: ItemAnswer | None, query: Query) -> Mapping[str, Any]:
    if answer is None:
        return {}
    item = answer.item
    return {
        **in_parts(_lines(item), query),
        "item": item,
        "why": answer.why,
        "value_link": partial(value_link, "value", item),
        "blob_link": partial(value_link, "download/blob", item),
        "blobs_in": blobs_in,
        "verbs_of": _verbs_of,
        "differences": differences,
        #: As acts take it: the pattern that means this key alone.
        "only_this": {"pipeline": item.pipeline, "key": exactly(item.key)},
    }


def _lines(item: ItemDetails) -> Iterator[Line]:
    """What there is to tell of an item: where its stages stand, its data, and calls and history, the newest first."""
    yield from (Line("stage", one, f"stage-{one.stage}") for one in item.stages)
    yield Line("data", item, "data")
    yield from (Line("memo", one, f"memo-{n}") for n, one in enumerate(item.memos))
    yield from (Line("call", one, f"call-{one.id}") for one in item.calls[::-1])
    yield from (Line("event", entry, f"event-{entry[0]}") for entry in reversed([*enumerate(item.history)]))


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
    filters=(*OF_ITEM_OR_ID, AFTER),
    ask=ask,
    view=view,
    rows=rows,
    columns=columns_of(StageOfItem),
)
