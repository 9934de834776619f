"""Times as APIs write them, ISO 8601 texts or growing numbers: which is later, and an earlier one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

#: Numbers from here on count milliseconds, not seconds.
_MILLISECONDS = 10**11


def later(one: Any, other: Any) -> Any:
    """The later of two. One that cannot be read is ignored."""
    mine, its = _read(one), _read(other)
    if its is None:
        return one
    return other if mine is None or its > mine else one


def earlier(moment: Any, seconds: float) -> Any:
    """The time this many seconds before, written in the same way."""
    if not seconds or _read(moment) is None:
        return moment
    if isinstance(moment, str):
        before = (datetime.fromisoformat(moment) - timedelta(seconds=seconds)).isoformat()
        return before.replace("+00:00", "Z") if moment.endswith("Z") else before
    return moment - type(moment)(seconds * 1000 if abs(moment) >= _MILLISECONDS else seconds)


def _read(moment: Any) -> float | None:
    if isinstance(moment, (int, float)) and not isinstance(moment, bool):
        return float(moment)
    if not isinstance(moment, str):
        return None
    try:
        time = datetime.fromisoformat(moment)
    except ValueError:
        return None
    return time.replace(tzinfo=time.tzinfo or UTC).timestamp()
