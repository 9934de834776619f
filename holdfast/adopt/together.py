"""Several loops in one process, each in a thread of its own; one signal stops them all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

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

    def run(loop: Loop) -> None:
        try:
            loop.run(drain=drain, signals=False)
        except BaseException as error:
            broken.append(error)
            for other in loops:
                if not other.stopping:
                    other.stop()

    def stop(*_: object) -> None:
        for loop in loops:
            loop.stop()

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    threads = [threading.Thread(target=run, args=(loop,), name=loop.name) for loop in loops]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            # In short waits, so that a signal is heard.
            while thread.is_alive():
                thread.join(LOOK_SECONDS)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if broken:
        raise broken[0]
