"""Running a role: one pass after another, until a signal asks the process to stop or nothing is left to do.

The first SIGTERM or SIGINT lets the piece in hand finish within the grace, after which it is handed back; a second one
has it handed back at once. A process that is killed leaves everything to the resumer.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError

log = logging.getLogger("examples.fiction")

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


def keep_going(
    one_pass: Callable[[], int], stop: Stop, *, poll_seconds: float, is_done: Callable[[], bool] | None = None
) -> None:
    """Repeat a pass: at once while it finds something, after a while if not. With `is_done`, end when that says so.

    Trouble with the database is waited for: a pass is a transaction, and can be begun again.
    """
    while not stop.asked:
        try:
            found = one_pass()
            if not found and is_done is not None and is_done():
                return
        except OperationalError as error:
            log.warning("waiting for the database: %s", error.orig)
            found = 0
        if not found:
            stop.wait(poll_seconds)
