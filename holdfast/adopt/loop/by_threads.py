"""A loop carried out by threads: one looks after things, the others claim rows and run handlers.

The one that looks after things never runs user code, so that a stop signal, the grace and the recovery of stale rows do
not wait for a handler. A thread that finds nothing left claims the next rows itself: waking another one to do it takes
longer than most claims. A thread whose handler outlives the grace cannot be ended; its row is handed back, and what it
still says is not heard.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from holdfast.adopt.loop.claiming import claiming
from holdfast.adopt.loop.counters import Counters
from holdfast.adopt.loop.draining import Rest, resting
from holdfast.adopt.loop.heartbeats import ThreadBeater
from holdfast.adopt.loop.job import Job
from holdfast.adopt.loop.saving import completed_at_once, handing_back, is_usual, saving
from holdfast.adopt.loop.steps import Steps, drive
from holdfast.adopt.loop.upkeep import PIECES, unless_stopping
from holdfast.adopt.loop.upkeep_times import Tending
from holdfast.adopt.loop.what_to_claim import Picking
from holdfast.adopt.rows.outcome import BROKEN_OFF
from holdfast.adopt.rows.sqlite_direct import Line
from holdfast.adopt.table.held_row import Held
from holdfast.model.logs import logger
from holdfast.signals import caught

if TYPE_CHECKING:
    from holdfast.adopt.connections import SyncPlace
    from holdfast.adopt.loop.loop import Loop

log = logger("holdfast.adopt")

#: How often a thread that waits looks for a stop: a signal wakes nobody.
LOOK_SECONDS = 0.1
#: A connection is kept from one row to the next if the handler between them may be expected to take less than this.
QUICK_SECONDS = 0.001


def run(loop: Loop, *, drain: bool, once: bool, signals: bool) -> Counters:
    """Work until stopped, until nothing is left, or until one batch is done."""
    loop.mapping.check(loop.engine)
    with caught(lambda _: loop.stop(), signals), loop.summed_up():
        _Crew(loop, once).work(drain)
    return loop.counters


class _Crew:
    """The rows in hand, and the threads that have them."""

    def __init__(self, loop: Loop, once: bool) -> None:
        self._loop = loop
        self._once = once
        self._picking = Picking(loop, once=once)
        self._lock = threading.RLock()
        #: For the threads: there are rows, or there may be some to claim.
        self._changed = threading.Condition(self._lock)
        #: For the one that looks after things: nothing is left, or what it waits for has ended. It has a condition of its own,
        #: for to wake it with every batch takes longer than the claim of one.
        self._settled = threading.Condition(self._lock)
        self._is_ending = False
        self._queue: deque[Job] = deque()
        self._running: dict[int, Job] = {}
        self._jobs: dict[int, Job] = {}
        self._threads = 0
        self._idle = 0
        self._is_claiming = False
        #: When to look again after a claim that brought nothing.
        self._claim_at = 0.0
        #: What a drain found left when it last looked, and whether that was after the last claim.
        self._rest: Rest | None = None
        self._has_looked = False
        self._ended = False
        self._broken: BaseException | None = None
        self._beater = ThreadBeater(loop.engine, loop.beat_seconds, self._lost)

    def work(self, drain: bool) -> None:
        """Look after things until the end; the threads do the rest."""
        loop, tending = self._loop, Tending(self._loop)
        try:
            while not loop.stopping and self._broken is None:
                for piece in tending.due():
                    if self._drive(unless_stopping(loop, PIECES[piece](loop))) and piece == "suspect":
                        self._picking.want_alone()
                with self._lock:
                    if self._threads == 0:
                        self._start_thread()
                    is_done = (drain or self._once) and self._is_done()
                    if not is_done:
                        self._settled.wait(min(LOOK_SECONDS, tending.seconds_left()))
                if is_done and (self._once or self._is_drained()):
                    break
        finally:
            self._shut_down()
        if self._broken is not None:
            raise self._broken

    def _is_done(self) -> bool:
        """Nothing is in hand, and the last claims brought nothing; true once for each of them."""
        in_hand = len(self._queue) + len(self._running)
        return not (in_hand or self._is_claiming or self._has_looked) and self._picking.is_exhausted(0)

    def _is_drained(self) -> bool:
        """Look what is left; if it is to be waited for, claim again when it may be there."""
        loop = self._loop
        rest: Rest | None = self._drive(unless_stopping(loop, resting(loop, self._rest)))
        with self._lock:
            if rest is None or not self._is_done():
                return False
            self._rest = rest
            if rest.is_drained:
                loop.counters.left = rest.left
                return True
            self._has_looked = True
            self._claim_at = time.monotonic() + rest.pause_seconds(loop.poll_seconds)
            return False

    def _tell_if_settled(self) -> None:
        if self._is_ending or self._is_done():
            self._settled.notify_all()

    def _drive(self, steps: Steps[Any], line: Line | None = None) -> Any:
        return drive(steps, cast("SyncPlace", self._loop.engine), self._nap, line)

    def _nap(self, length: float) -> None:
        until = time.monotonic() + length
        while not self._loop.hurrying and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, name="holdfast-handler", daemon=True).start()

    # A thread's life --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        # What the handlers may need at a time, two for each, and what looks after things, must be left in the pool.
        line = Line(others=2 * self._loop.concurrency + 1)
        try:
            while (job := self._next_job(line)) is not None:
                try:
                    self._run_one(job, line)
                finally:
                    # Whoever waits is told nothing: this thread itself takes the next row, or claims some.
                    with self._lock:
                        self._running.pop(id(job), None)
                        self._tell_if_settled()
        except BaseException as error:
            with self._lock:
                self._broken = self._broken or error
                self._changed.notify_all()
        finally:
            line.close()
            with self._lock:
                self._threads -= 1
                self._settled.notify_all()

    def _next_job(self, line: Line) -> Job | None:
        """A row that waits; or else claim some, whoever comes first. None: it is time to end."""
        while True:
            with self._lock:
                kind = None
                while not self._queue and kind is None:
                    if self._ended or self._loop.stopping or self._broken is not None:
                        return None
                    kind = self._kind_to_claim()
                    if kind is None:
                        line.close()
                        self._idle += 1
                        self._changed.wait(LOOK_SECONDS)
                        self._idle -= 1
                if self._loop.stopping:
                    return None  # what is in the queue is handed back
                if self._queue:
                    job = self._queue.popleft()
                    self._running[id(job)] = job
                    return job
                self._is_claiming = True
            try:
                rows = self._drive(unless_stopping(self._loop, claiming(self._loop, str(kind))), line) or []
                self._hand_out(str(kind), rows)
            finally:
                with self._lock:
                    self._is_claiming = False
                    self._changed.notify_all()
                    self._tell_if_settled()

    def _kind_to_claim(self) -> str | None:
        if self._is_claiming or (self._picking.is_exhausted(len(self._running)) and time.monotonic() < self._claim_at):
            return None
        return self._picking.next(len(self._queue), len(self._running))

    def _hand_out(self, kind: str, rows: list[Held]) -> None:
        jobs = [self._loop.job(one) for one in rows]
        for job in jobs:
            self._jobs[id(job.held)] = job
            self._beater.add(job.held)
        with self._lock:
            self._picking.took(kind, len(rows))
            self._has_looked = False
            self._claim_at = time.monotonic() + self._loop.poll_seconds
            self._queue.extend(jobs)
            # This thread takes one itself.
            missing = min(self._loop.concurrency - self._threads, len(jobs) - 1 - self._idle)
            for _ in range(missing):
                self._start_thread()
            late = jobs if self._ended else []
        if late:
            self._release(late)

    def _run_one(self, job: Job, line: Line) -> None:
        returned: Any = None
        error: BaseException | None = None
        began = time.monotonic()
        try:
            returned = self._loop.handler(job)
        except BaseException as raised:
            # Of a thread: nobody interrupts it but its own code.
            error = raised if not isinstance(raised, BROKEN_OFF) else RuntimeError(f"the handler raised {raised!r}")
        line.stays_open = time.monotonic() - began < QUICK_SECONDS
        with self._lock:
            if self._jobs.pop(id(job.held), None) is None:
                return  # handed back already
        held = self._beater.take(job.held)
        if error is None and is_usual(job, returned) and completed_at_once(self._loop, held, line):
            return
        place = cast("SyncPlace", self._loop.at if job.effects else self._loop.engine)
        drive(saving(self._loop, job, held, returned, error), place, self._nap)

    def _lost(self, held: Held) -> None:
        job = self._jobs.get(id(held))
        if job is not None:
            job.lost = True

    def _shut_down(self) -> None:
        """Hand back what has not begun; wait for what has, within the grace; hand back what is left."""
        loop = self._loop
        give_up_at = time.monotonic() + loop.grace_seconds

        def is_over() -> bool:
            return time.monotonic() >= give_up_at or loop.hurrying

        with self._lock:
            self._is_ending = True
            while self._is_claiming and not is_over():
                self._settled.wait(LOOK_SECONDS)
            waiting = list(self._queue)
            self._queue.clear()
        self._release(waiting)
        with self._lock:
            while self._running and not is_over():
                self._settled.wait(LOOK_SECONDS)
            left = list(self._running.values())
        self._release(left)
        with self._lock:
            # A claim that is still under way hands back what it brings.
            self._ended = True
            late = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        self._release(late)
        with self._lock:
            # All end by themselves now, and return their connections, but for those that a handler keeps.
            while self._threads > len(self._running) and not is_over():
                self._settled.wait(LOOK_SECONDS)
        self._beater.stop()

    def _release(self, jobs: list[Job]) -> None:
        rows = []
        for job in jobs:
            with self._lock:
                mine = self._jobs.pop(id(job.held), None) is not None
            if mine:
                rows.append(self._beater.take(job.held))
        self._drive(handing_back(self._loop, rows))
