"""How a loop's own code waits, whether its engine is sync or async.

All of it is sync code. With a sync engine it runs in threads. With an async engine it runs on the event loop, in greenlets,
where SQLAlchemy lets sync code await its statements and what is in this file. So it is written once.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import AsyncAdaptedLock


def sleep(engine: Engine, seconds: float) -> None:
    if engine.dialect.is_async:
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


def lock_for(engine: Engine) -> Any:
    """A lock that may be held while statements run."""
    return AsyncAdaptedLock() if engine.dialect.is_async else threading.Lock()


class Bell:
    """Wakes the code that waits for it. Any thread may ring it."""

    def __init__(self, engine: Engine) -> None:
        self._events = asyncio.get_running_loop() if engine.dialect.is_async else None
        self._rung: Any = threading.Event() if self._events is None else asyncio.Event()

    def ring(self) -> None:
        if self._events is None:
            self._rung.set()
            return
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._events.call_soon_threadsafe(self._rung.set)

    def wait(self, seconds: float) -> bool:
        """Wait until it rings, at most for this long; False if it did not."""
        found: bool = self._rung.wait(seconds) if self._events is None else await_only(self._wait_async(seconds))
        if found:  # it may ring at the very end of the wait, and must be heard by the next one
            self._rung.clear()
        return found

    async def _wait_async(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return bool(await self._rung.wait())
        except TimeoutError:
            return False


class Beside:
    """Runs a loop's code without blocking the event loop: in a greenlet if the engine is async; otherwise in one of up to
    `width` threads, because the event loop's default executor is small and shared."""

    def __init__(self, engine: Engine, width: int, name: str) -> None:
        self._threads = None if engine.dialect.is_async else ThreadPoolExecutor(width, thread_name_prefix=name)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._threads is None:
            return await greenlet_spawn(function, *arguments)
        work = partial(contextvars.copy_context().run, function, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Accept no more calls; running ones finish on their own."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
