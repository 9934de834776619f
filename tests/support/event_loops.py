"""Async tests without a plugin: each runs its own event loop, as a program does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: No test takes this long; one that would is stuck.
STUCK_SECONDS = 60.0


def run_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """`asyncio.run`, with an end."""

    async def bounded() -> T:
        async with asyncio.timeout(STUCK_SECONDS):
            return await main()

    return asyncio.run(bounded())
