"""A merge function that keeps how items were found: by which source, for which topic, with which query, and when.

Pass it to `add(..., merge=merge_provenance)`, or name it in a job file. The store only learns which fields are provenance:
they are input only to stages that name them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, overload

from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.declared_reads import at, is_path

#: The lists that are united by default, in order and without duplicates.
FIELDS = ("topics", "queries", "discovery_sources", "sources")
#: The earliest and the latest known time.
FIRST, LAST = "first_seen", "last_seen"

ItemData = dict[str, Any]


@dataclass(frozen=True)
class ProvenanceMerge:
    """The new data, with the provenance of both: the lists of its fields united, and the first and last time it was seen.

    A field may be nested (`meta.queries`). A single value counts as a list of one; None and empty texts are dropped.
    """

    fields: tuple[str, ...]

    @property
    def provenance(self) -> frozenset[str]:
        """The fields that say how an item was found, not what it is."""
        return frozenset((*self.fields, FIRST, LAST))

    @overload
    def __call__(self, old: ItemData, new: ItemData, /) -> ItemData: ...
    @overload
    def __call__(self, *, fields: Iterable[str]) -> ProvenanceMerge: ...

    def __call__(self, *sides: ItemData, fields: Iterable[str] | None = None) -> Any:
        """Merge; or, given names of fields, return a merge function that unites these instead."""
        if fields is not None:
            return ProvenanceMerge(_names(fields))
        old, new = sides
        merged = {**old, **new}
        for name in self.fields:
            known = [value for side in sides for value in at(side, name)]
            if known:
                _put(merged, name.split("."), _united(entry for value in known for entry in _listed(value)))
        return merged | _times(old, new)


merge_provenance = ProvenanceMerge(FIELDS)


def _names(fields: Iterable[str]) -> tuple[str, ...]:
    names = () if isinstance(fields, str) else tuple(fields)
    if not names or not all(map(is_path, names)):
        raise UsageError(f"merge_provenance(fields={fields!r}): give a list of names, like ['topics', 'meta.queries']")
    return names


def _put(data: ItemData, path: list[str], entries: list[Any]) -> None:
    """Write to a path, copying the objects on the way: the caller's must not change."""
    for name in path[:-1]:
        inner = data.get(name)
        if not isinstance(inner, dict) and not entries:
            return
        data[name] = data = dict(inner) if isinstance(inner, dict) else {}
    data[path[-1]] = entries


def _listed(value: Any) -> list[Any]:
    return [entry for entry in (value if isinstance(value, list) else [value]) if entry is not None and entry != ""]


def _united(entries: Iterable[Any]) -> list[Any]:
    """Each entry once, compared as JSON: 1 is not true, and entries may be objects."""
    found: dict[str, Any] = {}
    for entry in entries:
        found.setdefault(codec.digest(entry), entry)
    return [*found.values()]


def _times(old: ItemData, new: ItemData) -> ItemData:
    """The earliest and latest time. ISO texts and numbers cannot be compared with each other: the older kind is kept."""
    seen = [side[name] for side in (old, new) for name in (FIRST, LAST) if _is_instant(side.get(name))]
    if not seen:
        return {}
    seen = [time for time in seen if isinstance(time, str) is isinstance(seen[0], str)]
    first, last = min(seen), max(seen)
    return {FIRST: first} | ({LAST: last} if last != first or LAST in old or LAST in new else {})


def _is_instant(value: Any) -> bool:
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or (isinstance(value, str) and bool(value))
