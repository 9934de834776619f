"""A merge function for items that several searches find: who found them, for which topic, by which query.

An ordinary function, given to `add(..., merge=merge_provenance)`. The store knows nothing of it.
"""

from __future__ import annotations

from typing import Any

#: Lists that are united, in order and without repeats.
UNITED = ("topics", "queries", "sources")
#: Of two, the earlier stands.
FIRST = ("first_seen",)


def merge_provenance(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The new data, with the topics, queries and sources of both, and the first time it was seen.

    A field that is missing or not of its type counts as nothing; a single text counts as a list of one.
    """
    merged = {**old, **new}
    for name in UNITED:
        if name in old or name in new:
            merged[name] = _united(_listed(old.get(name)), _listed(new.get(name)))
    for name in FIRST:
        seen = [value for value in (old.get(name), new.get(name)) if _is_instant(value)]
        if seen:
            merged[name] = _earliest(seen)
    return merged


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [value] if value else []
    return [entry for entry in value if entry not in (None, "")] if isinstance(value, list) else []


def _united(first: list[Any], second: list[Any]) -> list[Any]:
    united: list[Any] = []
    for entry in first + second:
        # Entries may be objects, which no set holds.
        if entry not in united:
            united.append(entry)
    return united


def _is_instant(value: Any) -> bool:
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or (isinstance(value, str) and bool(value))


def _earliest(seen: list[Any]) -> Any:
    """Texts in ISO form and numbers each have an order of their own; of two kinds, the one that was there stands."""
    return min(seen) if len({isinstance(value, str) for value in seen}) == 1 else seen[0]
