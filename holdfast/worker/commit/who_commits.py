"""Decides which thread commits; only one at a time makes a round of the committer.

The committer's own thread makes rounds and sleeps in between. A thread that ran quick handlers and has nothing left to
run makes a round itself instead of waking it. docs/reasons/who-commits.md gives the reasons and the invariants.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from holdfast.worker.commit.finished_queue import QUIET_SECONDS, FinishedQueue
from holdfast.worker.commit.prefetch import InHand

#: The committer's thread checks after this time, even if another thread should have committed.
MOST_SECONDS = 1.0


class Round(NamedTuple):
    """The outcome of a round."""

    #: How long to sleep unless woken; None when the committer is done.
    wait_seconds: float | None
    #: Whether it started calls, all of them quick: the thread that runs them will soon be out of work again.
    started: bool = False
    #: Whether it failed; it must not be repeated before that time.
    failed: bool = False


OVER = Round(None)


class CommitTurns:
    """Lets the committer's own thread, and threads that are out of work, make its rounds."""

    def __init__(self, hand: InHand, poll_seconds: float) -> None:
        self._hand = hand
        self._poll = poll_seconds
        self._finished = FinishedQueue()
        #: Only the holder makes a round.
        self._turn = threading.Lock()
        #: When the last round ended, and whether another thread than the committer's made it.
        self._last, self._lent = time.monotonic(), False
        #: When a round last found the database in trouble.
        self._troubled = 0.0
        self._over = False
        self._thread = threading.Thread(target=self._run, name="holdfast-committer", daemon=True)

    def _make_round(self, by_thread: bool) -> Round:
        """Make one round; `by_thread` says that the committer's own thread makes it."""
        raise NotImplementedError

    def _end(self) -> None:
        """Called when the thread ends."""
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    @property
    def progress_at(self) -> float:
        """When a round last ended, or could not because of the database, which is no fault of this process."""
        return max(self._last, self._troubled)

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread to end, if it was ever started. False if it is still running."""
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def out_of_work(self, is_free: Callable[[], bool]) -> bool:
        """A thread that runs handlers has run out of calls. If it is free for other work, it makes a round for the
        quiet results; otherwise it wakes the committer's thread. True if there are new calls to run.
        """
        if not self._finished.is_quiet:
            return False
        if not is_free():
            self._finished.wake()
            return False
        if not self._turn.acquire(blocking=False):
            return False  # the holder checks again
        started = False
        try:
            if not self._over:
                started = self._one(False).started
        finally:
            self._turn.release()
            if not started:
                self._finished.wake()  # the committer's thread decides what to wait for
        return started

    def look(self, now: float) -> None:
        """Wake the committer's thread if quiet results have waited too long, or if another thread made the last round
        and none has followed: there may be more to do.
        """
        if self._turn.locked():
            return
        if self._lent and now - self._last > QUIET_SECONDS:
            self._finished.wake()
        else:
            self._finished.look(now, self._last)

    def _run(self) -> None:
        try:
            while True:
                with self._turn:
                    self._finished.clear()
                    done = self._one(True)
                if done.wait_seconds is None:
                    break
                wait = done.wait_seconds
                if self._finished.is_quiet and not done.failed:
                    # The thread that runs the remaining calls makes the next round, unless all calls have ended
                    # meanwhile.
                    wait = min(self._poll, MOST_SECONDS) if len(self._finished) < len(self._hand) else 0.0
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
