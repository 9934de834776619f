"""Signals that ask for a stop, and the processes that user code forks while they are caught.

A forked process inherits our handlers, but SIGTERM must end it, or its parent (a `multiprocessing` pool, for example) waits
forever. The handler cannot do that itself: Python runs it between two steps of the interpreter, which may never come in a
process that waits, and a signal that arrives during the fork is lost. So signals are blocked during a fork, and the child gets
the default handlers back.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT)

#: Our handlers that are installed.
_caught: list[object] = []
_forking = threading.local()


@contextmanager
def caught(stop: Callable[[int], None], wanted: bool = True) -> Iterator[None]:
    """Call `stop` with the number of a signal that asks for a stop, in this process only. Nothing is caught if `wanted` is
    false, or outside the main thread, where it is not possible."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return

    def asked(number: int, frame: FrameType | None) -> None:
        stop(number)

    before = {number: signal.signal(number, asked) for number in STOPS}
    _caught.append(asked)
    try:
        yield
    finally:
        _caught.remove(asked)
        for number, handler in before.items():
            signal.signal(number, handler)


def _before_fork() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS) if _caught else None


def _after_in_parent() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _after_in_child() -> None:
    if _forking.mask is not None:
        for number in STOPS:
            if signal.getsignal(number) in _caught:
                signal.signal(number, signal.SIG_DFL)
        _caught.clear()
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
