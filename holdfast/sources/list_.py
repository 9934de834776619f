"""Items listed in the source itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from holdfast.engine.add import read_items
from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.sources.contract import Found, Kept, Reader, Source


def _items(value: Any, what: str) -> list[Any]:
    """Keys, and objects with a key; every one is checked when the source is read."""
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{what}: {value!r} is not a list; write it like ['a', {{'key': 'b', 'pages': 12}}]")
    try:
        read_items(value)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None
    return [codec.plain(one) for one in value]


class List(Source):
    """A literal list."""

    kind = "list"
    options: ClassVar[Mapping[str, Reader]] = {"list": _items}

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        for item in read_items(self.settings["list"]):
            yield Found(item.key, codec.decode(item.data))
