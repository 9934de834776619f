"""A key as a filter writes it, and between which keys all that it means must lie."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.model.item import MAX_KEY_BYTES

_WILD = re.compile(r"[*?]")
#: Sorts behind whatever a key can be, and after a prefix behind every key that begins with it: none has so many bytes.
_LAST = "\U0010ffff" * (MAX_KEY_BYTES // 4 + 1)


@dataclass(frozen=True, slots=True)
class Pattern:
    """`*` and `?` are wild, everything else is itself."""

    text: str = "*"

    @property
    def is_plain(self) -> bool:
        """Whether it means one key."""
        return not _WILD.search(self.text)

    @property
    def is_narrow(self) -> bool:
        """Whether it means only keys that begin alike: those can be looked up, others must be searched."""
        return self.is_plain or bool(self.low)

    @property
    def low(self) -> str:
        """The first key that it could mean."""
        return _WILD.split(self.text, maxsplit=1)[0]

    @property
    def high(self) -> str:
        """The last one, in the order of bytes, which is that of both databases."""
        return self.low if self.is_plain else self.low + _LAST
