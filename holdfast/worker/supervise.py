"""A parent of worker processes: starts them, starts anew those that die, and ends when told to or when it is no use.

The first process starts alone; the others follow once one has begun to work, so that a file which does not import is
complained about once. A process that dies is replaced after a pause that grows while deaths follow each other. Signals
are passed on as they come. The exit code is honest: 0 only after a stop that was asked for and went well.
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
from typing import Protocol

from holdfast.errors import UsageError
from holdfast.model.logs import logger
from holdfast.signals import caught

log = logger("holdfast.worker")

#: A process that has worked this long has not failed to start.
SETTLED_SECONDS = 5.0
#: This many deaths in a row of one place, none of them settled, and the parent gives up, unless others do work.
MOST_DEATHS = 10
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
LOOK_SECONDS = 0.1

#: Exit codes that starting again does not change: wrong usage, wrong pipeline, wrong database.
_HOPELESS = frozenset({2, 4, 5})
#: How a process may end that was told to: also by the signal itself, before it could listen.
_OBEYED = frozenset({0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT})


class Child(Protocol):
    """What the supervisor asks of a process."""

    @property
    def pid(self) -> int: ...

    def ready(self) -> bool:
        """Has it begun to work?"""
        ...

    def ended(self) -> int | None:
        """Its exit code; negative for a signal; None while it lives."""
        ...

    def signal(self, number: int) -> None: ...


@dataclass(slots=True)
class _Place:
    """One of the processes that there shall be."""

    number: int
    child: Child | None = None
    ready_at: float | None = None
    due_at: float = 0.0
    #: Deaths in a row without having settled in between.
    deaths: int = 0

    def settled(self, now: float) -> bool:
        return self.child is not None and self.ready_at is not None and now - self.ready_at >= SETTLED_SECONDS


class Supervisor:
    """Keeps `processes` children alive. `spawn` starts the one of a place, counted from 0."""

    def __init__(
        self,
        spawn: Callable[[int], Child],
        processes: int,
        *,
        patience_seconds: float = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`patience_seconds` is how long children that were told to stop may take before they are killed."""
        if processes < 1:
            raise UsageError(f"processes {processes}: at least one must work")
        self._spawn = spawn
        self._patience = patience_seconds
        self._monotonic = monotonic
        self._jitter = jitter
        self._places = [_Place(number) for number in range(processes)]
        self._asked: deque[int] = deque()
        self._bell = threading.Event()
        #: Whether any child ever began to work.
        self._opened = False
        self._code: int | None = None
        self._kill_at: float | None = None

    def run(self, *, signals: bool = True) -> int:
        """Supervise until stopped; return the exit code."""
        try:
            with caught(self.stop, signals):
                while (code := self.one_pass()) is None:
                    self._bell.wait(LOOK_SECONDS)
                    self._bell.clear()
                return code
        finally:
            for child in self._living():
                child.signal(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Pass this signal on to every child, and start no more. Safe to call from a signal handler."""
        self._asked.append(number)
        self._bell.set()

    def one_pass(self) -> int | None:
        """Look at every child once, do what is due; return the exit code once all is over."""
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

    def _living(self) -> list[Child]:
        return [place.child for place in self._places if place.child is not None]

    def _start(self, place: _Place, now: float) -> None:
        try:
            place.child = self._spawn(place.number)
        except OSError as error:
            log.error("worker process %d could not be started: %s", place.number + 1, error)
            self._bury(place, 1, now)
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
            log.warning("worker process %d (%d) ended with %s", place.number + 1, child.pid, _spoken(code))
            self._bury(place, code, now)
        elif code not in _OBEYED:
            self._code = self._code or _honest(code)

    def _bury(self, place: _Place, code: int, now: float) -> None:
        """One is gone that nobody asked to go: replace it later, or give up."""
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
        """Start no more, pass the signal on, and end with this code unless worse is known."""
        if self._code is None:
            self._kill_at = self._monotonic() + self._patience
        self._code = self._code or code
        for child in self._living():
            child.signal(number)


class Process:
    """A real child process, in a session of its own: a Ctrl-C in the terminal is for the parent to pass on."""

    def __init__(self, command: Callable[[int], Sequence[str]], environment: Mapping[str, str]) -> None:
        """`command` is given the descriptor into which the child writes a byte once it has begun to work."""
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
        if not self._ready:
            try:
                self._ready = os.read(self._line, 1) == b"."
            except BlockingIOError:
                pass
        return self._ready

    def ended(self) -> int | None:
        code = self._process.poll()
        if code is not None and self._line >= 0:
            os.close(self._line)
            self._line = -1
        return code

    def signal(self, number: int) -> None:
        self._process.send_signal(number)


def _honest(code: int) -> int:
    """An exit code for a parent whose child ended like this, which nobody asked for: never 0."""
    return 128 - code if code < 0 else code or 1


def _spoken(code: int) -> str:
    return f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
