"""Async handlers: one event loop in a thread of its own, and lanes in it that run one call after another.

A lane awaits the handler itself, so a handler that never waits costs no task and no switch; one that does lets the
other lanes go on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from holdfast.engine.finish import Finished
from holdfast.worker.call import Call
from holdfast.worker.runner import Runner

log = logging.getLogger("holdfast.worker")

Report = Callable[[Call, list[Finished]], None]
MayStart = Callable[[Call], bool]


class Lanes:
    """Runs calls of async handlers, at most `width` at a time."""

    def __init__(self, runner: Runner, width: int, report: Report, may_start: MayStart) -> None:
        self._runner = runner
        self._width = width
        self._report = report
        self._may_start = may_start
        self._calls: deque[Call] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, calls: Sequence[Call]) -> None:
        """Run these as soon as there is a lane."""
        if self._loop is None:
            self._thread = threading.Thread(target=self._serve, name="holdfast-loop", daemon=True)
            self._thread.start()
            self._ready.wait()
        assert self._loop is not None
        self._calls.extend(calls)
        self._loop.call_soon_threadsafe(self._wake)

    def withdraw(self) -> list[Call]:
        """Take back what has not started."""
        calls = []
        while self._calls:
            try:
                calls.append(self._calls.popleft())
            except IndexError:
                break
        return calls

    def look(self, now: float) -> None:
        """Timeouts are the lanes' own."""

    def stop(self) -> None:
        """Cancel what still runs and end the loop; a handler that blocks it is left behind."""
        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop)
            self._thread.join(timeout=1.0)

    async def _close(self) -> None:
        lanes = list(self._tasks)
        for lane in lanes:
            lane.cancel()
        await asyncio.wait(lanes, timeout=0.5) if lanes else None
        asyncio.get_running_loop().stop()

    def _serve(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._ready.set()
        while True:
            try:
                self._loop.run_forever()
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
                self._loop.close()
                return
            except BaseException as error:
                # A KeyboardInterrupt from a task that is not ours falls through the loop; the lanes go on.
                log.error("the event loop was interrupted by %s and goes on", type(error).__name__)

    def _wake(self) -> None:
        wanted = len(self._calls)
        while wanted and self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                wanted -= 1
        assert self._loop is not None
        while wanted and len(self._tasks) < self._width:
            self._open_lane(self._loop)
            wanted -= 1

    def _open_lane(self, loop: asyncio.AbstractEventLoop) -> None:
        task = loop.create_task(self._lane(loop), name="holdfast-lane")
        self._tasks.add(task)
        task.add_done_callback(self._lane_ended)

    def _lane_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a lane ended: %r", task.exception())
        if self._calls and not task.cancelled():
            self._wake()

    async def _lane(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                call = self._calls.popleft()
            except IndexError:
                waiter = loop.create_future()
                self._idle.append(waiter)
                await waiter
                continue
            if not self._may_start(call):
                continue
            finished = await self._runner.run_async(call, time.monotonic)
            if call.end():
                self._report(call, finished)
