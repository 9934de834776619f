"""One run of a loop: claims rows, has the runtime call their handlers, and does the upkeep.

The sequence is sync code. It runs in the caller's thread; in a thread beside the event loop, if only the handler is async; or,
with an async engine, in a greenlet on the event loop (see `sync_or_async_engine.py`). No user code runs there, so a stop
signal, a timeout, the grace period and the recovery of stale rows never wait for a handler. In a `ThreadedRun`, an idle thread
of the pool claims the next rows itself: waking another thread takes longer than most claims.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.adopt.loop.batch_or_alone import ClaimChoice
from holdfast.adopt.loop.calls import QUICK_SECONDS, HandlerPace, RowCall
from holdfast.adopt.loop.child_processes import RowChild, RowConversation, prepare_fork
from holdfast.adopt.loop.claim_next import claiming
from holdfast.adopt.loop.draining import Rest, resting
from holdfast.adopt.loop.heartbeats import Heartbeats
from holdfast.adopt.loop.saving import handing_back, saving
from holdfast.adopt.loop.state import CHECK_SECONDS, LoopState
from holdfast.adopt.loop.sync_or_async_engine import Bell, Beside
from holdfast.adopt.loop.upkeep import PIECES, UpkeepTimes, unless_stopping
from holdfast.adopt.rows.outcome import BROKEN_OFF
from holdfast.adopt.rows.sql import has_last_attempts
from holdfast.adopt.table.held_row import Held
from holdfast.errors import HoldfastError
from holdfast.runtime.async_pool import AsyncPool
from holdfast.runtime.call import CallOwner
from holdfast.runtime.fork_server import ForkServer
from holdfast.runtime.process_pool import ProcessPool
from holdfast.runtime.thread_pool import ThreadPool

#: A row that has waited this long behind slow ones is handed back, so that another process can run it.
HELD_UP_SECONDS = 1.0


class ThreadedRun:
    """The rows that the loop holds, and what to do next. Calls the handlers for its pool.

    A row's outcome is saved before the next call begins in the same thread or task. For a sync engine and a sync handler: the
    pool's threads also save outcomes and claim rows.
    """

    def __init__(self, loop: LoopState, once: bool) -> None:
        self.loop = loop
        self._once = once
        self._choice = ClaimChoice(loop.concurrency, has_last_attempts=has_last_attempts(loop.mapping), once=once)
        self.paces = HandlerPace()
        self.beater = Heartbeats(loop.engine, loop.beat_seconds, self._lost)
        self._bell = Bell(loop.engine)
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
        self.pool = self._make_pool(CallOwner(loop.concurrency, self._report, self.may_start, self._out_of_work))

    def _make_pool(self, owner: CallOwner[RowCall]) -> ThreadPool[RowCall] | AsyncPool[RowCall]:
        """What runs the handlers."""
        loop = self.loop
        if not loop.isolate:
            return ThreadPool(self, owner, self.paces)
        # Fork before there are any threads or heartbeats.
        prepare_fork(loop.engine, loop.name)
        server = ForkServer.forked(lambda line: RowChild(line, loop).run())
        return ProcessPool(RowConversation(loop, self.beater.take, self._report, self.written), owner, server)

    def work(self, drain: bool) -> None:
        """Run until the loop is stopped; with `drain`, until nothing is left to do."""
        try:
            self._cycle(drain)
        finally:
            self._shut_down()
            self._end()
            self.beater.stop()
        if self.broken is not None:
            raise self.broken

    def _cycle(self, drain: bool) -> None:
        """Upkeep, claims and timeouts, until the run ends."""
        loop, upkeep = self.loop, UpkeepTimes(self.loop)
        while not loop.stopping and self.broken is None:
            for piece in upkeep.due():
                if unless_stopping(loop, PIECES[piece]) and piece == "find_alone":
                    self._choice.want_alone()
            self.claim()
            if (drain or self._once) and self._is_done() and (self._once or self._drained()):
                break
            self._bell.wait(min(CHECK_SECONDS, upkeep.seconds_left()))
            self.pool.look(time.monotonic())
            if self.pool.unfit:
                self.broken = HoldfastError(f"{loop.name}: so many handlers hang that a new process must take over")
            if not self._once:
                self._release(self._held_up(), "held up by slow rows")

    def claim(self) -> int:
        """Claim rows if there is room and no other thread is claiming; returns how many were claimed. Where no batch is left,
        there may be a row that must run alone."""
        return self._claim() or self._claim()

    def _claim(self) -> int:
        with self._lock:
            kind = self._kind_to_claim()
            if kind is None:
                return 0
            self._is_claiming = True
        late: list[RowCall] = []
        try:
            rows = unless_stopping(self.loop, claiming, kind, self._most()) or []
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
        self._release(late)
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

    def _drained(self) -> bool:
        """Whether nothing is left to wait for; if something is, schedules the next claim."""
        loop = self.loop
        rest = unless_stopping(loop, resting, self._rest)
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

    def _shut_down(self) -> None:
        """Hand back rows that have not started; wait for the others within the grace period; hand back what is left."""
        loop = self.loop
        give_up_at = time.monotonic() + loop.grace_seconds

        def is_over() -> bool:
            return time.monotonic() >= give_up_at or loop.hurrying

        with self._lock:
            self._is_ending = True
            waiting = [call for call in self._calls.values() if not call.started]
        self.pool.withdraw()
        self._release(waiting)
        while (self._calls or self._is_claiming) and not is_over():
            self._bell.wait(CHECK_SECONDS)
            self.pool.look(time.monotonic())
        self._release(list(self._calls.values()))

    def _release(self, calls: Sequence[RowCall], why: str = "stopping") -> None:
        mine = [call for call in calls if call.end()]
        for call in mine:
            self.forget(call)
        if mine:
            handing_back(self.loop, [self.beater.take(call.job.held) for call in mine], why)

    # Calls ------------------------------------------------------------------------------------------------------------

    def may_start(self, call: RowCall) -> bool:
        with self._lock:
            if self._is_ending or self.loop.stopping or call.is_over:
                return False
            call.started = self._started_at = time.monotonic()
            return True

    def forget(self, call: RowCall) -> None:
        with self._lock:
            self._calls.pop(id(call.job.held), None)

    def _lost(self, held: Held) -> None:
        call = self._calls.get(id(held))
        if call is not None:
            call.job.lost = True

    def broke(self, error: BaseException) -> None:
        self.broken = self.broken or error
        self._bell.ring()

    def ring_if_settled(self) -> None:
        """Wake the thread that runs the steps, if it has something to do. A wake-up per row would cost more than the row."""
        if self._is_ending or self._is_done() or self.broken is not None:
            self._bell.ring()

    def run(self, call: RowCall, clock: Callable[[], float]) -> None:
        """Call the handler in a thread of the pool, and save the outcome."""
        returned: Any = None
        error: BaseException | None = None
        try:
            returned = self.loop.handler(call.job)
        except BaseException as raised:
            # In a thread, only the handler's own code can raise these: nothing interrupted it.
            error = raised if not isinstance(raised, BROKEN_OFF) else RuntimeError(f"the handler raised {raised!r}")
        took = clock() - call.started
        self.paces.learn(took)
        self._save(call, returned, error, is_brief=took < QUICK_SECONDS)

    def raised(self, call: RowCall, error: BaseException) -> BaseException:
        return error

    def write(self, call: RowCall, returned: Any, error: BaseException | None, is_brief: bool = False) -> None:
        """Save the outcome of a call that has ended."""
        try:
            saving(self.loop, call.job, self.beater.take(call.job.held), returned, error, is_brief=is_brief)
        except BaseException as worse:
            self.broke(worse)
        finally:
            self.written(call)

    def written(self, call: RowCall) -> None:
        self.forget(call)
        if isinstance(self.pool, ProcessPool):
            self._bell.ring()  # other pools ask for work themselves
        else:
            self.ring_if_settled()

    def _end(self) -> None:
        assert not isinstance(self.pool, AsyncPool)
        self.pool.stop()
        self.pool.join(max(0.0, self.loop.grace_seconds))

    def _out_of_work(self, is_free: object) -> bool:
        """Claim in a pool's thread that has nothing left to run."""
        try:
            claimed = bool(self.claim())
        except BaseException as error:
            self.broke(error)
            claimed = False
        if not claimed:
            self.loop.line.close()
            self.ring_if_settled()
        return claimed

    def _save(self, call: RowCall, returned: Any, error: BaseException | None, is_brief: bool) -> None:
        # Of a function that is no async one, such as a lambda.
        if returned is not None and asyncio.iscoroutine(returned):
            try:
                returned = asyncio.run(returned)
            except BaseException as raised:
                returned, error = None, raised if isinstance(raised, Exception) else RuntimeError(repr(raised))
        if call.end():  # neither handed back nor timed out
            self.write(call, returned, error, is_brief)

    def _report(self, call: RowCall, error: BaseException | None) -> None:
        """Save the outcome of a call that timed out or was ended from outside. The caller has already ended the call."""
        self.write(call, None, error)


