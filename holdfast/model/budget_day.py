"""Calendar days: a budget per day ends at midnight in its time zone."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

_EPOCH = date(1970, 1, 1)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def day_of(at_us: int, zone: str = "UTC") -> int:
    """The day in a time zone, as a number counted from 1970."""
    return (datetime.fromtimestamp(at_us // 1_000_000, _zone(zone)).date() - _EPOCH).days


def date_of(day: int) -> str:
    """A day as people write it; its number if it is beyond the calendar."""
    try:
        return str(_EPOCH + timedelta(days=day))
    except OverflowError:
        return f"day {day}"


def next_day_at(at_us: int, zone: str = "UTC") -> int:
    """When the next day begins in a zone. A day may have 23 or 25 hours, or begin at one o'clock."""
    day = _EPOCH + timedelta(days=day_of(at_us, zone) + 1)
    begins = datetime.combine(day, time(), _zone(zone)).astimezone(UTC)
    # If the clock skips midnight, the moment before is still yesterday.
    while day_of(round(begins.timestamp() * 1e6), zone) < (day - _EPOCH).days:
        begins += timedelta(minutes=15)
    return round(begins.timestamp() * 1_000_000)
