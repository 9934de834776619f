"""Add items: check them, merge them with known ones of the same key, and upsert them in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.engine.register import learn_provenance
from holdfast.engine.upsert import Added, Looked, NewItem, Upserted, as_looked, at_once, look_up, upsert, upsert_alone
from holdfast.errors import UsageError, ValueMismatch, ValueRefused
from holdfast.model import codec
from holdfast.model.item import check_key
from holdfast.model.typed import ValueType
from holdfast.store import Store, Transaction

#: Items per transaction: long enough to be fast, short enough to let others write in between.
CHUNK = 2000
#: A list of no more than so many items and characters is written in one transaction, which lasts half a second on a busy
#: machine. A hundred thousand items would keep other writers waiting for up to seven.
WHOLE_ITEMS, WHOLE_CHARACTERS = 10_000, 4 * 2**20

#: From old and new data to the data to store.
Merge = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]

#: An item as a user writes it: a mapping with a `key`, or a key alone; with a type, a key and a value of it as well.
Written = str | Mapping[str, Any] | tuple[str, Any]


def overwrite(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The default merge: new data replaces old data."""
    return new


@dataclass(frozen=True, slots=True)
class Addition:
    """Where items are added, and how."""

    pipeline: str
    merge: Merge = overwrite
    priority: int = 0
    #: Called after each chunk with the counts so far.
    progress: Callable[[Added], None] | None = None
    #: What the data is checked against.
    type: ValueType | None = None
    #: The span that adds them, to which their attempts will link.
    traceparent: str | None = None

    def __post_init__(self) -> None:
        given = self.priority
        if isinstance(given, bool) or not isinstance(given, int) or not -(2**31) <= given < 2**31:
            raise UsageError(f"priority {given!r} is not a whole number; smaller ones are claimed first")

    def merged(self, key: str, old: str, new: str) -> str:
        """The merged data of an item, checked."""
        if self.merge is overwrite:
            return new
        data = merged(self.merge, key, old, new)
        return data if self.type is None else typed_data(self.type, self.pipeline, key, codec.decode(data))


#: Lends the store, with its pipelines registered, to one thread at a time.
Opened = Callable[[], AbstractContextManager[Store]]


class Adder:
    """Adds items, and remembers between calls what saves a round trip."""

    def __init__(self) -> None:
        self._learned: set[tuple[str, Merge]] = set()
        #: Whether the latest `add` had new items only: then the next one is likely to, as well.
        self._last_was_new = False

    def add(self, opened: Opened, to: Addition, items: Iterable[Written], *, atomic: bool) -> Added:
        """Add items in transactions of our own. If atomic, all items are checked and merged before the first is written; few
        enough are written in one transaction.
        """
        return self._add_checked(opened, to, read_items(items, to)) if atomic else self._add_stream(opened, to, items)

    def _add_checked(self, opened: Opened, to: Addition, ready: list[NewItem]) -> Added:
        total = Added(0, 0, 0)
        size = len(ready) if (whole := _fit_together(ready)) else CHUNK
        chunks = [ready[at : at + size] for at in range(0, len(ready), size)] if ready else []
        with opened() as store:
            self._learn_provenance(store, to)
            # A merge function that raises does so before anything is written, and no transaction waits for it.
            looks = [_look(store, to, chunk) for chunk in chunks] if self._looks_first(ready, to.merge) else [{}]
            for chunk, looked in zip(chunks, looks, strict=True):
                total += _write(store, to, chunk, looked, whole=whole)
                if to.progress is not None:
                    to.progress(total)
            self._last_was_new = total.new == len(ready)
        return total

    def _add_stream(self, opened: Opened, to: Addition, items: Iterable[Written]) -> Added:
        total = Added(0, 0, 0)
        try:
            for chunk in read_in_chunks(items, to):
                # Only for the chunk: the iterator may take long, or use the same app.
                with opened() as store:
                    self._learn_provenance(store, to)
                    total += _write(store, to, chunk, _look(store, to, chunk))
                if to.progress is not None:
                    to.progress(total)
        except UsageError as error:
            there = f"the {sum(total):,} items before it were added" if any(total) else "nothing was added"
            raise UsageError(f"{error}; {there}") from None
        return total

    def _looks_first(self, items: list[NewItem], merge: Merge) -> bool:
        """Whether to look up known items before writing. Only for single new items, each added by a call of its own,
        would that be a wasted round trip."""
        return len(items) != 1 or merge is not overwrite or not self._last_was_new

    def _learn_provenance(self, store: Store, to: Addition) -> None:
        """Once per pipeline and merge function."""
        if (to.pipeline, to.merge) not in self._learned:
            learn_provenance(to.pipeline, to.merge, store.read, store.write)
            self._learned.add((to.pipeline, to.merge))


