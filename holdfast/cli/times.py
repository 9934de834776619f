"""Instants and lengths of time, as options of a command say them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from holdfast.clock import SECOND, microseconds
from holdfast.errors import UsageError
from holdfast.model.durations import seconds

#: Longer than anything was ever recorded; what is longer still means the same.
LONG_SECONDS = 200 * 365.25 * 86400


def age(text: str, *, what: str) -> float:
    """How old, in seconds."""
    return min(seconds(text, what=what), LONG_SECONDS)


def since(text: str) -> int:
    """An instant, or how long ago it was; in microseconds since 1970."""
    try:
        return microseconds(time.time() - age(text, what="--since"))
    except UsageError:
        pass
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--since {text!r}: give an instant like 2026-02-01T10:00Z, or how long ago like 90m"
        ) from None
    return round((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp() * SECOND)
