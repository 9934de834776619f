"""End a process with SIGKILL when it reaches a named point. The points are listed in `holdfast.points`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast import points

CRASH_VARIABLE = "HOLDFAST_CRASH_AT"


@contextmanager
def crash_at(point: str, nth: int = 1) -> Iterator[None]:
    """End this process with SIGKILL when `point` is reached for the nth time."""
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


def _killer(point: str, nth: int) -> points.PointListener:
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
