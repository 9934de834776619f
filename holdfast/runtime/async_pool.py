"""The async pool: runs calls of async handlers on an event loop, in its own thread or on the caller's loop.

A few tasks take one call after another and await the handler themselves. A handler that never waits costs no new task
and no context switch. A call that exceeds its timeout is cancelled. If it ignores the cancellation or blocks the loop,
the pool abandons it: another task or another loop takes over, and a late result is ignored.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Generic

from holdfast.model.log_lines import logger
from holdfast.runtime.call import AsyncRunner, C, CallOwner, abandon, emptied

log = logger("holdfast.runtime")

#: How long a cancelled handler may take to clean up before the pool abandons it.
PATIENCE_SECONDS = 1.0
#: A loop that has not run a callback for this long is blocked.
BLOCKED_SECONDS = 1.0
#: If the pool has abandoned more loops than this, the process is unfit.
MOST_LOST = 8
#: After this many calls without a wait, a task yields to the loop.
IN_A_ROW = 500


class AsyncPool(Generic[C]):
    """Runs calls of async handlers."""

    def __init__(
        self,
        runner: AsyncRunner[C, Any],
        owner: CallOwner[C],
        *,
        events: asyncio.AbstractEventLoop | None = None,
        took_back: Callable[[C], bool] | None = None,
    ) -> None:
        """`events` is an event loop that is already running; it keeps running after the pool stops. When a task of the pool is
        cancelled there, `took_back` is asked whether the owner of the call has taken it back; if not, its handler failed.
        """
        self.runner = runner
        self.owner = owner
        self.events = events
        self.took_back = took_back
        self.calls: _Waiting[C] = _Waiting()
        self._loop: _Loop[C] | None = None
        self._lost = 0

    @property
    def unfit(self) -> bool:
        """Whether the process should be replaced: too many loops are blocked, or the loop is broken."""
        return self._lost > MOST_LOST or (self._loop is not None and self._loop.broken)

    def submit(self, calls: Sequence[C]) -> None:
        """Run these calls as soon as a task is free."""
        self.calls.extend(calls)
        if self._loop is None:
            self._loop = _Loop(self)
        self._loop.wake()

    def withdraw(self) -> list[C]:
        """Take back the calls that have not started."""
        return self.calls.withdraw()

    def look(self, now: float) -> None:
        """Abandon calls that do not end, and replace a blocked loop."""
        loop = self._loop
        if loop is None:
            return
        given_up = [call for call in loop.overdue(now) if loop.give_up(call)]
        for call in given_up:
            log.warning(
                "%s: ran longer than %.1f s and cannot be cancelled; it is abandoned",
                call.label,
                call.timeout_seconds,
            )
            self.owner.report(call, self.runner.raised(call, call.timeout_error()))
        if loop.blocked(now) and given_up:
            self._lost += 1
            self._loop = None
            self.submit([])

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.stop()


class _Waiting(Generic[C]):
    """Waiting calls; those that use resources come first."""

    def __init__(self) -> None:
        self._first: deque[C] = deque()
        self._others: deque[C] = deque()

    def __len__(self) -> int:
        return len(self._first) + len(self._others)

    def extend(self, calls: Sequence[C]) -> None:
        # Calls of one stage arrive together.
        for goes_first, same in groupby(calls, key=lambda call: call.goes_first):
            (self._first if goes_first else self._others).extend(same)

    def next(self) -> C:
        """The next call; raises IndexError if there is none."""
        return (self._first or self._others).popleft()

    def withdraw(self) -> list[C]:
        return emptied(self._first) + emptied(self._others)


class _Loop(Generic[C]):
    """One event loop and its tasks. If another loop replaces it, that loop takes over the waiting calls."""

    def __init__(self, pool: AsyncPool[C]) -> None:
        self._runner = pool.runner
        self._owner = pool.owner
        self._calls = pool.calls
        self._took_back = pool.took_back
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[C, asyncio.Task[None] | None] = {}
        self._closing = False
        #: Set if the loop itself failed, regardless of the handlers in it.
        self.broken = False
        self._asked_at = 0.0
        self._warned = False
        self._loop = pool.events or asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        if pool.events is None:
            self._thread = threading.Thread(target=self._serve, name="holdfast-loop", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._start_tasks)
        except RuntimeError as error:
            # The caller has closed its loop without waiting for us.
            log.error("the event loop cannot go on: %s", error)
            self.broken = True

    def overdue(self, now: float) -> list[C]:
        """Calls that have not ended although their timeout and the time for clean-up have passed."""
        return [call for call in list(self._running) if call.is_overdue(now, PATIENCE_SECONDS)]

    def give_up(self, call: C) -> bool:
        """Abandon a call and its task; a new task replaces it. False if the call has already ended."""
        if not abandon(call):
            return False
        task = self._running.pop(call, None)
        if task is not None:
            self._tasks.discard(task)
        self.wake()
        return True

    def blocked(self, now: float) -> bool:
        """Whether the loop has not run a callback for a while because a handler blocks it. Always False for the
        caller's own loop, which cannot be replaced.
        """
        if self._thread is None:
            return False
        if not self._asked_at:
            if self._running:
                self._asked_at = now
                self._loop.call_soon_threadsafe(self._answer)
            return False
        if now - self._asked_at < BLOCKED_SECONDS:
            return False
        if not self._warned:
            self._warned = True
            newest = max(self._running, key=lambda call: call.started, default=None)
            if newest is not None:
                log.warning(
                    "the event loop has been blocked for %.0f s, probably by %s: an async handler must wait with await, "
                    "or be a plain function",
                    now - self._asked_at,
                    newest.label,
                )
        return True

    def stop(self) -> None:
        """Cancel running calls and end the loop. A handler that blocks the loop is left behind."""
        if self.broken or self._loop.is_closed():
            return
        self._closing = True
        if self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop)
            self._thread.join(timeout=1.0)
        elif _is_running_here(self._loop):
            for task in self._tasks:
                task.cancel()
        else:
            with suppress(TimeoutError, RuntimeError):  # the loop is blocked or stopped, or was closed
                asyncio.run_coroutine_threadsafe(_cancel(self._tasks), self._loop).result(1.0)

    async def _close(self) -> None:
        # Includes tasks that handlers left behind, as `asyncio.run` does.
        await _cancel(asyncio.all_tasks(self._loop) - {asyncio.current_task()})
        self._loop.stop()

    def _answer(self) -> None:
        self._asked_at = 0.0
        self._warned = False

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
                break
            except OSError as error:
                # Code in this process closed a descriptor that the loop needs.
                log.error("the event loop cannot go on: %s", error)
                self.broken = True
                # The loop must not be garbage-collected: it would close descriptors that may have been reused by now.
                threading.Event().wait()
            except BaseException as error:
                # A KeyboardInterrupt in a task that a handler started ends `run_forever`; the pool's tasks continue.
                log.error("the event loop was interrupted by %s and goes on", type(error).__name__)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _start_tasks(self) -> None:
        wanted = len(self._calls)
        while wanted and self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                wanted -= 1
        while wanted and len(self._tasks) < self._owner.width:
            task = self._loop.create_task(self._run_calls(), name="holdfast-calls")
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)
            wanted -= 1

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task that runs calls ended: %r", task.exception())
        if self._calls and not self._closing:
            self._start_tasks()

    async def _run_calls(self) -> None:
        me = asyncio.current_task()
        report, may_start = self._owner.report, self._owner.may_start
        left = IN_A_ROW
        while True:
            left -= 1
            if not left:
                left = IN_A_ROW
                await asyncio.sleep(0)
            try:
                call = self._calls.next()
            except IndexError:
                if self._owner.out_of_work(self._is_free):
                    left = IN_A_ROW
                    await asyncio.sleep(0)
                    continue
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                await waiter
                continue
            if not may_start(call):
                continue
            self._running[call] = me
            try:
                finished = await self._runner.run_async(call, time.monotonic)
            except BaseException as error:
                finished = self._broken_off(call, error)
            finally:
                self._running.pop(call, None)
            if call.end():
                report(call, finished)
            elif call.abandoned:
                return  # another task has replaced this one

    def _is_free(self) -> bool:
        """Whether nothing in this loop is waiting: neither a handler nor a task that a handler left behind. Never on the
        caller's loop, whose other tasks must not wait for a commit.
        """
        return self._thread is not None and not self._running and len(asyncio.all_tasks(self._loop)) <= len(self._tasks)

    def _broken_off(self, call: C, error: BaseException) -> Any:
        if isinstance(error, asyncio.CancelledError):
            if self._closing or (self._took_back is not None and self._took_back(call)):
                raise error
        # The handler cancelled the task that runs it. That task belongs to the pool and must continue.
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        return self._runner.raised(call, error)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel these tasks and let them clean up."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=0.5)
