"""Who commits: one thread at a time makes a round of the committer.

A thread makes them and sleeps in between. Whoever has run quick handlers, and has nothing left to run, makes one itself
instead of waking it: docs/reasons/who-commits.md says why, and what must hold.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from holdfast.worker.commit.finished_queue import QUIET_SECONDS, FinishedQueue

#: The thread looks for itself after this time, whoever should have come.
MOST_SECONDS = 1.0


class Round(NamedTuple):
    """What came of a round."""

    #: How long to sleep until somebody rings; None when it is over.
    wait_seconds: float | None
    #: It has started calls, all of them quick: whoever runs them will soon be out of work again.
    started: bool = False
    #: It went wrong, and is not to be repeated before that time.
    failed: bool = False


OVER = Round(None)


class CommitTurns:
    """Lets a thread, and those who are out of work, make rounds; `make_round` is told whether it is the thread."""

    def __init__(
        self,
        inbox: FinishedQueue,
        make_round: Callable[[bool], Round],
        held: Callable[[], int],
        poll_seconds: float,
        end: Callable[[], None],
    ) -> None:
        self._finished = inbox
        self._make_round = make_round
        self._held = held
        self._poll = poll_seconds
        self._end = end
        #: Whoever has it makes a round, and nobody else does.
        self._turn = threading.Lock()
        #: When the last round ended, and whether it was not the thread that made it.
        self._last, self._lent = 0.0, False
        self._over = False
        self._thread = threading.Thread(target=self._run, name="holdfast-committer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end; False if it has not come by then, or there was no beginning."""
        if self._thread.ident is None:
            return False
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def out_of_work(self, is_free: Callable[[], bool]) -> bool:
        """A thread that runs handlers has nothing left to run. If it is free for something else, it makes a round for what was
        reported quietly; else the thread is woken. True if there is something to run."""
        if not self._finished.is_quiet:
            return False
        if not is_free():
            self._finished.ring()
            return False
        if not self._turn.acquire(blocking=False):
            return False  # whoever has it looks again
        started = False
        try:
            if not self._over:
                started = self._one(False).started
        finally:
            self._turn.release()
            if not started:
                self._finished.ring()  # what is left to wait for, and whether anything is, the thread sees to
        return started

    def look(self, now: float) -> None:
        """Wake the thread for what was reported quietly, if nobody has come for it; and after a round that another made, if no
        other followed: it may know of more to do."""
        if self._turn.locked():
            return
        if self._lent and now - self._last > QUIET_SECONDS:
            self._finished.ring()
        else:
            self._finished.look(now, self._last)

    def _run(self) -> None:
        try:
            while True:
                with self._turn:
                    self._finished.hear()
                    done = self._one(True)
                if done.wait_seconds is None:
                    break
                wait = done.wait_seconds
                if self._finished.is_quiet and not done.failed:
                    # Whoever runs the rest of what is in hand takes the next turn, unless all of it has ended meanwhile.
                    wait = min(self._poll, MOST_SECONDS) if len(self._finished) < self._held() else 0.0
                if wait:
                    self._finished.wait(wait)
        finally:
            with self._turn:
                self._over = True
                self._end()

    def _one(self, by_thread: bool) -> Round:
        done = self._make_round(by_thread)
        self._last, self._lent = time.monotonic(), not by_thread
        return done
