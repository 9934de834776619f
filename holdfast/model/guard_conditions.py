"""Guards: conditions that a worker checks, on its machine, before it starts work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from holdfast.errors import UsageError
from holdfast.model.did_you_mean import there_are

#: What `Guards.read` understands, with an example each.
KEYS: Mapping[str, Any] = {
    "hours": "22:00-06:00",
    "zone": "Europe/Berlin",
    "disk_free": "5GB",
    "exists": "/mnt/books",
    "handler": "my_package.is_quiet",
}

_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i)?)?B?", re.IGNORECASE)
#: In bytes it must fit into 64 bits.
LARGEST_SIZE = 9 * 10**18
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True)
class Hours:
    """A part of every day, perhaps over midnight."""

    begin: time
    end: time
    zone: str = "UTC"

    @classmethod
    def read(cls, text: object, zone: str = "UTC", *, what: str = "hours") -> Hours:
        found = _HOURS.fullmatch(text.strip()) if isinstance(text, str) else None
        try:
            if found is None:
                raise ValueError
            begin, end = (time(int(found[n]) % 24, int(found[n + 1])) for n in (1, 3))
            late = any(int(found[n]) > 24 or (int(found[n]) == 24 and int(found[n + 1])) for n in (1, 3))
            if late or begin == end:
                raise ValueError
        except ValueError:
            raise UsageError(f"{what}: {text!r} is not a part of a day; write it like '22:00-06:00'") from None
        try:
            ZoneInfo(zone)
        except (OSError, ValueError, TypeError, KeyError):
            raise UsageError(f"{what}: {zone!r} is not a time zone; write it like 'Europe/Berlin'") from None
        return cls(begin, end, zone)

    def contain(self, moment: datetime) -> bool:
        """Whether a moment (with a time zone) is within these hours."""
        clock = moment.astimezone(ZoneInfo(self.zone)).time().replace(tzinfo=None)
        if self.begin < self.end:
            return self.begin <= clock < self.end
        return clock >= self.begin or clock < self.end

    def next_begin(self, moment: datetime) -> datetime:
        """When they begin next. If the clock skips that time, right after the gap."""
        zone = ZoneInfo(self.zone)
        day = moment.astimezone(zone).date()
        for ahead in range(3):
            begin = datetime.combine(day + timedelta(days=ahead), self.begin, zone).astimezone(UTC)
            # If the clock skips that time, this is too late by the part of the gap before it.
            while self.contain(begin - timedelta(minutes=1)):
                begin -= timedelta(minutes=1)
            if begin > moment:
                return begin
        raise AssertionError("a day begins every day")


@dataclass(frozen=True, slots=True)
class Guards:
    """Conditions that must all hold for work to start."""

    hours: Hours | None = None
    disk_free: int | None = None
    exists: tuple[str, ...] = ()
    #: Full dotted paths of functions without arguments. True lets work start, a text says why not.
    handlers: tuple[str, ...] = ()

    @classmethod
    def read(cls, given: Mapping[str, Any], *, where: str = "guards") -> Guards:
        """Read what a person wrote; an error names the key that is wrong."""
        if not isinstance(given, Mapping):
            raise UsageError(f"{where}: {given!r} is not a mapping; write it like {{'hours': '22:00-06:00'}}")
        for key in given:
            if key not in KEYS:
                raise UsageError(f"{where}: {key!r} is unknown; {there_are(key, KEYS)}")
        given = {key: value for key, value in given.items() if value is not None}
        zone = given.get("zone", "UTC")
        if "zone" in given and "hours" not in given:
            raise UsageError(f"{where}: zone needs hours")
        return cls(
            hours=Hours.read(given["hours"], zone, what=f"{where}: hours") if "hours" in given else None,
            disk_free=read_size(given["disk_free"], what=f"{where}: disk_free") if "disk_free" in given else None,
            exists=_texts(given.get("exists", ()), f"{where}: exists"),
            handlers=_texts(given.get("handler", ()), f"{where}: handler"),
        )

    def __bool__(self) -> bool:
        return self != Guards()


def read_size(text: object, *, what: str = "size") -> int:
    """Bytes, from `5GB`, `500 MB` or a plain number."""
    size: float
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        size = text
    else:
        found = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None:
            raise UsageError(f"{what}: {text!r} is not a size; write it like '5GB' or '500MB'")
        size = float(found[1]) * float(1024 if found[3] else 1000) ** _POWERS[(found[2] or "").upper()]
    if size > LARGEST_SIZE:
        raise UsageError(f"{what}: more than {LARGEST_SIZE // 10**15:,} PB, which nothing has")
    return round(size)


def _texts(value: object, what: str) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(one, str) and one for one in texts):
        raise UsageError(f"{what}: {value!r} is neither a text nor a list of texts")
    return tuple(texts)
