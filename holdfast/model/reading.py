"""What of an item's data counts as input of a stage: all of it, what the stage says it reads, or all but provenance.

A stage may come to read something else. What was made before says, by a number, which reading it was made with, so that it is
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
    #: Dotted paths of what says where an item comes from, and nothing about what it is.
    without: tuple[str, ...] = ()

    @classmethod
    def of_stage(cls, reads: Iterable[str] | None, provenance: Iterable[str]) -> Reading:
        """What is named is read, also if it is provenance."""
        return cls(None, tuple(sorted(provenance))) if reads is None else cls(tuple(sorted(reads)))

    def digest(self, data: Any) -> str:
        """The same for items that are the same as far as they are read."""
        if self.only is not None:
            return codec.digest([[path, value] for path in self.only for value in at(data, path)])
        for path in self.without:
            data = _without(data, path.split("."))
        return codec.digest(data)


class Readings(NamedTuple):
    """Every reading that was ever in force at a stage, and the number of the one that is now. 0 is everything."""

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
    """A hash that says which reading it was made with. Everything goes without saying."""
    return f"{number}:{digest}" if number else digest


def _without(data: Any, path: list[str]) -> Any:
    """The same data but for one place."""
    name, *rest = path
    if not isinstance(data, dict) or name not in data:
        return data
    below = {name: _without(data[name], rest)} if rest else {}
    return {**{other: value for other, value in data.items() if other != name}, **below}


def is_path(path: object) -> bool:
    """Names with dots between them, like `meta.html`."""
    return isinstance(path, str) and all(path.split("."))


def at(data: Any, path: str) -> list[Any]:
    """What lies at a path; nothing if there is no such place."""
    for name in path.split("."):
        if not isinstance(data, dict) or name not in data:
            return []
        data = data[name]
    return [data]
