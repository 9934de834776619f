"""Items from a function that yields keys, or mappings with a key."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from holdfast.sources import readers
from holdfast.sources.contract import Found, Kept, Reader, Source, SourceFailed, said
from holdfast.sources.dotted import load
from holdfast.sources.rows import BadRow, found_in


class Python(Source):
    """A function by its full name. One that takes `memory` may leave JSON in it, and yield only new items."""

    kind = "python"
    templates = ("args",)
    options: ClassVar[Mapping[str, Reader]] = {"python": readers.dotted, "args": readers.json_mapping}

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        name = self.settings["python"]
        function = load(name, "python")
        given = dict(self.settings.get("args", {}))
        if _takes_memory(function):
            given["memory"] = memory
            self.whole = False
        try:
            answer = function(**given)
        except Exception as error:
            raise SourceFailed(f"{name} raised {said(error)}") from error
        if inspect.isawaitable(answer) or hasattr(answer, "__aiter__"):
            if inspect.iscoroutine(answer):
                answer.close()
            raise SourceFailed(f"{name} is asynchronous: let a plain function yield the items")
        if isinstance(answer, (str, bytes, Mapping)):
            raise SourceFailed(
                f"{name} returned a {type(answer).__name__}: let it yield items, or return a list of them"
            )
        try:
            items = iter(answer)
        except TypeError:
            raise SourceFailed(f"{name} returned a {type(answer).__name__}, and no items") from None
        yield from self._items(name, items)

    def _items(self, name: str, items: Iterator[Any]) -> Iterator[Found]:
        try:
            while True:
                try:
                    row = next(items)
                except StopIteration:
                    return
                except Exception as error:
                    raise SourceFailed(f"{name} raised {said(error)}") from error
                try:
                    found = found_in(row, "key")
                except BadRow as error:
                    self.skip(f"{name} yielded {error}")
                else:
                    yield found
        finally:
            close = getattr(items, "close", None)
            if callable(close):
                # Errors raised while it is closed no longer matter.
                with suppress(Exception):
                    close()


def _takes_memory(function: Any) -> bool:
    try:
        return "memory" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
