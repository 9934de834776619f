"""Which part of an item's data is the input of a stage: all of it, what the stage says it reads, or all but provenance.

A stage may read something else after a change. Each result has the number of the reading it was made with, so that it is
compared in the same way: a change of the reading alone makes nothing stale.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from holdfast.model import codec


class Reading(NamedTuple):
    """A part of the data of items."""

    #: Dotted paths; None for everything.
    only: tuple[str, ...] | None = None
    #: Dotted paths of provenance: where an item comes from, not what it is.
    without: tuple[str, ...] = ()

    @classmethod
    def of_stage(cls, reads: Iterable[str] | None, provenance: Iterable[str]) -> Reading:
        """The reading of a stage. What it names is read, even if it is provenance."""
        return cls(None, tuple(sorted(provenance))) if reads is None else cls(tuple(sorted(reads)))

    def digest(self, data: Any) -> str:
        """A hash that is equal for items whose read parts are equal."""
        if self.only is not None:
            return codec.digest([[path, value] for path in self.only for value in at(data, path)])
        for path in self.without:
            data = _without(data, path.split("."))
        return codec.digest(data)


class Readings(NamedTuple):
    """Every reading that a stage ever had, and the number of the current one. 0 is everything."""

    known: tuple[Reading, ...] = (Reading(),)
    number: int = 0

    @property
    def now(self) -> Reading:
        return self.known[self.number]

    def changed_to(self, reading: Reading) -> Readings:
        if reading not in self.known:
            return Readings((*self.known, reading), len(self.known))
        return Readings(self.known, self.known.index(reading))

    def recorded(self, input_hash: str) -> tuple[int, str]:
        """The number of the reading that a hash was made with, and the hash itself."""
        number, _, digest = input_hash.rpartition(":")
        return int(number) if number.isdecimal() else 0, digest

    @classmethod
    def read(cls, text: str) -> Readings:
        try:
            read = msgspec.json.decode(text, type=cls) if text else EVERYTHING
        except (msgspec.DecodeError, TypeError):
            return EVERYTHING
        return read if 0 <= read.number < len(read.known) else EVERYTHING

    def write(self) -> str:
        return msgspec.json.encode(self).decode()


EVERYTHING = Readings()


def tagged(number: int, digest: str) -> str:
    """A hash with the number of the reading it was made with. Number 0 is left out."""
    return f"{number}:{digest}" if number else digest


def _without(data: Any, path: list[str]) -> Any:
    """The data without what is at this path."""
    name, *rest = path
    if not isinstance(data, dict) or name not in data:
        return data
    below = {name: _without(data[name], rest)} if rest else {}
    return {**{other: value for other, value in data.items() if other != name}, **below}


def is_path(path: object) -> bool:
    """Names with dots between them, like `meta.html`."""
    return isinstance(path, str) and all(path.split("."))


def at(data: Any, path: str) -> list[Any]:
    """The value at a path, in a list; an empty list if there is none."""
    for name in path.split("."):
        if not isinstance(data, dict) or name not in data:
            return []
        data = data[name]
    return [data]
