"""Add items: a bulk upsert. New keys enter the first stages; what happens to known ones is a merge function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from holdfast.engine.register import layout
from holdfast.errors import UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.item import check_key
from holdfast.model.states import State
from holdfast.store import Transaction

#: Items per transaction: long enough to be fast, short enough to let others write in between.
CHUNK = 2000

Merge = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


class Added(NamedTuple):
    """What became of the items of one `add`."""

    new: int
    changed: int
    unchanged: int

    def __add__(self, other: Added) -> Added:  # type: ignore[override]
        return Added(*(mine + its for mine, its in zip(self, other, strict=True)))


class NewItem(NamedTuple):
    key: str
    data: str


def overwrite(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The default merge: the newest data stands."""
    return new


def read_items(items: Iterable[str | Mapping[str, Any]]) -> list[NewItem]:
    """Check every item before anything is written: a mapping with a `key`, or a key alone."""
    ready: dict[str, NewItem] = {}
    for place, given in enumerate(items, start=1):
        if isinstance(given, str):
            key, data = check_key(given), {}
        elif isinstance(given, Mapping):
            if "key" not in given:
                raise UsageError(f"item {place} has no 'key': {str(dict(given))[:80]}")
            key = check_key(given["key"])
            data = {name: value for name, value in given.items() if name != "key"}
        else:
            raise UsageError(f"item {place} is a {type(given).__name__}; give a key or an object with a 'key'")
        if key in ready:
            raise UsageError(f"the key {key!r} comes twice in one add; nothing was added")
        try:
            ready[key] = NewItem(key, codec.encode(data))
        except ValueRefused as error:
            raise UsageError(f"item {key!r}: its data has {error}") from None
    return list(ready.values())


class Upserted(NamedTuple):
    """Which items were new and which were there, by key and number, and how many of the latter were changed."""

    born: dict[str, int]
    known: dict[str, int]
    changed: int


def add_items(
    tx: Transaction, pipeline: str, items: list[NewItem], merge: Merge = overwrite, priority: int = 0
) -> Added:
    """Insert new items and merge into known ones; unchanged ones cost no write."""
    done = upsert(tx, pipeline, items, merge, priority)
    return Added(len(done.born), done.changed, len(done.known) - done.changed)


def upsert(
    tx: Transaction, pipeline: str, items: list[NewItem], merge: Merge = overwrite, priority: int = 0
) -> Upserted:
    """The same, and tell the items' numbers. New items enter the first stages."""
    stages = layout(tx).of_pipeline(pipeline)
    if not stages:
        raise UsageError(f"there is no pipeline {pipeline!r} in this store")
    number = stages[0].pipeline
    left = {item.key: item for item in items}
    known: dict[str, int] = {}
    done = Upserted({}, known, _merge_known(tx, number, left, known, merge))
    while left:
        # In the order given: it is the order of claiming. Two who add the same keys in other orders at once may wait for
        # each other; the database lets one of them begin again.
        rows = list(left.values())
        for id_, key in tx.run_rows("insert_items", rows, pipeline=number, priority=priority, now=tx.now):
            done.born[key] = id_
            del left[key]
        if left:
            # Somebody else added these a moment ago, and has committed by now.
            done = done._replace(changed=done.changed + _merge_known(tx, number, left, known, merge))
    first = [stage.id for stage in stages if not stage.after]
    tx.run_rows("enter_waiting", [(item, stage, 0, 0, 0) for stage in first for item in done.born.values()])
    for stage in first:
        tx.count(stage, State.PENDING, len(done.born))
    if done.born:
        tx.tell_idle_workers()
    return done


def without_unchanged(tx: Transaction, pipeline: str, items: list[NewItem]) -> list[NewItem]:
    """Those of the items that an `add` would write; for a look before a transaction is begun."""
    stages = layout(tx).of_pipeline(pipeline)
    if not stages:
        return items
    there = {
        key: data for _, key, data in tx.run("look_up_keys", pipeline=stages[0].pipeline, keys=[i.key for i in items])
    }
    return [item for item in items if there.get(item.key) != item.data]


def _merge_known(tx: Transaction, pipeline: int, left: dict[str, NewItem], known: dict[str, int], merge: Merge) -> int:
    """Move the items that exist from `left` to `known`, merge and update them; return how many changed."""
    updates: list[tuple[int, str]] = []
    for number, key, data in tx.run("read_by_keys", pipeline=pipeline, keys=list(left)):
        new = left.pop(key).data
        known[key] = number
        if merge is not overwrite:
            new = merged(merge, key, data, new)
        if new != data:
            updates.append((number, new))
    tx.run_rows("update_items", updates, now=tx.now)
    return len(updates)


def merged(merge: Merge, key: str, old: str, new: str) -> str:
    """What a merge function makes of old and new data, checked."""
    name = getattr(merge, "__name__", repr(merge))
    try:
        value = merge(codec.decode(old), codec.decode(new))
    except Exception as error:
        raise UsageError(f"item {key!r}: the merge function {name} raised {type(error).__name__}: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"item {key!r}: the merge function {name} returned {type(value).__name__}, not an object")
    try:
        return codec.encode(value)
    except ValueRefused as error:
        raise UsageError(f"item {key!r}: the merge function {name} returned {error}") from None
