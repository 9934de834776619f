"""A loop carried out by tasks of an event loop: for async engines and async handlers.

A sync handler runs in a thread beside the loop. With a sync engine the database is spoken to in threads, too, and the
heartbeat beats from a thread of its own, whatever handlers do to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.adopt.connections import is_async
from holdfast.adopt.loop.claiming import claiming
from holdfast.adopt.loop.counters import Counters
from holdfast.adopt.loop.draining import Rest, resting
from holdfast.adopt.loop.heartbeats import TaskBeater, ThreadBeater
from holdfast.adopt.loop.job import Job
from holdfast.adopt.loop.own_threads import Beside
from holdfast.adopt.loop.saving import completed_at_once, handing_back, is_usual, saving
from holdfast.adopt.loop.steps import Steps, drive_async
from holdfast.adopt.loop.upkeep import PIECES, unless_stopping
from holdfast.adopt.loop.upkeep_times import Tending
from holdfast.adopt.loop.what_to_claim import Picking
from holdfast.adopt.rows.sqlite_direct import Line, is_plain
from holdfast.adopt.table.held_row import Held
from holdfast.model.logs import logger

if TYPE_CHECKING:
    from holdfast.adopt.loop.loop import Loop

log = logger("holdfast.adopt")

#: How often a task looks for a stop that came from another thread.
LOOK_SECONDS = 0.1


async def run_tasks(loop: Loop, *, drain: bool, once: bool, signals: bool) -> Counters:
    """Work until stopped, until nothing is left, or until one batch is done."""
    if is_async(loop.at):
        from sqlalchemy.ext.asyncio import AsyncEngine

        async with AsyncEngine(loop.engine).connect() as connection:
            await connection.run_sync(loop.mapping.check)
    else:
        await asyncio.to_thread(loop.mapping.check, loop.engine)
    with _stopping_on_signals(loop, signals), loop.summed_up():
        await _Crew(loop).work(drain, once)
    return loop.counters


class _Crew:
    """The rows in hand, and the tasks that have them."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._queue: deque[Job] = deque()
        self._tasks: dict[asyncio.Task[None], Job] = {}
        self._jobs: dict[int, Job] = {}
        self._broken: BaseException | None = None
        # For handlers, for the claim, and for outcomes.
        self._beside = Beside(loop.concurrency + 2, "holdfast-handler")
        self._place: Any = loop.engine
        self._beater: Any = ThreadBeater(loop.engine, loop.beat_seconds, self._lost)
        if is_async(loop.at):
            from sqlalchemy.ext.asyncio import AsyncEngine

            self._place = AsyncEngine(loop.engine)
            self._beater = TaskBeater(self._place, loop.beat_seconds, self._lost)

    async def work(self, drain: bool, once: bool) -> None:
        loop, tending, picking = self._loop, Tending(self._loop), Picking(self._loop, once=once)
        rest: Rest | None = None
        try:
            while not loop.stopping and self._broken is None:
                for piece in tending.due():
                    if await self._drive(unless_stopping(loop, PIECES[piece](loop))) and piece == "suspect":
                        picking.want_alone()
                kind = picking.next(len(self._queue), len(self._tasks))
                if kind is not None:
                    picking.took(kind, await self._claim(kind))
                pause, is_done = loop.poll_seconds, (drain or once) and self._is_done(picking)
                if is_done and once:
                    break
                if is_done:
                    rest = await self._drive(unless_stopping(loop, resting(loop, rest)))
                    if rest is not None and rest.is_drained:
                        loop.counters.left = rest.left
                        break
                    pause = pause if rest is None else rest.pause_seconds(pause)
                await self._pause(picking, min(pause, tending.seconds_left()), (drain or once) and not is_done)
        finally:
            await self._shut_down()
        if self._broken is not None:
            raise self._broken

    def _is_done(self, picking: Picking) -> bool:
        """Nothing is in hand, and the last claims brought nothing."""
        return not (self._queue or self._tasks) and picking.is_exhausted(0)

    async def _claim(self, kind: str) -> int:
        """Rows that were claimed while this was being cancelled are in hand, too, to be handed back."""
        claim = asyncio.ensure_future(self._drive(unless_stopping(self._loop, claiming(self._loop, kind))))
        try:
            rows = await asyncio.shield(claim)
        except asyncio.CancelledError:
            self._hand_out(await claim or [])
            raise
        self._hand_out(rows or [])
        return len(rows or [])

    async def _drive(self, steps: Steps[Any]) -> Any:
        return await drive_async(steps, self._place, self._beside.call)

    def _hand_out(self, rows: list[Held]) -> None:
        for one in rows:
            job = self._loop.job(one)
            self._jobs[id(one)] = job
            self._beater.add(one)
            self._queue.append(job)

    def _start(self) -> None:
        while self._queue and len(self._tasks) < self._loop.concurrency:
            job = self._queue.popleft()
            self._tasks[asyncio.create_task(self._run_one(job), name="holdfast-handler")] = job

    async def _pause(self, picking: Picking, length: float, until_done: bool) -> None:
        """With nothing to claim: so long, or until nothing is in hand. With everybody busy: until somebody is not. What waits
        is started as others end."""
        until = time.monotonic() + length
        while not self._loop.stopping and self._broken is None:
            self._reap()
            self._start()
            waiting, running = len(self._queue), len(self._tasks)
            if picking.is_exhausted(waiting + running):
                if until_done and not waiting and not running:
                    return
            elif picking.next(waiting, running) is not None:
                return
            left = until - time.monotonic()
            if left <= 0:
                return
            step = min(left, LOOK_SECONDS)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=step, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(step)

    def _reap(self) -> None:
        for task in [one for one in self._tasks if one.done()]:
            del self._tasks[task]
            if not task.cancelled() and task.exception() is not None:
                self._broken = self._broken or task.exception()

    async def _run_one(self, job: Job) -> None:
        returned: Any = None
        error: BaseException | None = None
        try:
            if self._loop.is_async_handler:
                returned = await self._loop.handler(job)
            else:
                returned = await self._beside.call(self._loop.handler, job)
                if inspect.isawaitable(returned):
                    returned = await returned
        except BaseException as raised:
            if isinstance(raised, asyncio.CancelledError) and self._jobs.get(id(job.held)) is None:
                return
            error = raised
        if self._jobs.pop(id(job.held), None) is None:
            return  # handed back already
        held = await self._taken(job)
        if error is None and await self._is_completed_at_once(job, held, returned):
            return
        place = self._loop.at if job.effects else self._place
        await drive_async(saving(self._loop, job, held, returned, error), place, self._beside.call)

    async def _is_completed_at_once(self, job: Job, held: Held, returned: Any) -> bool:
        if not is_usual(job, returned) or not is_plain(self._loop.engine):
            return False  # without a thread
        done: bool = await self._beside.call(completed_at_once, self._loop, held, Line())
        return done

    async def _taken(self, job: Job) -> Held:
        found: Any = self._beater.take(job.held)
        held: Held = await found if inspect.isawaitable(found) else found
        return held

    def _lost(self, held: Held) -> None:
        job = self._jobs.get(id(held))
        if job is not None:
            job.lost = True

    async def _shut_down(self) -> None:
        """Hand back what has not begun; wait for what has, within the grace; hand back what is left, and cancel it."""
        loop = self._loop
        waiting = list(self._queue)
        self._queue.clear()
        await self._release(waiting)
        give_up_at = time.monotonic() + loop.grace_seconds
        while self._tasks and time.monotonic() < give_up_at and not loop.hurrying:
            await asyncio.wait(self._tasks, timeout=LOOK_SECONDS)
            self._reap()
        left = dict(self._tasks)
        await self._release(list(left.values()))
        for task in left:
            task.cancel()
        stopped = self._beater.stop()
        if inspect.isawaitable(stopped):
            await stopped
        self._beside.close()

    async def _release(self, jobs: list[Job]) -> None:
        rows = [await self._taken(job) for job in jobs if self._jobs.pop(id(job.held), None) is not None]
        await self._drive(handing_back(self._loop, rows))


@contextlib.contextmanager
def _stopping_on_signals(loop: Loop, signals: bool) -> Iterator[None]:
    if not signals or threading.current_thread() is not threading.main_thread():
        yield
        return
    events = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        events.add_signal_handler(number, loop.stop)
    try:
        yield
    finally:
        for number in numbers:
            events.remove_signal_handler(number)
