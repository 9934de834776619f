"""Add items: a bulk upsert. New keys enter the first stages; what happens to known ones is a merge function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from holdfast.engine.changed_items import enter
from holdfast.engine.checkpoints import read_anew
from holdfast.engine.register import layout
from holdfast.errors import UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.item import check_key
from holdfast.model.layout import Layout
from holdfast.model.states import State
from holdfast.model.urls import as_key
from holdfast.store import AtOnce, Transaction

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
        item = _read(place, given)
        if item.key in ready:
            raise UsageError(f"the key {item.key!r} comes twice in one add; nothing was added")
        ready[item.key] = item
    return list(ready.values())


def read_in_chunks(items: Iterable[str | Mapping[str, Any]]) -> Iterator[list[NewItem]]:
    """The same a chunk at a time, for any number of items. A key that comes again begins a chunk of its own, and is merged."""
    ready: dict[str, NewItem] = {}
    for place, given in enumerate(items, start=1):
        item = _read(place, given)
        if item.key in ready:
            yield list(ready.values())
            ready.clear()
        ready[item.key] = item
        if len(ready) == CHUNK:
            yield list(ready.values())
            ready.clear()
    if ready:
        yield list(ready.values())


def _read(place: int, given: object) -> NewItem:
    if isinstance(given, str):
        key, data = check_key(given), {}
    elif isinstance(given, (dict, Mapping)):
        data = dict(given)
        if "key" not in data:
            raise UsageError(f"item {place} has no 'key': {str(data)[:80]}")
        key = check_key(data.pop("key"))
    else:
        raise UsageError(f"item {place} is a {type(given).__name__}; give a key or an object with a 'key'")
    try:
        return NewItem(key, codec.encode(data))
    except ValueRefused as error:
        raise UsageError(f"item {key!r}: its data has {error}") from None


def keys_for(tx: Transaction, pipeline: str, written: Iterable[str]) -> dict[str, str]:
    """The key of each of these: an address is written one way, unless there is an item under it as it stands here."""
    keys = {one: as_key(one) for one in written}
    there = tx.run("look_up_keys", pipeline=pipeline, keys=[one for one, key in keys.items() if one != key])
    return keys | {key: key for key, _ in there}


class Looked(NamedTuple):
    """What the data of an item was, and what a merge made of it."""

    old: str
    new: str


class Upserted(NamedTuple):
    """Which items were new and which were there, by key and number, and how many of the latter were changed."""

    born: dict[str, int]
    known: dict[str, int]
    changed: int
    #: Known ones that nothing was decided for: they are as they were.
    left: list[NewItem]

    @property
    def added(self) -> Added:
        return Added(len(self.born), self.changed, len(self.known) - self.changed)


#: From key, old and new data to what is stored; None leaves the item as it is, and to the caller.
Decide = Callable[[str, str, str], str | None]


def look_up(tx: Transaction, pipeline: str, items: list[NewItem]) -> dict[str, str]:
    """The data of those of the items that are there, by key; keeps nobody waiting. One statement."""
    return dict(tx.run("look_up_keys", pipeline=pipeline, keys=[item.key for item in items]))


def upsert(
    tx: Transaction,
    pipeline: str,
    items: list[NewItem],
    decide: Decide,
    priority: int = 0,
    known: Collection[str] | None = None,
) -> Upserted:
    """Insert new items, which enter the first stages, and change known ones as decided; unchanged ones cost no write.

    `known` are the keys that were there a moment ago, if the caller has looked.
    """
    number = _number(tx, pipeline)
    left = {item.key: item for item in items}
    done = Upserted({}, {}, 0, [])
    if known is None or known:
        done = _change_known(tx, pipeline, left, [*left] if known is None else [*known], decide, done)
    while left:
        # In the order given: it is the order of claiming. Two who add the same keys in other orders at once may wait for
        # each other; the database lets one of them begin again.
        rows = list(left.values())
        for id_, key in tx.run_rows("insert_items", rows, pipeline=number, priority=priority, now=tx.now):
            done.born[key] = id_
            del left[key]
        if left:
            # Somebody else added these a moment ago, and has committed by now.
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
    """The same in a transaction of its own, which commits nothing if there was nothing to do."""
    done = upsert(tx, pipeline, items, decide, priority, known)
    tx.is_for_nothing = not done.born and not done.changed
    return done


def at_once(
    layout: Layout | None, pipeline: str, items: list[NewItem], priority: int, slot: int
) -> AtOnce[Upserted] | None:
    """How one item that seems to be new is added by one statement."""
    number = layout.number_of(pipeline) if layout is not None else None
    if layout is None or number is None or len(items) != 1:
        return None
    [(key, data)] = items
    first = [stage.id for stage in layout.of_pipeline(pipeline) if not stage.after]
    params = {
        "pipeline": number,
        "key": key,
        "data": data,
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
    )


def add_items(
    tx: Transaction, pipeline: str, items: list[NewItem], merge: Merge = overwrite, priority: int = 0
) -> Added:
    """The same, where the caller's own transaction may wait for the merge function."""
    return upsert(tx, pipeline, items, partial(merged, merge), priority).added


def as_looked(looked: Mapping[str, Looked]) -> Decide:
    """What was decided at a look, for items that have not changed since."""

    def decide(key: str, old: str, new: str) -> str | None:
        before = looked.get(key)
        return before.new if before is not None and before.old == old else None

    return decide


def _change_known(
    tx: Transaction, pipeline: str, left: dict[str, NewItem], keys: list[str], decide: Decide, done: Upserted
) -> Upserted:
    """Move those of these items that exist out of `left`, and change those for which something else was decided."""
    updates: list[tuple[int, str]] = []
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
            updates.append((number, new))
            before.append((number, key, data))
    read_anew(tx, pipeline, before)
    tx.run_rows("update_items", updates, now=tx.now)
    enter(tx, own, [number for number, _ in updates])
    return done._replace(changed=done.changed + len(updates))


def _number(tx: Transaction, pipeline: str) -> int:
    number = layout(tx).number_of(pipeline)
    if number is None:
        raise UsageError(f"there is no pipeline {pipeline!r} in this store")
    return number


def merged(merge: Merge, key: str, old: str, new: str) -> str:
    """What a merge function makes of old and new data, checked."""
    if merge is overwrite:
        return new
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
