"""The supervisor: starts worker processes, restarts those that die, and ends when asked to or when no restart helps.

The first process starts alone; the others follow once one has begun to work, so that a file that cannot be imported is
reported once. A process that dies is restarted after a backoff that grows with repeated deaths. Signals are passed on
as they arrive. The exit code is 0 only after a requested stop that went well.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import UsageError
from holdfast.model.log_lines import logger
from holdfast.runtime.fork_server import exit_in_words
from holdfast.signals import caught

log = logger("holdfast.worker")

#: A process that has worked this long counts as started.
SETTLED_SECONDS = 5.0
#: After this many deaths in a row before a process has settled, the supervisor gives up, unless other processes work.
MOST_DEATHS = 10
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
LOOK_SECONDS = 0.1

#: Exit codes that a restart cannot change: wrong usage, wrong pipeline, wrong database.
_HOPELESS = frozenset({2, 4, 5})
#: How a process that was asked to stop may end, including by the signal itself before its handler was installed.
_OBEYED = frozenset({0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT})


class Process:
    """A real child process, in its own session: the supervisor passes on a Ctrl-C in the terminal."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        environment: Mapping[str, str],
        reported: Callable[[bytes | None], None] = lambda read: None,
    ) -> None:
        """`command` gets the descriptor to which the child writes a byte once it has begun to work. `reported` gets what it
        writes afterwards, and None when it has ended."""
        self._reported = reported
        self._line, its = os.pipe()
        os.set_blocking(self._line, False)
        try:
            self._process = subprocess.Popen(
                command(its), env=environment, pass_fds=(its,), start_new_session=True, stdin=subprocess.DEVNULL
            )
        except BaseException:
            os.close(self._line)
            raise
        finally:
            os.close(its)
        self._ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> bool:
        """Whether it has begun to work."""
        self._read()
        return self._ready

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it is running."""
        code = self._process.poll()
        self._read()
        if code is not None and self._line >= 0:
            os.close(self._line)
            self._line = -1
            self._reported(None)
        return code

    def _read(self) -> None:
        """Read what it has written since the last time."""
        try:
            while self._line >= 0 and (read := os.read(self._line, 65_536)):
                if not self._ready:
                    self._ready, read = read[:1] == b".", read[1:]
                if read:
                    self._reported(read)
        except BlockingIOError:
            pass

    def signal(self, number: int) -> None:
        self._process.send_signal(number)


@dataclass(slots=True)
class _Place:
    """One of the processes that should be running."""

    number: int
    child: Process | None = None
    ready_at: float | None = None
    due_at: float = 0.0
    #: Deaths in a row, without a settled process in between.
    deaths: int = 0

    def settled(self, now: float) -> bool:
        return self.child is not None and self.ready_at is not None and now - self.ready_at >= SETTLED_SECONDS


class Supervisor:
    """Keeps `processes` children running. `spawn` starts the child with this number, counted from 0."""

    def __init__(
        self,
        spawn: Callable[[int], Process],
        processes: int,
        *,
        patience_seconds: float = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`patience_seconds` is how long children may take to stop before they are killed."""
        if processes < 1:
            raise UsageError(f"processes {processes}: at least one must work")
        self._spawn = spawn
        self._patience = patience_seconds
        self._monotonic = monotonic
        self._jitter = jitter
        self._places = [_Place(number) for number in range(processes)]
        self._asked: deque[int] = deque()
        self._wake_up = threading.Event()
        #: Whether any child has ever begun to work.
        self._opened = False
        self._code: int | None = None
        self._kill_at: float | None = None

    def run(self, *, signals: bool = True, on_pass: Callable[[], None] = lambda: None) -> int:
        """Supervise until stopped; return the exit code. `on_pass` is called after each look at the children."""
        try:
            with caught(self.stop, signals):
                while (code := self.one_pass()) is None:
                    on_pass()
                    self._wake_up.wait(LOOK_SECONDS)
                    self._wake_up.clear()
                return code
        finally:
            for child in self._living():
                child.signal(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Pass this signal on to every child and start no more. Safe to call from a signal handler."""
        self._asked.append(number)
        self._wake_up.set()

    def one_pass(self) -> int | None:
        """Check every child once and do what is due; return the exit code once all have ended."""
        now = self._monotonic()
        while self._asked:
            self._end(0, self._asked.popleft())
        for place in self._places:
            self._look(place, now)
        if self._code is None:
            for place in self._places:
                if place.child is None and place.due_at <= now and (place.number == 0 or self._opened):
                    self._start(place, now)
            return None
        living = self._living()
        if living and self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._code = self._code or 1
            log.error("%d worker processes did not stop in time and are killed", len(living))
            for child in living:
                child.signal(signal.SIGKILL)
        return None if living else self._code

    # The parts ----------------------------------------------------------------------------------------------------

    def _living(self) -> list[Process]:
        return [place.child for place in self._places if place.child is not None]

    def _start(self, place: _Place, now: float) -> None:
        try:
            place.child = self._spawn(place.number)
        except OSError as error:
            log.error("worker process %d could not be started: %s", place.number + 1, error)
            self._record_death(place, 1, now)
            return
        place.ready_at = None

    def _look(self, place: _Place, now: float) -> None:
        child = place.child
        if child is None:
            return
        if place.ready_at is None and child.ready():
            place.ready_at = now
            self._opened = True
        if place.settled(now):
            place.deaths = 0
        code = child.ended()
        if code is None:
            return
        place.child = None
        if self._code is None:
            log.warning("worker process %d (%d) ended with %s", place.number + 1, child.pid, exit_in_words(code))
            self._record_death(place, code, now)
        elif code not in _OBEYED:
            self._code = self._code or _honest(code)

    def _record_death(self, place: _Place, code: int, now: float) -> None:
        """A process ended without being asked to: restart it later, or give up."""
        place.deaths += 1
        if code in _HOPELESS and not self._opened:
            self._end(_honest(code), signal.SIGTERM)
        elif place.deaths >= MOST_DEATHS and not any(other.settled(now) for other in self._places):
            log.error(
                "worker process %d died %d times in a row soon after it was started: giving up",
                place.number + 1,
                place.deaths,
            )
            self._end(_honest(code), signal.SIGTERM)
        else:
            longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(place.deaths - 1, 30))
            pause = self._jitter(longest / 2, longest)
            place.due_at = now + pause
            log.info("a new worker process %d starts in %.1f s", place.number + 1, pause)

    def _end(self, code: int, number: int) -> None:
        """Start no more, pass the signal on, and exit with this code unless a worse one is known."""
        if self._code is None:
            self._kill_at = self._monotonic() + self._patience
        self._code = self._code or code
        for child in self._living():
            child.signal(number)


def _honest(code: int) -> int:
    """The supervisor's exit code for a child that ended like this without being asked to: never 0."""
    return 128 - code if code < 0 else code or 1
