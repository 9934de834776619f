"""What an action that names its items one by one has left alone, because it had changed: with the states of that moment.

A person who ticks rows names them by their keys. Keys are struck off as their items are chosen; what is left when the action
ends was deleted, or was in a state that it does not act on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.engine.item_stages import read_item_stages
from holdfast.engine.layout import layout
from holdfast.engine.selection import Meant
from holdfast.model.item_filter import Which
from holdfast.model.key_pattern import Pattern, several
from holdfast.store import Transaction

#: An action that names more items is not followed item by item.
MOST_NAMED = 1000


class LeftAlone(msgspec.Struct, frozen=True):
    """An item that an action was asked for by its key and has not acted on."""

    key: str
    #: None if there was no such item.
    pipeline: str | None = None
    #: The states of the stages that were meant, by name; those that had not begun are not in it.
    states: dict[str, str] = {}


def named_keys(kind: Any) -> list[str]:
    """The keys that were asked for one by one; none if there is another filter by key, or no filter."""
    which: Which | None = getattr(kind, "which", None)
    patterns = [Pattern(one) for one in several(which.key)] if which is not None else []
    if len(patterns) > MOST_NAMED or not all(one.is_plain for one in patterns):
        return []
    return [one.low for one in patterns]


def strike_off(tx: Transaction, keys: list[str], chosen: Iterable[Meant]) -> list[str]:
    """These keys without those of the items that were chosen."""
    items = sorted({one.item for one in chosen})
    if not keys or not items:
        return keys
    found = {row["key"] for row in tx.records("read_items", items=items)}
    return [key for key in keys if key not in found]


def look_at(tx: Transaction, kind: Any, keys: list[str]) -> list[LeftAlone]:
    """How the items with these keys, which were asked for, are now."""
    if not keys:
        return []
    which: Which = kind.which
    known = layout(tx)
    stages = [row for row in known.chosen(which.pipeline, which.stage) if row.active or which.stage is not None]
    found: dict[str, list[LeftAlone]] = {}
    for pipeline in sorted({row.pipeline_name for row in stages}):
        numbers: dict[str, int] = dict(tx.run("numbers_of_keys", pipeline=pipeline, keys=keys))
        names = {row.id: row.name for row in stages if row.pipeline_name == pipeline}
        states: dict[int, dict[str, str]] = {}
        for one in read_item_stages(tx, sorted(numbers.values()), list(names)):
            states.setdefault(one["item"], {})[names[one["stage"]]] = str(one["state"])
        for key, item in numbers.items():
            found.setdefault(key, []).append(LeftAlone(key, pipeline, states.get(item, {})))
    return [one for key in keys for one in found.get(key, [LeftAlone(key)])]