def _look(store: Store, to: Addition, items: list[NewItem]) -> dict[str, Looked]:
    there = store.glance(partial(look_up, pipeline=to.pipeline, items=items))
    given = {item.key: item.data for item in items}
    return {key: Looked(old, to.merged(key, old, given[key])) for key, old in there.items()}


def _fit_together(items: list[NewItem]) -> bool:
    """Whether they are written in one transaction."""
    return len(items) <= WHOLE_ITEMS and sum(len(item.data) for item in items) <= WHOLE_CHARACTERS


class _Overtaken(Exception):
    """Another writer has changed an item since it was looked up: nothing was written."""


def _write(
    store: Store, to: Addition, items: list[NewItem], looked: dict[str, Looked], *, whole: bool = False
) -> Added:
    """Write a chunk after a look-up. Items that another writer has changed since are looked up and written again; if the chunk
    is to be written as a whole, all of it is.
    """
    total = Added(0, 0, 0)
    while True:
        # Adding what is there already is common, and takes no write.
        same = {key for key, (old, new) in looked.items() if old == new}
        total += Added(0, 0, len(same))
        items = [item for item in items if item.key not in same]
        if not items:
            return total
        known = [key for key in looked if key not in same]
        slot = store.writer
        work = partial(
            _upsert_whole if whole else upsert_alone,
            pipeline=to.pipeline,
            items=items,
            decide=as_looked(looked),
            priority=to.priority,
            known=known,
        )
        quick = None if known else at_once(store.cache.get("layout"), to.pipeline, items, to.priority, slot)
        try:
            done = store.write(work, slot=slot, at_once=quick)
            total += done.added
            items = done.left
        except _Overtaken:
            pass
        looked = _look(store, to, items) if items else {}


def _upsert_whole(tx: Transaction, **given: Any) -> Upserted:
    """All of the items or, if another writer was faster, none."""
    done = upsert_alone(tx, **given)
    if done.left:
        raise _Overtaken
    return done


def add_within(opened: Opened, connection: Any, to: Addition, items: Iterable[Written], *, atomic: bool) -> Added:
    """Add items inside the transaction of the caller's connection. If atomic, all items are checked first."""
    total = Added(0, 0, 0)
    chunks = iter([read_items(items, to)]) if atomic else read_in_chunks(items, to)
    try:
        # Checked before the store is opened, as far as it may be: nothing waits for it.
        chunk = next(chunks, [])
        with opened() as store:
            guest = store.guest(connection)
        # The store is free again: another caller's transaction may be what this one waits for.
        while chunk:
            # Only for the chunk: the iterator may use the same connection.
            with guest.within() as tx:
                total += add_items(tx, to.pipeline, chunk, to.merge, to.priority, to.type)
            if to.progress is not None:
                to.progress(total)
            chunk = next(chunks, [])
    except UsageError as error:
        if not any(total):
            raise
        there = f"the {sum(total):,} items before it are in your transaction: roll it back, or commit them"
        raise UsageError(f"{error}; {there}") from None
    return total


