"""Sync work for an async caller: in a thread of its own, so that the caller's event loop goes on.

A thread of its own and not one of the loop's executor: that one has few threads, a worker would occupy one of them for
hours, and handlers on the same loop need them.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from holdfast.store.async_connection import AsyncConnection, is_async

T = TypeVar("T")

#: How often a caller's event loop wakes while it waits for work that can be stopped. A signal handler may have the loop cancel
#: the caller without waking it, as that of ipykernel does: an idle loop would notice only when the work has ended.
WAKE_SECONDS = 0.25


async def in_thread(work: Callable[[], T], stop: Callable[[], None] | None = None) -> T:
    """The result of `work`, which runs in a thread.

    If the caller is cancelled, `stop` is called, and the cancellation goes on once the work has ended; cancelled again, it is
    called again. Without `stop`, the caller is released at once, and the work ends by itself.
    """
    outcome: Future[T] = Future()
    # Work that runs cannot be cancelled, only stopped.
    outcome.set_running_or_notify_cancel()
    call = partial(contextvars.copy_context().run, work)
    threading.Thread(target=_complete, args=(outcome, call), name="holdfast-call", daemon=True).start()
    waiting = asyncio.wrap_future(outcome)
    if stop is None:
        return await waiting
    cancelled: asyncio.CancelledError | None = None
    while not waiting.done():
        try:
            await asyncio.wait([waiting], timeout=WAKE_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error
            stop()
    if cancelled is not None:
        raise cancelled from waiting.exception()
    return waiting.result()


async def with_connection(connection: Any, work: Callable[[Any], T]) -> T:
    """The result of `work`, which runs in a thread and gets the caller's connection. One that is async is used on the caller's
    event loop; cancelled, nothing more is sent to it, and the caller can roll back."""
    if not is_async(connection):
        return await in_thread(lambda: work(connection))
    sender = AsyncConnection()
    reached = await sender.reach(connection)
    return await in_thread(lambda: work(reached), sender.cut_off)


def _complete(outcome: Future[T], call: Callable[[], T]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:
        outcome.set_exception(error)


class AsyncCaller:
    """The task that awaits a worker. Async handlers run on its event loop, and to cancel it stops the worker."""

    def __init__(self) -> None:
        self.events = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._stops = 0

    @property
    def is_cancelled(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    def stop(self) -> None:
        """Stop the worker, or keep it from starting: as its own `stop`, gracefully first and at once the second time."""
        with self._lock:
            self._stops += 1
            if self._stop is not None:
                self._stop()

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Call this for every stop, those of the past included."""
        with self._lock:
            self._stop = stop
            for _ in range(self._stops):
                stop()
