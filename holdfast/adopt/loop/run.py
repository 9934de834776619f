"""One run of a loop: claims rows, has the runtime call their handlers, and does the upkeep.

The sequence is written once, as steps. `ThreadedRun` executes the steps in the caller's thread, `AsyncRun` on the running
event loop. No user code runs there, so a stop signal, a timeout, the grace period and the recovery of stale rows never wait for
a handler. With a sync engine, an idle thread of the pool claims the next rows itself: waking another thread takes longer
than most claims.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from holdfast.adopt.connections import is_async
from holdfast.adopt.loop.calls import HandlerPace, RowCall, RowRunner
from holdfast.adopt.loop.claiming import claiming
from holdfast.adopt.loop.draining import Rest, resting
from holdfast.adopt.loop.heartbeats import TaskHeartbeat, ThreadHeartbeat
from holdfast.adopt.loop.isolated import RowChild, RowConversation, prepare_fork
from holdfast.adopt.loop.saving import completed_at_once, handing_back, is_usual, saving
from holdfast.adopt.loop.state import LoopState
from holdfast.adopt.loop.steps import OwnThreads, Pause, Steps, Unbroken, drive, drive_async
from holdfast.adopt.loop.upkeep import PIECES, UpkeepTimes, unless_stopping
from holdfast.adopt.loop.what_to_claim import ClaimChoice
from holdfast.adopt.rows.claim import has_last_attempts
from holdfast.adopt.rows.sqlite_direct import DirectLine, is_plain
from holdfast.adopt.table.held_row import Held
from holdfast.errors import HoldfastError
from holdfast.runtime.async_pool import AsyncPool
from holdfast.runtime.fork_server import ForkServer
from holdfast.runtime.process_pool import ProcessPool
from holdfast.runtime.thread_pool import ThreadPool

if TYPE_CHECKING:
    from holdfast.adopt.connections import SyncPlace

#: How often to check for timeouts and for a stop: a signal does not wake a waiting thread.
CHECK_SECONDS = 0.1
#: A row that has waited this long behind slow ones is handed back, so that another process can run it.
HELD_UP_SECONDS = 1.0


class _Run:
    """The rows that the loop holds, and the next steps for them."""

    #: Runs the handlers.
    pool: ThreadPool[RowCall] | AsyncPool[RowCall] | ProcessPool[RowCall]
    beater: Any

    def __init__(self, loop: LoopState, once: bool) -> None:
        self.loop = loop
        self._once = once
        self._choice = ClaimChoice(loop.concurrency, has_last_attempts=has_last_attempts(loop.mapping), once=once)
        self.paces = HandlerPace()
        self._lock = threading.RLock()
        #: Calls that have not ended, by the id of the row's `Held` as it was claimed.
        self._calls: dict[int, RowCall] = {}
        self._is_claiming = False
        #: When to claim again after a claim that returned nothing.
        self._claim_at = 0.0
        self._started_at = 0.0
        #: What a drain last found to be left, and whether that was after the last claim.
        self._rest: Rest | None = None
        self._has_counted = False
        self._is_ending = False
        self.broken: BaseException | None = None

    # Steps ------------------------------------------------------------------------------------------------------------

    def steps(self, drain: bool) -> Steps[None]:
        """The main cycle, until the run ends: upkeep, claims, timeouts."""
        loop, upkeep = self.loop, UpkeepTimes(self.loop)
        while not loop.stopping and self.broken is None:
            for piece in upkeep.due():
                if (yield from unless_stopping(loop, PIECES[piece](loop))) and piece == "find_alone":
                    self._choice.want_alone()
            yield Unbroken(self.claim())
            if (drain or self._once) and self._is_done() and (self._once or (yield from self._drained())):
                break
            yield Pause(min(CHECK_SECONDS, upkeep.seconds_left()))
            self.pool.look(time.monotonic())
            if self.pool.unfit:
                self.broken = HoldfastError(f"{loop.name}: so many handlers hang that a new process must take over")
            if not self._once:
                yield from self._release(self._held_up())

    def claim(self) -> Steps[int]:
        """Claim rows if there is room and no other thread is claiming; returns how many were claimed."""
        with self._lock:
            kind = self._kind_to_claim()
            if kind is None:
                return 0
            self._is_claiming = True
        late: list[RowCall] = []
        try:
            rows: list[Held] = (yield from unless_stopping(self.loop, claiming(self.loop, kind, self._most()))) or []
            calls = [RowCall(self.loop.job(one), self.loop.name, self.loop.timeout_seconds) for one in rows]
            for call in calls:
                self.beater.add(call.job.held)
            with self._lock:
                self._calls.update((id(call.job.held), call) for call in calls)
                self._choice.took(kind, len(rows))
                self._has_counted = False
                self._claim_at = time.monotonic() + self.loop.poll_seconds
                self._started_at = time.monotonic()
                if self._is_ending:
                    late = calls
            if calls and not late:
                self.pool.submit(calls)
        finally:
            with self._lock:
                self._is_claiming = False
            self.ring_if_settled()
        yield from self._release(late)
        return len(rows)

    def _kind_to_claim(self) -> str | None:
        if self._is_claiming or self._is_ending or self.loop.stopping or self.broken is not None:
            return None
        running = sum(1 for call in self._calls.values() if call.started)
        if self._choice.is_exhausted(running) and time.monotonic() < self._claim_at:
            return None
        return self._choice.next(len(self._calls) - running, running)

    def _most(self) -> int:
        """How many rows to claim. If the handler is slow, only as many as can start at once: the rest would wait here."""
        loop = self.loop
        pace = self.paces.pace(0)
        if pace is None or pace * loop.batch / loop.concurrency < HELD_UP_SECONDS:
            return loop.batch
        return max(1, min(loop.batch, loop.concurrency - len(self._calls)))

    def _is_done(self) -> bool:
        """Whether the loop holds no rows and the last claims returned none. True once per claim."""
        with self._lock:
            return not (self._calls or self._is_claiming or self._has_counted) and self._choice.is_exhausted(0)

    def _drained(self) -> Steps[bool]:
        """Whether nothing is left to wait for; if something is, schedules the next claim."""
        loop = self.loop
        rest: Rest | None = yield from unless_stopping(loop, resting(loop, self._rest))
        with self._lock:
            if rest is None or not self._is_done():
                return False
            self._rest = rest
            if rest.is_drained:
                loop.counters.left = rest.left
                return True
            self._has_counted = True
            self._claim_at = time.monotonic() + rest.pause_seconds(loop.poll_seconds)
            return False

    def _held_up(self) -> list[RowCall]:
        """Rows that have waited too long behind slow ones."""
        with self._lock:
            is_waiting = any(not call.started for call in self._calls.values())
            if not is_waiting or time.monotonic() - self._started_at < HELD_UP_SECONDS:
                return []
        return self.pool.withdraw()

    def shut_down(self) -> Steps[None]:
        """Hand back rows that have not started; wait for the others within the grace period; hand back what is left."""
        loop = self.loop
        give_up_at = time.monotonic() + loop.grace_seconds

        def is_over() -> bool:
            return time.monotonic() >= give_up_at or loop.hurrying

        with self._lock:
            self._is_ending = True
            waiting = [call for call in self._calls.values() if not call.started]
        self.pool.withdraw()
        yield from self._release(waiting)
        while (self._calls or self._is_claiming) and not is_over():
            yield Pause(CHECK_SECONDS)
            self.pool.look(time.monotonic())
        yield from self._release(list(self._calls.values()))

    def _release(self, calls: Sequence[RowCall]) -> Steps[None]:
        mine = [call for call in calls if self.end(call)]
        if mine:
            rows = yield from self.taken([call.job.held for call in mine])
            yield from handing_back(self.loop, rows)

    # Calls ------------------------------------------------------------------------------------------------------------

    def may_start(self, call: RowCall) -> bool:
        with self._lock:
            if self._is_ending or self.loop.stopping or call.is_over:
                return False
            call.started = self._started_at = time.monotonic()
            return True

    def end(self, call: RowCall) -> bool:
        """True if the call had not ended yet: then the caller saves its outcome."""
        if not call.end():
            return False
        self.forget(call)
        return True

    def forget(self, call: RowCall) -> None:
        with self._lock:
            self._calls.pop(id(call.job.held), None)

    def lost(self, held: Held) -> None:
        call = self._calls.get(id(held))
        if call is not None:
            call.job.lost = True

    def broke(self, error: BaseException) -> None:
        self.broken = self.broken or error
        self.ring()

    def ring_if_settled(self) -> None:
        """Wake the thread that runs the steps, if it has something to do. A wake-up per row would cost more than the row."""
        if self._is_ending or self._is_done() or self.broken is not None:
            self.ring()

    # Different in threads and on an event loop ------------------------------------------------------------------------

    def ring(self) -> None:
        raise NotImplementedError

    def taken(self, rows: list[Held]) -> Steps[list[Held]]:
        """Stop sending heartbeats for these rows; return them as the last one left them."""
        raise NotImplementedError


class ThreadedRun(_Run):
    """For a sync engine and a sync handler: the pool's threads also save outcomes and claim rows."""

    def __init__(self, loop: LoopState, once: bool) -> None:
        super().__init__(loop, once)
        self._bell = threading.Event()
        self._lines = threading.local()
        self._is_sqlite = loop.engine.dialect.name == "sqlite"
        self.beater = ThreadHeartbeat(loop.engine, loop.beat_seconds, self.lost)
        self.pool: ThreadPool[RowCall] | ProcessPool[RowCall]
        if loop.isolate:
            # Fork before there are any threads or heartbeats.
            prepare_fork(loop.engine, loop.name)
            server = ForkServer(lambda line: RowChild(line, loop).run())
            conversation = RowConversation(loop, self.beater.take, self._report, self._ended)
            self.pool = ProcessPool(conversation, server, loop.concurrency, self._report, self.may_start)
        else:
            runner = RowRunner(loop, self.paces, self.save)
            self.pool = ThreadPool(runner, loop.concurrency, self._report, self.may_start, self._claim_here, self.paces)

    def work(self, drain: bool) -> None:
        try:
            self._drive(self.steps(drain))
        finally:
            self._drive(self.shut_down())
            self.pool.stop()
            self.pool.join(max(0.0, self.loop.grace_seconds))
            self.beater.stop()
        if self.broken is not None:
            raise self.broken

    def _drive(self, steps: Steps[Any], line: DirectLine | None = None) -> Any:
        return drive(steps, cast("SyncPlace", self.loop.engine), self._nap, line, self._wait)

    def _nap(self, length: float) -> None:
        until = time.monotonic() + length
        while not self.loop.hurrying and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, CHECK_SECONDS))

    def _wait(self, length: float) -> None:
        self._bell.wait(length)
        self._bell.clear()

    def ring(self) -> None:
        self._bell.set()

    def taken(self, rows: list[Held]) -> Steps[list[Held]]:
        return [self.beater.take(one) for one in rows]
        yield

    @property
    def _line(self) -> DirectLine:
        """This thread's direct access to the driver. It leaves connections in the engine's pool for the handlers, two for
        each, and one for upkeep."""
        line: DirectLine | None = getattr(self._lines, "line", None)
        if line is None:
            line = self._lines.line = DirectLine(others=2 * self.loop.concurrency + 1)
        return line

    def _claim_here(self, is_free: object) -> bool:
        """Claim in a pool's thread that has nothing left to run."""
        line = self._line
        try:
            claimed = bool(self._drive(self.claim(), line))
        except BaseException as error:
            self.broke(error)
            claimed = False
        if not claimed:
            line.close()
            self.ring_if_settled()
        return claimed

    def save(self, call: RowCall, returned: Any, error: BaseException | None, took_seconds: float) -> None:
        """Save a call's outcome, in the thread of its handler."""
        if call.end():  # neither handed back nor timed out
            self._write(call, returned, error, is_brief=self.paces.is_brief(took_seconds))

    def _report(self, call: RowCall, error: BaseException | None) -> None:
        """Save the outcome of a call that timed out or was ended from outside. The caller has already ended the call."""
        self._write(call, None, error)

    def _write(self, call: RowCall, returned: Any, error: BaseException | None, is_brief: bool = False) -> None:
        loop, job = self.loop, call.job
        try:
            held = self.beater.take(job.held)
            if error is None and self._is_sqlite and is_usual(job, returned):
                line = self._line
                line.stays_open = is_brief
                is_done = completed_at_once(loop, held, line)
            else:
                is_done = False
            if not is_done:
                place = cast("SyncPlace", loop.at if job.effects else loop.engine)
                drive(saving(loop, job, held, returned, error), place, self._nap)
        except BaseException as worse:
            self.broke(worse)
        finally:
            self._ended(call)

    def _ended(self, call: RowCall) -> None:
        self.forget(call)
        if self.loop.isolate:
            self.ring()  # no other thread claims
        else:
            self.ring_if_settled()


