"""Settings of a source with `{value}` in them, which `for_each` replaces by the value of each item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

VALUE = "{value}"
_ADDRESS = ("http://", "https://")


def fill(given: Any, value: Any) -> Any:
    """Replace `{value}` in settings: by the value itself if it is the whole text, escaped in an address, as text elsewhere."""
    if isinstance(given, Mapping):
        return {key: fill(one, value) for key, one in given.items()}
    if isinstance(given, (list, tuple)):
        return [fill(one, value) for one in given]
    if not isinstance(given, str) or VALUE not in given:
        return given
    if given == VALUE:
        return value
    return given.replace(VALUE, quote(str(value), safe="") if given.lower().startswith(_ADDRESS) else str(value))


def has_value(given: Any) -> bool:
    """Whether `{value}` occurs in these settings."""
    if isinstance(given, Mapping):
        return any(map(has_value, given.values()))
    if isinstance(given, (list, tuple)):
        return any(map(has_value, given))
    return isinstance(given, str) and VALUE in given


def names_its_host(address: str) -> bool:
    """Whether the host of an address does not depend on the value."""
    return address.lower().startswith(_ADDRESS) and VALUE not in urlsplit(address).netloc
