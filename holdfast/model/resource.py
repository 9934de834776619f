"""A resource: something external, shared and limited, with its limits as its author wrote them, checked.

A pipeline or a stage may have limits of its own, which are resources too, named after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from zoneinfo import ZoneInfo

from holdfast.errors import UsageError
from holdfast.model.breaker import BreakerSpec
from holdfast.model.did_you_mean import there_are
from holdfast.model.durations import seconds
from holdfast.model.money import micros
from holdfast.model.rate import Rate

#: How long a resource cools down after a rate limit that names no time. A provider that asks for more than a day wants
#: money rather than time.
COOL_SECONDS = 30.0
COOL_MOST_SECONDS = 86_400.0
#: How late a call may begin after it was granted; and on a busy machine, where a quarter of the burst allows for it. A call
#: that is later no longer fits the pace, and is claimed again.
HAND_OVER_SECONDS = 0.05
BUSY_HAND_OVER_SECONDS = 0.25

#: What `ResourceSpec.read` understands, with an example each.
KEYS: Mapping[str, Any] = {
    "rate": "60/min",
    "burst": 5,
    "concurrency": 8,
    "units": {"tokens": "100000/min"},
    "budget_per_day": "20.00",
    "budget": "500.00",
    "zone": "Europe/Berlin",
    "cool": "30s",
    "cool_most": "24h",
    "adaptive": True,
    "breaker": {"failures": 5, "share": 0.5, "minimum": 20, "probe_after": "1m"},
}


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """The limits of a resource. None means no limit."""

    name: str
    rate: Rate | None = None
    burst: int | None = None
    concurrency: int | None = None
    #: Weighted units, such as tokens, each with a rate of its own.
    units: Mapping[str, Rate] = field(default_factory=dict)
    #: In millionths.
    budget_per_day: int | None = None
    budget: int | None = None
    zone: str = "UTC"
    cool_seconds: float = COOL_SECONDS
    cool_most_seconds: float = COOL_MOST_SECONDS
    #: Whether a rate limit halves the pace, which then grows back.
    adaptive: bool = False
    breaker: BreakerSpec | None = None

    @classmethod
    def read(cls, name: str, given: Mapping[str, Any], *, where: str = "") -> ResourceSpec:
        """Read what a person wrote; an error names the key that is wrong."""
        where = where or f"resource {name!r}"
        if not isinstance(given, Mapping):
            raise UsageError(f"{where}: {given!r} is not a mapping; write it like {{'rate': '60/min'}}")
        for key in given:
            if key not in KEYS:
                raise UsageError(f"{where}: {key!r} is unknown; {there_are(key, KEYS)}")
        values: dict[str, Any] = {"name": name}
        for key, value in given.items():
            if value is not None:
                target, read = _READERS[key]
                values[target] = read(value, f"{where}: {key}")
        if "burst" in values and "rate" not in values:
            raise UsageError(f"{where}: burst needs a rate")
        return cls(**values)

    @property
    def bursts(self) -> int:
        """How many calls are granted at once. Slightly fewer than may begin at once: between a grant and its call there is a
        commit and a hand-over, and calls that were granted apart may begin together."""
        if self.rate is None:
            return 1
        most = self.burst if self.burst is not None else self.rate.default_burst
        late, busy = (math.ceil(self.rate.per_second * time) for time in (HAND_OVER_SECONDS, BUSY_HAND_OVER_SECONDS))
        return max(1, most - max(min(late, most // 2), min(busy, most // 4)))

    @property
    def hand_over_seconds(self) -> float | None:
        """How late an attempt may begin after it was granted, if there is a rate: the part of the burst that was held back
        allows for it. With a burst of one nothing can be held back, and two calls may be slightly too close."""
        if self.rate is None:
            return None
        most = self.burst if self.burst is not None else self.rate.default_burst
        return max(HAND_OVER_SECONDS, (most - self.bursts) / self.rate.per_second)

    @property
    def limits_anything(self) -> bool:
        return any(
            getattr(self, one.name) != one.default for one in fields(self) if one.name not in ("name", "units")
        ) or bool(self.units)

    @property
    def has_budget(self) -> bool:
        return self.budget is not None or self.budget_per_day is not None


def _whole(value: object, what: str) -> int:
    # Python reads no number of thousands of digits, and no superscripts.
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000_000:
        raise UsageError(f"{what}: {value!r} is not a whole number of 1 or more")
    return value


def _yes_or_no(value: object, what: str) -> bool:
    known = {"true": True, "yes": True, "false": False, "no": False}
    answer = known.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(answer, bool):
        raise UsageError(f"{what}: {value!r} is neither true nor false")
    return answer


def _zone(value: object, what: str) -> str:
    try:
        return ZoneInfo(str(value)).key
    except (OSError, ValueError, KeyError):
        raise UsageError(f"{what}: {value!r} is not a time zone; write it like 'Europe/Berlin'") from None


def _units(value: object, what: str) -> dict[str, Rate]:
    if not isinstance(value, Mapping) or not all(isinstance(unit, str) and unit for unit in value):
        raise UsageError(f"{what}: {value!r} is not a mapping; write it like {{'tokens': '100000/min'}}")
    return {unit: Rate.read(rate, what=f"{what}: {unit}") for unit, rate in value.items()}


def _share(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise UsageError(f"{what}: {value!r} is no share; give a number over 0, up to 1")
    return float(value)


def _breaker(value: object, what: str) -> BreakerSpec | None:
    if isinstance(value, bool):
        return BreakerSpec() if value else None
    if not isinstance(value, Mapping):
        raise UsageError(f"{what}: {value!r} is not a mapping; write it like {KEYS['breaker']!r}, or true")
    readers: dict[str, tuple[str, Any]] = {
        "failures": ("failures", _whole),
        "share": ("share", _share),
        "minimum": ("minimum", _whole),
        "probe_after": ("probe_after_seconds", lambda length, where: seconds(length, what=where)),
    }
    for key in value:
        if key not in readers:
            raise UsageError(f"{what}: {key!r} is unknown; {there_are(key, readers)}")
    read = {readers[key][0]: readers[key][1](one, f"{what}: {key}") for key, one in value.items()}
    return BreakerSpec(**read)


_READERS: Mapping[str, tuple[str, Any]] = {
    "rate": ("rate", lambda value, what: Rate.read(value, what=what)),
    "burst": ("burst", _whole),
    "concurrency": ("concurrency", _whole),
    "units": ("units", _units),
    "budget_per_day": ("budget_per_day", lambda value, what: micros(value, what=what)),
    "budget": ("budget", lambda value, what: micros(value, what=what)),
    "zone": ("zone", _zone),
    "cool": ("cool_seconds", lambda value, what: seconds(value, what=what)),
    "cool_most": ("cool_most_seconds", lambda value, what: seconds(value, what=what)),
    "adaptive": ("adaptive", _yes_or_no),
    "breaker": ("breaker", _breaker),
}
