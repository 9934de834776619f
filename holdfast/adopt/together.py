"""Several loops in one process, each in a thread of its own, but all that need an event loop on one: they may share an
async engine, whose connections belong to an event loop. One signal stops them all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.signals import caught

if TYPE_CHECKING:
    from holdfast.adopt.loop import Loop

LOOK_SECONDS = 0.1


def run_together(loops: Sequence[Loop], *, drain: bool = False) -> None:
    """Run these until they are stopped, or with `drain` until none has anything to claim. If one breaks, the others are
    stopped, and its error is raised."""
    if len(loops) == 1:
        loops[0].run(drain=drain)
        return
    broken: list[BaseException] = []

    def note(error: BaseException) -> None:
        broken.append(error)
        for other in loops:
            if not other.stopping:
                other.stop()

    def run(loop: Loop) -> None:
        try:
            loop.run(drain=drain, signals=False)
        except BaseException as error:
            note(error)

    async def run_async(loop: Loop) -> None:
        try:
            await loop.run_async(drain=drain)
        except BaseException as error:
            note(error)

    def run_events() -> None:
        async def run_all() -> None:
            await asyncio.gather(*(run_async(loop) for loop in loops if loop.needs_event_loop))

        asyncio.run(run_all())

    def stop(number: int) -> None:
        for loop in loops:
            loop.stop()

    threads = [threading.Thread(target=run, args=(loop,), name=loop.name) for loop in loops if not loop.needs_event_loop]
    if len(threads) < len(loops):
        threads.append(threading.Thread(target=run_events, name="holdfast-events"))
    with caught(stop):
        for thread in threads:
            thread.start()
        for thread in threads:
            # In short waits, so that a signal is heard.
            while thread.is_alive():
                thread.join(LOOK_SECONDS)
    if broken:
        raise broken[0]
