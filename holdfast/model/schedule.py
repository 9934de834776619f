"""Schedules: when something is due again, by an interval or by cron. Pure: a moment goes in, the next one comes out.

Ticks of an interval lie on a grid that begins in 1970, so every worker finds the same ones and none drifts. Cron times are
times of a zone's clock. Where the clock is set forward, a time that does not exist is due right after the gap; where it is
set back, a time that comes twice is due the first time only. A schedule whose hour begins with `*` follows real time
instead: every hour stays every hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from holdfast.clock import SECOND, microseconds
from holdfast.errors import UsageError
from holdfast.model.did_you_mean import there_are
from holdfast.model.durations import seconds

#: What `Schedule.read` understands, with an example each.
KEYS: Mapping[str, Any] = {"every": "10m", "cron": "0 6 * * *", "zone": "Europe/Berlin"}

#: Later than any tick.
NEVER = 2**62

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Schedules are tried from here: one without a tick in the next fifty years is never due.
_TRIAL = datetime(2001, 1, 1)
_TICK = timedelta(seconds=1)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Either an interval or a cron expression of five fields in a time zone."""

    every_us: int | None = None
    cron: str | None = None
    zone: str = "UTC"

    @classmethod
    def read(cls, given: Mapping[str, Any], *, where: str = "schedule") -> Schedule:
        """Read `{"every": "10m"}` or `{"cron": "0 6 * * *", "zone": "Europe/Berlin"}`; refuse what can never be due."""
        if not isinstance(given, Mapping):
            raise UsageError(f"{where}: {given!r} is not a mapping; write it like {{'every': '10m'}}")
        for key in given:
            if key not in KEYS:
                raise UsageError(f"{where}: {key!r} is unknown; {there_are(key, KEYS)}")
        given = {key: value for key, value in given.items() if value is not None}
        if ("every" in given) == ("cron" in given):
            raise UsageError(f"{where}: write either 'every', like '10m', or 'cron', like '0 6 * * *'")
        if "every" in given:
            if "zone" in given:
                raise UsageError(f"{where}: zone needs cron; an interval is the same everywhere")
            length = seconds(given["every"], what=f"{where}: every")
            if length < 1:
                raise UsageError(f"{where}: every: {given['every']!r} is too short; a second is the least")
            return cls(every_us=microseconds(length))
        zone = given.get("zone", "UTC")
        try:
            ZoneInfo(zone)
        except (OSError, ValueError, TypeError, KeyError):
            raise UsageError(f"{where}: zone: {zone!r} is not a time zone; write it like 'Europe/Berlin'") from None
        return cls(cron=_read_cron(given["cron"], f"{where}: cron"), zone=zone)

    def next_after(self, moment_us: int) -> int:
        """The first tick after a moment, both in microseconds since 1970 in UTC."""
        if self.every_us is not None:
            return (moment_us // self.every_us + 1) * self.every_us
        assert self.cron is not None
        try:
            moment = _EPOCH + timedelta(microseconds=moment_us)
            follow = _next_of_real_time if self.cron.split()[1].startswith("*") else _next_of_the_clock
            return (follow(self.cron, ZoneInfo(self.zone), moment) - _EPOCH) // timedelta(microseconds=1)
        except (OverflowError, StopIteration):
            # Beyond the end of the calendar.
            return NEVER

    @property
    def text(self) -> str:
        """For people."""
        if self.every_us is not None:
            return f"every {self.every_us / SECOND:g} s"
        return f"{self.cron} ({self.zone})"


def _read_cron(text: object, what: str) -> str:
    from cronsim import CronSim

    example = "write minute, hour, day, month and weekday like '0 6 * * MON-FRI'"
    if not isinstance(text, str) or len(text.split()) != 5:
        raise UsageError(f"{what}: {text!r} has not five fields; {example}")
    cron = " ".join(text.split())
    try:
        next(CronSim(cron, _TRIAL))
    except StopIteration:
        raise UsageError(f"{what}: {text!r} is never due; {example}") from None
    except Exception as error:
        # The library raises anything for an unexpected text; the text is wrong in any case.
        said = f" ({error})" if str(error) else ""
        raise UsageError(f"{what}: {text!r} cannot be read or is never due{said}; {example}") from None
    return cron


def _from(cron: str, naive: datetime) -> datetime:
    """The first match at or after a time without a zone."""
    from cronsim import CronSim

    return next(CronSim(cron, naive - _TICK))


def _next_of_the_clock(cron: str, zone: ZoneInfo, moment: datetime) -> datetime:
    """By wall-clock time: each time of day once a day, even if the clock is changed."""
    naive = moment.astimezone(zone).replace(tzinfo=None, microsecond=0)
    while True:
        naive = _from(cron, naive + _TICK)
        tick = naive.replace(tzinfo=zone).astimezone(UTC)
        while tick.astimezone(zone).replace(tzinfo=None) != naive:
            # The clock skips this time: take the first that exists.
            naive = naive.replace(second=0) + timedelta(minutes=1)
            tick = naive.replace(tzinfo=zone).astimezone(UTC)
        if tick > moment:
            return tick


def _next_of_real_time(cron: str, zone: ZoneInfo, moment: datetime) -> datetime:
    """Every moment at which wall-clock time matches. Between two changes of the clock its offset is constant."""
    start = moment.replace(microsecond=0) + _TICK
    while True:
        offset = _offset(zone, start)
        tick = _from(cron, (start + offset).replace(tzinfo=None)).replace(tzinfo=UTC) - offset
        change = _first_change(zone, start, tick)
        if change is None:
            return tick
        start = change


def _first_change(zone: ZoneInfo, start: datetime, end: datetime) -> datetime | None:
    """When the zone's offset first changes after `start`, up to and including `end`; to the second."""
    offset, low = _offset(zone, start), start
    while low < end:
        high = min(low + _DAY, end)
        if _offset(zone, high) != offset:
            while high - low > _TICK:
                middle = low + (high - low) // _TICK // 2 * _TICK
                low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
            return high
        low = high
    return None


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()
