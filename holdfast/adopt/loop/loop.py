"""The loop: processes the rows of a table, in any number of processes.

    Loop(engine, jobs, handler, batch=10, concurrency=4).run()

A loop claims rows in batches, and commits the claim before any handler runs. Handlers run concurrently; each row's
outcome is a transaction of its own. Meanwhile the loop sends heartbeats and recovers stale rows of dead processes. On
SIGTERM, running handlers may finish within the grace period; other rows are handed back without counting the attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import fields
from typing import Any

from holdfast.adopt.connections import Place, is_async
from holdfast.adopt.loop.counters import Counters
from holdfast.adopt.loop.run import AsyncRun, ThreadedRun
from holdfast.adopt.loop.state import LoopState, RowHandler
from holdfast.adopt.loop.sync_or_async_engine import Beside
from holdfast.adopt.table.mapping import TableMapping
from holdfast.signals import caught


class Loop(LoopState):
    """Claims rows, runs the handler for each, and saves the outcomes."""

    def run(self, *, drain: bool = False, once: bool = False, signals: bool = True) -> Counters:
        """Run until stopped; with `drain`, until nothing is left to do; with `once`, for one batch. Returns the counters.

        A drain waits for rows that others hold until they are finished or stale, and for rows due within a minute.
        `Counters.left` has the rows it did not wait for. The mapping is first checked against the table. SIGTERM and
        SIGINT stop the loop if this is the main thread.
        """
        if self._needs_event_loop:
            return asyncio.run(self.run_async(drain=drain, once=once, signals=signals))
        self.mapping.check(self.engine)
        with caught(lambda _: self.stop(), signals), self.summed_up():
            ThreadedRun(self, once).work(drain)
        return self.counters

    async def run_async(self, *, drain: bool = False, once: bool = False, signals: bool = False) -> Counters:
        """Like `run`, on the running event loop."""
        beside, events = Beside(self.engine, 1, self.name), asyncio.get_running_loop()

        def work() -> None:
            (AsyncRun(self, once, events) if self._needs_event_loop else ThreadedRun(self, once)).work(drain)

        try:
            await beside.call(self.mapping.check, self.engine)
            with caught(lambda _: self.stop(), signals), self.summed_up():
                await self._unless_cancelled(asyncio.ensure_future(beside.call(work)))
        finally:
            beside.close()
        return self.counters

    async def _unless_cancelled(self, work: asyncio.Future[None]) -> None:
        """Wait for the work; if the caller is cancelled, stop the loop first."""
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait([work])
            raise

    @property
    def _needs_event_loop(self) -> bool:
        return is_async(self.at) or (self.is_async_handler and not self.isolate)


def run_job_loop(
    at: Place, model: Any, handler: RowHandler, **settings: Any
) -> Counters | Coroutine[Any, Any, Counters]:
    """Process a model's rows until stopped: a mapping, a loop and `run` in one call.

    `model` is a TableMapping; or a model or Table, with the mapping's settings (`status=`, `queued=`, …) among the others.
    Inside a running event loop it returns a coroutine.
    """
    running = {name: settings.pop(name) for name in ("drain", "once", "signals") if name in settings}
    if not isinstance(model, TableMapping):
        known = {one.name for one in fields(TableMapping) if one.init and one.name != "model"}
        model = TableMapping(model, **{name: settings.pop(name) for name in list(settings) if name in known})
    loop = Loop(at, model, handler, **settings)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return loop.run(**running)
    return loop.run_async(**running)


def run_together(loops: Sequence[Loop], *, drain: bool = False) -> int | None:
    """Run the loops until they are stopped; with `drain`, until none has anything left to do. If one loop raises, the others
    are stopped and its error is raised. Returns the number of the signal that stopped them, if any.

    Several share one event loop, since an async engine's connections belong to an event loop and loops may share the
    engine. Loops that need no event loop run in threads of their own.
    """
    stopped_by: list[int] = []

    def stop(number: int) -> None:
        stopped_by.append(number)
        for loop in loops:
            loop.stop()

    with caught(stop):
        if len(loops) == 1:
            loops[0].run(drain=drain, signals=False)
        else:
            _run_several(loops, drain)
    return stopped_by[0] if stopped_by else None


def _run_several(loops: Sequence[Loop], drain: bool) -> None:
    broken: list[BaseException] = []

    async def run_one(loop: Loop) -> None:
        try:
            await loop.run_async(drain=drain)
        except BaseException as error:
            broken.append(error)
            for other in loops:
                if not other.stopping:
                    other.stop()

    def claimed() -> int:
        return sum(loop.counters.claimed for loop in loops)

    async def run_all() -> None:
        while True:
            before = claimed()
            await asyncio.gather(*(run_one(loop) for loop in loops))
            # A loop may have added rows for one that had already ended: only a round without claims is the last one.
            if not drain or claimed() == before or any(loop.stopping for loop in loops):
                return

    asyncio.run(run_all())
    if broken:
        raise broken[0]
