"""For tests, yours and ours: a clock set by hand, crashes at named points, crash tests, and the contract of sources.

clock = ManualClock()
app = Holdfast("sqlite:///test.db", clock=clock)
clock.advance(31)                        # leases of 30 seconds have ended

HOLDFAST_CRASH_AT=commit.after:3 holdfast worker books.py      # killed right after its third commit

crashtest("books.py", item="v.epub").assert_ok()                # same result, wherever it is killed
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.clock import SECOND, microseconds
from holdfast.crashtest.crash_points import CRASH_VARIABLE, crash_at, crash_from_environment

if TYPE_CHECKING:
    from holdfast.crashtest.crash_test import crashtest
    from holdfast.crashtest.record import paid_call
    from holdfast.sources.conformance import SourceContract

__all__ = [
    "CRASH_VARIABLE",
    "ManualClock",
    "SourceContract",
    "UndeclaredInput",
    "crash_at",
    "crash_from_environment",
    "crashtest",
    "paid_call",
    "warn_of_undeclared_input",
]

#: Imported when first used: `holdfast worker` needs none of them.
_HOMES = {
    "SourceContract": "holdfast.sources.conformance",
    "crashtest": "holdfast.crashtest.crash_test",
    "paid_call": "holdfast.crashtest.record",
}


class UndeclaredInput(UserWarning):
    """A handler uses data or results that its stage does not declare (`reads=`, `after=`)."""


@contextmanager
def warn_of_undeclared_input() -> Iterator[None]:
    """Within this block, warn once of each undeclared input that a handler in this process uses."""
    from holdfast.worker import undeclared_reads as undeclared

    told: set[str] = set()

    def warn(use: str) -> None:
        if use not in told:
            told.add(use)
            warnings.warn(use, UndeclaredInput, stacklevel=4)

    with undeclared.listening(warn):
        yield


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now: int = 1_800_000_000 * SECOND, steady: int = 1_000 * SECOND) -> None:
        self.name = "manual"
        self._now = now
        self._steady = steady

    def now(self) -> int:
        return self._now

    def steady(self) -> int:
        return self._steady

    def elapsed(self) -> int:
        return self._steady

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += microseconds(seconds)
        self._steady += microseconds(seconds)

    def set_wall(self, by_seconds: float) -> None:
        """Change the time of day, as if somebody set the clock. No time passes."""
        self._now += microseconds(by_seconds)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"holdfast.testing has no {name!r}")
