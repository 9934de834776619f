"""Turn rows of any kind into found items: which value is the key, and which is the mark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.model import codec
from holdfast.model.found_items import Found

_MISSING = object()


class BadRow(Exception):
    """A row that cannot be an item, among others that can."""


def found_in(row: Any, key: str, *, mark: str | None = None) -> Found:
    """An item from a row: a mapping with a key at the path `key`, or a key alone."""
    if isinstance(row, str):
        return Found(row, {})
    if not isinstance(row, Mapping):
        raise BadRow(f"a {_kind(row)}, not an object with a key")
    value = at(row, key)
    if value is _MISSING:
        raise BadRow(f"nothing at {key!r}")
    data = {name: value for name, value in row.items() if name != "key"}
    noted = at(row, mark) if mark else None
    return Found(as_key(value), data, "" if noted in (None, _MISSING) else codec.digest([noted]))


def as_key(value: Any) -> str:
    """A key from a text or a whole number."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise BadRow(f"a {_kind(value)} as its key, which is neither a text nor a whole number")


def at(value: Any, path: str) -> Any:
    """The value at a path of names and numbers, or `missing`."""
    if isinstance(value, Mapping) and path in value:
        return value[path]
    for step in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(step, _MISSING)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return _MISSING
    return value


def put(value: Any, path: str, new: Any) -> Any:
    """A copy of a mapping with a value at a path of names, which is created if needed."""
    name, _, rest = path.partition(".")
    inner = value.get(name, {}) if rest else None
    if rest and not isinstance(inner, Mapping):
        raise BadRow(f"{name!r} is a {_kind(inner)}, in which nothing can be put")
    return {**value, name: put(inner, rest, new) if rest else new}


def is_missing(value: Any) -> bool:
    return value is _MISSING


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
