"""For tests, yours and ours: a clock set by hand, named points at which a process ends, crash tests, and what a kind of
source has to keep to.

clock = ManualClock()
app = Holdfast("sqlite:///test.db", clock=clock)
clock.advance(31)                        # leases of 30 seconds have ended

HOLDFAST_CRASH_AT=commit.after:3 holdfast worker books.py      # killed right after its third commit

crashtest("books.py", item="v.epub").assert_ok()                # killed everywhere, it comes to the same
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast import points
from holdfast.clock import SECOND, microseconds

if TYPE_CHECKING:
    from holdfast.crashtest import crashtest
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

#: Loaded when they are first used: `holdfast worker` needs none of it.
_HOMES = {
    "SourceContract": "holdfast.sources.conformance",
    "crashtest": "holdfast.crashtest",
    "paid_call": "holdfast.crashtest.record",
}

CRASH_VARIABLE = "HOLDFAST_CRASH_AT"


class UndeclaredInput(UserWarning):
    """A handler uses what its stage does not say it reads (`reads=`, `after=`)."""


@contextmanager
def warn_of_undeclared_input() -> Iterator[None]:
    """Within it, a handler of this process that uses what its stage does not say it reads causes a warning, once each."""
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
        """Somebody sets the time of day; no time passes."""
        self._now += microseconds(by_seconds)


@contextmanager
def crash_at(point: str, nth: int = 1) -> Iterator[None]:
    """End this process with SIGKILL when `point` is reached for the nth time. Points are listed in `holdfast.points`."""
    old = points.listen(_killer(point, nth))
    try:
        yield
    finally:
        points.listen(old)


def crash_from_environment() -> None:
    """Install the crash that HOLDFAST_CRASH_AT asks for, written as `point` or `point:nth`."""
    wanted = os.environ.get(CRASH_VARIABLE)
    if wanted:
        point, _, nth = wanted.partition(":")
        points.listen(_killer(point, int(nth or 1)))


def _killer(point: str, nth: int) -> points.Listener:
    left = nth
    lock = threading.Lock()

    def listener(reached: str) -> None:
        nonlocal left
        if reached == point or (point == "store" and reached.startswith("store.")):
            with lock:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    return listener


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"holdfast.testing has no {name!r}")
