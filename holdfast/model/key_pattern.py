"""A pattern of keys, as a filter writes it: `*` stands for any characters, `?` for one, and everything else for itself.

In brackets, `[*]`, `[?]` and `[[]`, each of these characters stands for itself, too. No other bracket means anything: `b[1]`
is a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from holdfast.model.item import MAX_KEY_BYTES

_CHARACTER = re.compile(r"\[([*?\[])\]|(.)", re.DOTALL)
_WILD = "*?"
#: Sorts after every possible key; and after a prefix, after every key with that prefix. No key has so many bytes.
_LAST = "\U0010ffff" * (MAX_KEY_BYTES // 4 + 1)

#: One pattern or several: an item matches if its key fits any of them. None stands for every item.
Patterns = str | Iterable[str] | None


def several(given: Patterns) -> tuple[str, ...]:
    """The patterns, each once; none for every item."""
    return () if given is None else (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))


def exactly(key: str) -> str:
    """The pattern that matches only this key."""
    return re.sub(r"[*?\[]", r"[\g<0>]", key)


def characters(pattern: str) -> Iterator[tuple[str, bool]]:
    """Each character, and whether it is a wildcard."""
    for found in _CHARACTER.finditer(pattern):
        yield found[1] or found[2], found[1] is None and found[2] in _WILD


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern, and the range of keys that it can match."""

    text: str = "*"

    @property
    def is_plain(self) -> bool:
        """Whether it matches exactly one key."""
        return not any(is_wild for _, is_wild in characters(self.text))

    @property
    def is_narrow(self) -> bool:
        """Whether all keys that it matches have the same prefix: these can be looked up, others must be searched."""
        return self.is_plain or bool(self.low)

    @property
    def low(self) -> str:
        """The first key that it can match."""
        return "".join(char for char, _ in takewhile(lambda one: not one[1], characters(self.text)))

    @property
    def high(self) -> str:
        """The last one, in byte order, as both databases sort."""
        return self.low if self.is_plain else self.low + _LAST
