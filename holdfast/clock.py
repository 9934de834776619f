"""Time, in whole microseconds.

Two readings, never mixed: `now` is the time of day in UTC, for records and due times; `steady` only ever grows at the
pace of real time and judges leases. On PostgreSQL both come from the database, so that workers' own clocks do not
matter; on SQLite `steady` is the machine's clock since boot, which every process on the machine shares and nobody can
set.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

SECOND = 1_000_000


class Clock(Protocol):
    """What the store asks of a clock; tests set one by hand."""

    @property
    def name(self) -> str:
        """The name of the steady clock: times of two different clocks cannot be compared."""
        ...

    def now(self) -> int:
        """Microseconds since 1970 in UTC."""
        ...

    def steady(self) -> int:
        """Microseconds on a clock that nobody can set; it may stop while the machine sleeps."""
        ...

    def elapsed(self) -> int:
        """The same, including the sleep of the machine: tells a sleep from a clock that was set."""
        ...


class HostClock:
    """This machine's clocks."""

    def __init__(self) -> None:
        self.name = f"boot {boot_id()}"

    def now(self) -> int:
        return time.time_ns() // 1000

    def steady(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000

    def elapsed(self) -> int:
        return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


def boot_id() -> str:
    """A name for this machine's current boot; processes that share it share the steady clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Without procfs: the time of boot, rounded so that every process finds the same.
        return str(round((time.time() - time.monotonic()) / 10))


def microseconds(seconds: float) -> int:
    return round(seconds * SECOND)
