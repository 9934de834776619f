"""A thread pool for one loop that runs on an event loop: the event loop's default executor is small and shared."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any


class OwnThreads:
    """Calls functions in up to `width` threads."""

    def __init__(self, width: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(width, thread_name_prefix=name)

    async def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        work = partial(contextvars.copy_context().run, function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Accept no more calls; running ones finish on their own."""
        self._threads.shutdown(wait=False)
