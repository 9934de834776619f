"""Stopping: a signal asks a process to end; what it has in hand may be finished, for a while.

The first SIGTERM or SIGINT lets the piece in hand finish within the grace, after which it is handed back; a second one
has it handed back at once. A process that is killed leaves everything to the resumer.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: How often a process that waits looks whether it was asked to stop: a signal wakes nobody.
LOOK_SECONDS = 0.05


class Stop:
    """Whether, and how urgently, this process was asked to end."""

    def __init__(self, grace_seconds: float = 10.0) -> None:
        self._grace = grace_seconds
        # Plain values, not events: a signal may arrive in the middle of anything.
        self._asked_at: float | None = None
        self._hurry = False

    @property
    def asked(self) -> bool:
        return self._asked_at is not None

    @property
    def is_over(self) -> bool:
        """Let go of whatever is in hand."""
        return self._asked_at is not None and (self._hurry or time.monotonic() - self._asked_at >= self._grace)

    def ask(self, *_: object) -> None:
        """Stop; a second time: at once."""
        self._hurry = self.asked
        if self._asked_at is None:
            self._asked_at = time.monotonic()

    @contextmanager
    def on_signals(self) -> Iterator[Stop]:
        """Be asked by SIGTERM and SIGINT, in here."""
        before = {number: signal.signal(number, self.ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def wait(self, seconds: float) -> None:
        """Wait so long, or until asked to stop."""
        until = time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
