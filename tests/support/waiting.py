"""Waiting for facts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: No test waits this long; one that would is stuck, and says so.
STUCK_SECONDS = 30.0
#: A question that takes long is asked seldom, so that those who work on the answer have the machine for themselves.
SHARE, SELDOM_SECONDS = 0.2, 0.25


def wait_for(fact: Callable[[], T], timeout: float = STUCK_SECONDS, *, every: float = 0.02) -> T:
    """Return what the fact says once it holds."""
    asked_at = time.monotonic()
    give_up_at = asked_at + timeout
    while not (found := fact()):
        now = time.monotonic()
        if now > give_up_at:
            raise AssertionError(f"waited {timeout:.1f} s in vain for {fact}")
        time.sleep(max(every, min((now - asked_at) / SHARE, SELDOM_SECONDS)))
        asked_at = time.monotonic()
    return found