def add_items(
    tx: Transaction,
    pipeline: str,
    items: list[NewItem],
    merge: Merge = overwrite,
    priority: int = 0,
    type_: ValueType | None = None,
) -> Added:
    """Add items in a transaction that may wait for the merge function."""
    to = Addition(pipeline, merge, priority, None, type_)
    return upsert(tx, pipeline, items, to.merged, priority).added


def merged(merge: Merge, key: str, old: str, new: str) -> str:
    """The merged data of an item, checked."""
    if merge is overwrite:
        return new
    name = getattr(merge, "__name__", repr(merge))
    if not isinstance(stored := codec.decode_if_possible(old), dict):
        raise UsageError(
            f"item {key!r}: its stored data cannot be read, so {name} has nothing to merge with: something other than "
            "holdfast has written it, and `holdfast db check` names its row; delete the item, or add it without a merge "
            "function to overwrite it"
        )
    try:
        value = merge(stored, codec.decode(new))
    except Exception as error:
        raise UsageError(f"item {key!r}: the merge function {name} raised {type(error).__name__}: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"item {key!r}: the merge function {name} returned {type(value).__name__}, not an object")
    try:
        return codec.encode(value)
    except ValueRefused as error:
        raise UsageError(f"item {key!r}: the merge function {name} returned {error}") from None


def typed_data(type_: ValueType, pipeline: str, key: str, data: Any) -> str:
    """The data of an item in the JSON form of its type, or an error with the path of what does not fit."""
    try:
        form = type_.form(data, "data")
        if not isinstance(form, dict):
            raise ValueMismatch(f"data: its form is a {type(form).__name__}, expected an object")
        return codec.encode(form)
    except ValueMismatch as error:
        raise UsageError(f"{pipeline}: item {key!r}: {error}") from None
    except ValueRefused as error:
        raise UsageError(f"{pipeline}: item {key!r}: its data has {error}") from None


def read_items(items: Iterable[Written], to: Addition | None = None) -> list[NewItem]:
    """Check every item before anything is written."""
    ready: dict[str, NewItem] = {}
    for place, given in enumerate(items, start=1):
        item = _read(place, given, to)
        if item.key in ready:
            raise UsageError(f"the key {item.key!r} comes twice in one add; nothing was added")
        ready[item.key] = item
    return list(ready.values())


def read_in_chunks(items: Iterable[Written], to: Addition | None = None) -> Iterator[list[NewItem]]:
    """The same for any number of items, a chunk at a time. A key that comes again starts a new chunk, and is merged."""
    ready: dict[str, NewItem] = {}
    for place, given in enumerate(items, start=1):
        item = _read(place, given, to)
        if item.key in ready:
            yield list(ready.values())
            ready.clear()
        ready[item.key] = item
        if len(ready) == CHUNK:
            yield list(ready.values())
            ready.clear()
    if ready:
        yield list(ready.values())


def _read(place: int, given: object, to: Addition | None) -> NewItem:
    data: Any
    type_, traceparent = (None, None) if to is None else (to.type, to.traceparent)
    if isinstance(given, str):
        key, data = check_key(given), {}
    elif type_ is not None and isinstance(given, tuple) and len(given) == 2:
        key, data = check_key(given[0]), given[1]
    elif isinstance(given, (dict, Mapping)):
        data = dict(given)
        if "key" not in data:
            raise UsageError(f"item {place} has no 'key': {str(data)[:80]}")
        key = check_key(data.pop("key"))
    else:
        raise UsageError(f"item {place} is a {type(given).__name__}; give a key or an object with a 'key'")
    if to is not None and type_ is not None:
        return NewItem(key, typed_data(type_, to.pipeline, key, data), type_.fingerprint, traceparent)
    try:
        return NewItem(key, codec.encode(data), None, traceparent)
    except ValueRefused as error:
        raise UsageError(f"item {key!r}: its data has {error}") from None
