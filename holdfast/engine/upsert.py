"""Upsert items in one transaction: new keys enter the first stages, and a function decides what is stored for known ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from holdfast.engine.changed_items import enter
from holdfast.engine.checkpoints import read_anew
from holdfast.engine.layout import layout
from holdfast.errors import UsageError
from holdfast.model.layout import Layout
from holdfast.model.states import State
from holdfast.model.urls import as_key
from holdfast.store import AtOnce, Transaction


class Added(NamedTuple):
    """How many items of one `add` were new, changed and unchanged."""

    new: int
    changed: int
    unchanged: int

    def __add__(self, other: Added) -> Added:  # type: ignore[override]
        return Added(*(mine + its for mine, its in zip(self, other, strict=True)))


class NewItem(NamedTuple):
    key: str
    data: str
    #: The fingerprint of the type that the data was checked against.
    type: str | None = None
    #: The span that adds it.
    traceparent: str | None = None


class Looked(NamedTuple):
    """An item's data when it was looked up, and the merged data."""

    old: str
    new: str


class Upserted(NamedTuple):
    """New and known items, by key and number, and how many of the known ones changed."""

    born: dict[str, int]
    known: dict[str, int]
    changed: int
    #: Known items for which `decide` returned None: they are unchanged.
    left: list[NewItem]

    @property
    def added(self) -> Added:
        return Added(len(self.born), self.changed, len(self.known) - self.changed)


#: From key, old data and new data to the data to store; None leaves the item unchanged and reports it in `left`.
Decide = Callable[[str, str, str], str | None]


def look_up(tx: Transaction, pipeline: str, items: list[NewItem]) -> dict[str, str]:
    """The stored data of those items that exist, by key. One statement, without locks."""
    return dict(tx.run("look_up_keys", pipeline=pipeline, keys=[item.key for item in items]))


def keys_for(tx: Transaction, pipeline: str, written: Iterable[str]) -> dict[str, str]:
    """The key for each of these: the normal form of an address, unless an item exists under the address as given."""
    keys = {one: as_key(one) for one in written}
    there = tx.run("look_up_keys", pipeline=pipeline, keys=[one for one, key in keys.items() if one != key])
    return keys | {key: key for key, _ in there}


def as_looked(looked: Mapping[str, Looked]) -> Decide:
    """Decide by an earlier look-up, for items that have not changed since."""

    def decide(key: str, old: str, new: str) -> str | None:
        before = looked.get(key)
        return before.new if before is not None and before.old == old else None

    return decide


def upsert(
    tx: Transaction,
    pipeline: str,
    items: list[NewItem],
    decide: Decide,
    priority: int = 0,
    known: Collection[str] | None = None,
) -> Upserted:
    """Insert new items into the first stages, and change known ones as decided. Unchanged items cost no write.

    `known` are the keys that existed a moment ago, if the caller has looked them up.
    """
    number = _number(tx, pipeline)
    left = {item.key: item for item in items}
    done = Upserted({}, {}, 0, [])
    if known is None or known:
        done = _change_known(tx, pipeline, left, [*left] if known is None else [*known], decide, done)
    while left:
        # In the order given, which is the order of claiming. Two writers that add the same keys in different orders may
        # deadlock; the database then makes one of them start again.
        for (type_, traceparent), same in groupby(list(left.values()), key=itemgetter(2, 3)):
            shared = {
                "pipeline": number,
                "priority": priority,
                "type": type_,
                "traceparent": traceparent,
                "now": tx.now,
            }
            for id_, key in tx.run_rows("insert_items", [(one.key, one.data) for one in same], **shared):
                done.born[key] = id_
                del left[key]
        if left:
            # Another writer added these a moment ago and has committed by now.
            done = _change_known(tx, pipeline, left, [*left], decide, done)
    first = [stage.id for stage in layout(tx).of_pipeline(pipeline) if not stage.after]
    waiting = [(stage, priority, item, 0, 0, 0) for stage in first for item in done.born.values()]
    tx.run_rows("begin_waiting", waiting, since=tx.now)
    for stage in first:
        tx.count(stage, State.PENDING, len(done.born))
    if done.born:
        tx.tell_idle_workers(*first)
    return done


def upsert_alone(
    tx: Transaction, pipeline: str, items: list[NewItem], decide: Decide, priority: int, known: Collection[str]
) -> Upserted:
    """The same in a transaction of its own, which is rolled back if there was nothing to do."""
    tx.op, tx.rows = "add", len(items)
    done = upsert(tx, pipeline, items, decide, priority, known)
    tx.is_for_nothing = not done.born and not done.changed
    return done


def at_once(
    layout: Layout | None, pipeline: str, items: list[NewItem], priority: int, slot: int
) -> AtOnce[Upserted] | None:
    """How to add a single item that seems to be new with a single statement."""
    number = layout.number_of(pipeline) if layout is not None else None
    if layout is None or number is None or len(items) != 1:
        return None
    [(key, data, type_, traceparent)] = items
    first = [stage.id for stage in layout.of_pipeline(pipeline) if not stage.after]
    params = {
        "pipeline": number,
        "key": key,
        "data": data,
        "type": type_,
        "traceparent": traceparent,
        "priority": priority,
        "slot": slot,
        "stages": first,
        "generation": layout.generation,
    }
    return AtOnce(
        "add_at_once",
        params,
        first,
        take=lambda rows, _: Upserted({key: rows[0][0]}, {}, 0, []),
        find=lambda tx: Upserted({key: tx.run("find_item", pipeline=pipeline, key=key)[0][0]}, {}, 0, []),
        like="insert_items",
        op="add",
    )


def _change_known(
    tx: Transaction, pipeline: str, left: dict[str, NewItem], keys: list[str], decide: Decide, done: Upserted
) -> Upserted:
    """Move the items that exist out of `left`, and save those whose data changes."""
    updates: list[tuple[int, str, str | None, str | None]] = []
    before: list[tuple[int, str, str]] = []
    own = _number(tx, pipeline)
    for number, key, data in tx.run("read_by_keys", pipeline=own, keys=keys):
        item = left.pop(key)
        new = decide(key, data, item.data)
        if new is None:
            done.left.append(item)
            continue
        done.known[key] = number
        if new != data:
            updates.append((number, new, item.type, item.traceparent))
            before.append((number, key, data))
    read_anew(tx, pipeline, before)
    tx.run_rows("update_items", updates, now=tx.now)
    enter(tx, own, [number for number, *_ in updates])
    return done._replace(changed=done.changed + len(updates))


def _number(tx: Transaction, pipeline: str) -> int:
    number = layout(tx).number_of(pipeline)
    if number is None:
        raise UsageError(f"there is no pipeline {pipeline!r} in this store")
    return number
