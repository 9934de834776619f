"""SIGTERM and SIGINT while a worker works: the first asks it to stop, the second to hand back at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from holdfast.worker import Worker


class Asked:
    """Which signal came first; None as long as none did."""

    signal: int | None = None

    @property
    def exit_code(self) -> int:
        return 128 + (self.signal or signal.SIGINT)


@contextmanager
def stopping_on_signals(worker: Worker, *, say: bool = True) -> Iterator[Asked]:
    """Pass stop signals on to the worker, and remember the first."""
    asked = Asked()

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.signal is None:
            asked.signal = number
            if say:
                # Not print: the signal may have come in the middle of one.
                os.write(
                    2, b"\nholdfast: stopping; running handlers get their grace, once more hands them back at once\n"
                )
        worker.stop()

    old = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
