"""The nearest of the names that exist, for messages about one that does not."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

#: Among how many names the nearest is looked for: to compare each with each takes long.
COMPARED = 200


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """What there is, the nearest first where one is near: for the end of a message."""
    near = get_close_matches(name[:100], known, n=1) if len(known) <= COMPARED else []
    if near:
        return f"did you mean {near[0]!r}?"
    more = ", …" if len(known) > 20 else ""
    return f"expected one of: {', '.join(known[:20])}{more}" if known else "there is none"