class AsyncRun(_Run):
    """For an async engine or an async handler: everything but sync handlers runs on the event loop.

    With a sync engine, threads run the statements, and another thread sends the heartbeats even if a handler blocks the
    event loop.
    """

    def __init__(self, loop: LoopState, once: bool) -> None:
        super().__init__(loop, once)
        self._events = asyncio.get_running_loop()
        self._bell = asyncio.Event()
        # Threads for outcomes, one for the claim and one for upkeep.
        self._beside = OwnThreads(loop.concurrency + 2, "holdfast-database")
        self._place: Any = loop.engine
        self.beater = ThreadHeartbeat(loop.engine, loop.beat_seconds, self.lost)
        self._reports: set[asyncio.Task[None]] = set()
        if is_async(loop.at):
            from sqlalchemy.ext.asyncio import AsyncEngine

            self._place = AsyncEngine(loop.engine)
            self.beater = TaskHeartbeat(self._place, loop.beat_seconds, self.lost)
        runner = RowRunner(loop, self.paces, self._save_from_thread, self.save)
        width = loop.concurrency
        if loop.is_async_handler:
            self.pool = AsyncPool(runner, width, self._report, self.may_start, self._out_of_work, events=self._events)
        else:
            self.pool = ThreadPool(runner, width, self._report, self.may_start, self._out_of_work, self.paces)

    async def work(self, drain: bool) -> None:
        try:
            await self._drive(self.steps(drain))
        finally:
            await self._drive(self.shut_down())
            self.pool.stop()
            if self._reports:
                await asyncio.wait(self._reports, timeout=1.0)
            stopped = self.beater.stop()
            if inspect.isawaitable(stopped):
                await stopped
            self._beside.close()
        if self.broken is not None:
            raise self.broken

    async def _drive(self, steps: Steps[Any]) -> Any:
        return await drive_async(steps, self._place, self._beside.call, self._wait)

    async def _wait(self, length: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(length):
                await self._bell.wait()
        self._bell.clear()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._events.call_soon_threadsafe(self._bell.set)

    def _out_of_work(self, is_free: object) -> bool:
        self.ring()
        return False

    def taken(self, rows: list[Held]) -> Steps[list[Held]]:
        found = []
        for one in rows:
            found.append((yield self._take(one)))
        return found

    async def _take(self, held: Held) -> Held:
        now: Any = self.beater.take(held)
        taken: Held = await now if inspect.isawaitable(now) else now
        return taken

    def _save_from_thread(self, call: RowCall, returned: Any, error: BaseException | None, took: float) -> None:
        """Save the outcome of a sync handler, from its thread."""
        asyncio.run_coroutine_threadsafe(self.save(call, returned, error), self._events).result()

    async def save(self, call: RowCall, returned: Any, error: BaseException | None) -> None:
        if inspect.isawaitable(returned):
            try:
                returned = await returned
            except BaseException as raised:
                returned, error = None, raised
        if call.end():
            await self._write(call, returned, error)

    def _report(self, call: RowCall, error: BaseException | None) -> None:
        def begin() -> None:
            task = self._events.create_task(self._write(call, None, error), name="holdfast-report")
            self._reports.add(task)
            task.add_done_callback(self._reports.discard)

        self._events.call_soon_threadsafe(begin)

    async def _write(self, call: RowCall, returned: Any, error: BaseException | None) -> None:
        loop, job = self.loop, call.job
        try:
            held = await self._take(job.held)
            if error is None and is_usual(job, returned) and is_plain(loop.engine):
                if await self._beside.call(completed_at_once, loop, held, DirectLine()):
                    return
            place = loop.at if job.effects else self._place
            await drive_async(saving(loop, job, held, returned, error), place, self._beside.call)
        except BaseException as worse:
            self.broke(worse)
        finally:
            self.forget(call)
            self.ring()
