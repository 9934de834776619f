"""Values of an item that are too large for its page: their addresses, their text, and the kept content that they refer to.

A value is named by its part of the item (`part=result`), and by the stage, name or number that the part needs. Only what the
item itself has can be named: content is found through a reference in a value, never by its hash alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.answers.item import ItemDetails
from holdfast.answers.json_of import json_of
from holdfast.app import Holdfast
from holdfast.blobs import Blob
from holdfast.blobs.reference import KEY as BLOB_KEY
from holdfast.blobs.reference import read_reference
from holdfast.errors import UsageError
from holdfast.model.log_lines import printable
from holdfast.web.filters import Filter, Query, WrongQuery, link, whole_number
from holdfast.web.json_and_csv import readable

#: Of one value, so many references are looked for.
MOST_BLOBS = 50

#: The item.
OF_ITEM = (Filter("pipeline", "Pipeline"), Filter("key", "Key"))
#: The same, by its number in the store, which is shorter than most keys.
OF_ITEM_OR_ID = (*OF_ITEM, Filter("id", "Number of the item", read=whole_number()))
#: Which of its values.
WHICH_VALUE = (
    *OF_ITEM_OR_ID,
    Filter(
        "part",
        "Part",
        choices=("data", "result", "previous", "error", "memo", "answer", "facts", "event"),
        default="data",
    ),
    Filter("stage", "Stage"),
    Filter("name", "Name of the call"),
    Filter("number", "Number", read=whole_number()),
)


def value_link(path: str, item: ItemDetails, part: str, **which: object) -> str:
    """The address of a value of an item."""
    named = {name: str(value) for name, value in which.items() if value is not None}
    return link(path, id=str(item.id), part=part, **named)


def names_item(query: Query) -> bool:
    return query["key"] is not None or query["id"] is not None


def item_of(app: Holdfast, query: Query) -> ItemDetails:
    """The item that an address names, by its number or by its key."""
    if query["id"] is None:
        return app.show(query["key"], query["pipeline"])
    pipeline, key = app.name_of_item(query["id"])
    if query["key"] not in (None, key) or query["pipeline"] not in (None, pipeline):
        raise WrongQuery(f"the item with the number {query['id']} has another key or pipeline than this address says")
    return app.show(key, pipeline)


def value_of(item: ItemDetails, query: Query) -> Any:
    """The value that an address names."""
    part, stage, name, number = (query[one] for one in ("part", "stage", "name", "number"))
    if part == "data":
        return item.data
    if part in ("result", "error"):
        return getattr(item.stage(_given("stage", stage)), part)
    if part == "previous":
        previous = item.stage(_given("stage", stage)).previous
        return None if previous is None else previous.result
    if part == "memo":
        found = [one.value for one in item.memos if (one.stage, one.name) == (stage, name)]
    elif part == "event":
        found = [one.data for place, one in enumerate(item.history) if place == number]
    else:
        found = [one.value if part == "answer" else one.facts for one in item.calls if one.id == number]
    if not found:
        raise UsageError(f"item {item.key!r} has no such {part} any more")
    return json_of(found[0])


def _given(name: str, value: Any) -> Any:
    if value is None:
        raise WrongQuery(f"{name} is missing")
    return value


def as_shown(value: Any) -> str:
    """The value as text that is harmless in a page: lines of a text, or JSON."""
    if isinstance(value, str):
        return "\n".join(map(printable, value.split("\n")))
    return readable(value, indent=2)


def blobs_in(value: Any) -> list[Blob]:
    """The references to kept content in a value, each content once, as far as they can be used."""
    found: dict[str, Blob] = {}
    for one in _references(value):
        found.setdefault(one.sha256, one)
        if len(found) == MOST_BLOBS:
            break
    return list(found.values())


def _references(value: Any) -> Iterator[Blob]:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            if BLOB_KEY in one:
                try:
                    yield read_reference(one)
                except UsageError:
                    pass
            left.extend(reversed([*one.values()]))
        elif isinstance(one, (list, tuple)):
            left.extend(reversed(one))
