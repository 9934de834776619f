"""A text as a word of a command that a person can paste into a shell."""

from __future__ import annotations

import shlex


def word(text: str) -> str:
    """The text quoted as one word for a shell. Characters that a terminal might obey are escaped."""
    if text.isprintable():
        return shlex.quote(text)
    kept = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in kept) + "'"
