"""Instants and lengths of time, as options of a command say them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.errors import UsageError
from holdfast.model.durations import seconds

#: Longer than anything was ever recorded; what is longer still means the same.
LONG_SECONDS = 200 * 365.25 * 86400


def age(text: str, *, what: str) -> float:
    """How old, in seconds."""
    return min(seconds(text, what=what), LONG_SECONDS)


def since(text: str, what: str = "--since") -> datetime:
    """An instant, or how long ago it was."""
    try:
        return datetime.now(UTC) - timedelta(seconds=age(text, what=what))
    except UsageError:
        pass
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{what} {text!r}: give an instant like 2026-02-01T10:00Z, or how long ago like 90m") from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)