class AsyncRun(ThreadedRun):
    """For an async engine or an async handler. Async handlers run on the event loop, sync ones in threads; outcomes are saved
    beside both."""

    def __init__(self, loop: LoopState, once: bool, events: asyncio.AbstractEventLoop) -> None:
        self._events = events
        self._beside = Beside(loop.engine, loop.concurrency + 1, "holdfast-database")
        super().__init__(loop, once)

    def _make_pool(self, owner: CallOwner[RowCall]) -> ThreadPool[RowCall] | AsyncPool[RowCall]:
        if self.loop.is_async_handler:
            return AsyncPool(self, owner, events=self._events)
        return super()._make_pool(owner)

    def _end(self) -> None:
        give_up_at = time.monotonic() + 1.0
        while any(call.is_over for call in list(self._calls.values())) and time.monotonic() < give_up_at:
            self._bell.wait(CHECK_SECONDS)  # outcomes are being saved
        self._events.call_soon_threadsafe(self.pool.stop)
        self._beside.close()

    def _out_of_work(self, is_free: object) -> bool:
        self._bell.ring()
        return False

    async def run_async(self, call: RowCall, clock: Callable[[], float]) -> None:
        """Call the handler in a task of the pool, and save the outcome."""
        returned: Any = None
        error: BaseException | None = None
        try:
            async with asyncio.timeout(call.timeout_seconds) as scope:
                returned = await self.loop.handler(call.job)
        except TimeoutError as raised:
            error = call.timeout_error() if scope.expired() else raised
        except asyncio.CancelledError as raised:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            error = raised
        except BaseException as raised:
            error = raised
        self.paces.learn(clock() - call.started)
        await self._save_async(call, returned, error)

    def _save(self, call: RowCall, returned: Any, error: BaseException | None, is_brief: bool) -> None:
        if not call.is_over:  # the event loop may have ended otherwise
            asyncio.run_coroutine_threadsafe(self._save_async(call, returned, error), self._events).result()

    async def _save_async(self, call: RowCall, returned: Any, error: BaseException | None) -> None:
        if inspect.isawaitable(returned):
            try:
                returned = await returned
            except BaseException as raised:
                returned, error = None, raised
        if call.end():
            await self._beside.call(self.write, call, returned, error)

    def _report(self, call: RowCall, error: BaseException | None) -> None:
        asyncio.run_coroutine_threadsafe(self._beside.call(self.write, call, None, error), self._events)
