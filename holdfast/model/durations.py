"""Lengths of time as people write them: `30`, `1.5`, `"30m"`, `"1h30m"`."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from holdfast.errors import UsageError

Duration = float | int | str | timedelta

#: In microseconds it must fit into 64 bits when added to the time.
LONGEST_SECONDS = 1000 * 366 * 86400.0

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)")


def seconds(length: Duration, *, what: str = "a length of time") -> float:
    """Read a length of time; `what` names it in the error."""
    if isinstance(length, timedelta):
        value = length.total_seconds()
    elif isinstance(length, bool) or not isinstance(length, (int, float, str)):
        raise UsageError(f"{what}: {length!r} is not a length of time; give seconds or a text like '30m'")
    elif isinstance(length, str):
        value = _read(length.strip(), what)
    else:
        value = float(length) if abs(length) < 1e15 else math.inf
    if not 0 <= value <= LONGEST_SECONDS:
        # Python refuses to write out the digits of an enormous number.
        given = "a number" if isinstance(length, int) and abs(length) >= 1e15 else repr(length)
        raise UsageError(f"{what}: {given} must be zero or more, and a thousand years at most")
    return value


def _read(text: str, what: str) -> float:
    try:
        return float(text)
    except (ValueError, OverflowError):
        pass
    if not text or _PART.sub("", text):
        raise UsageError(f"{what}: {text!r} is not a length of time; write it like '45s', '30m' or '1h30m'")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def spoken(length_seconds: float) -> str:
    """The same, for people: `0.4 s`, `12 s`, `3 m 20 s`, `2 h 5 m`."""
    if length_seconds < 10:
        return f"{length_seconds:.1f} s"
    whole = round(length_seconds)
    for big, small, size in (("d", "h", 86400), ("h", "m", 3600), ("m", "s", 60)):
        if whole >= size:
            rest = whole % size // (size // 24 if big == "d" else size // 60)
            return f"{whole // size} {big} {rest} {small}" if rest else f"{whole // size} {big}"
    return f"{whole} s"
