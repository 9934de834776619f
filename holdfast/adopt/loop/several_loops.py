"""Runs several loops in one process, stopped by one signal.

They share one event loop, since an async engine's connections belong to an event loop and loops may share the engine. Loops
that need no event loop run in threads of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.adopt.loop.loop import Loop
from holdfast.signals import caught


def run_together(loops: Sequence[Loop], *, drain: bool = False) -> int | None:
    """Run the loops until they are stopped; with `drain`, until none has anything left to do. If one loop raises, the others
    are stopped and its error is raised. Returns the number of the signal that stopped them, if any."""
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
