"""Companions: what a worker does beside its work, each in a thread and with a connection of its own.

They look for new items, watch a file, tell of trouble. None can hold up the work: whatever goes wrong in one is said in the
log, and it is tried again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import StoreError
from holdfast.model.logs import logger
from holdfast.store import Store

log = logger("holdfast.worker")

#: After trouble, the next pass comes this much later at most.
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Around:
    """What a companion may use: a store of its own, who the worker is now, whether to stop, and how to ring for the worker."""

    store: Store
    worker: Callable[[], int]
    stopped: threading.Event
    ring: Callable[[], None]


#: Does its work once; True if there may be something to claim.
Pass = Callable[[], bool]


@dataclass(frozen=True)
class Companion:
    """`begin` is called in the companion's thread, and returns what is then done again and again."""

    name: str
    interval_seconds: float
    begin: Callable[[Around], Pass]


class Company:
    """The companions of one worker, from its start to its end."""

    def __init__(self, companions: tuple[Companion, ...], around: Callable[[threading.Event], Around]) -> None:
        self._stopped = threading.Event()
        self._around = around
        self._threads = [
            threading.Thread(target=self._run, args=(one,), name=f"holdfast-{one.name}", daemon=True) for one in companions
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_seconds: float = 1.0) -> None:
        self._stopped.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout_seconds)

    def _run(self, one: Companion) -> None:
        around = self._around(self._stopped)
        wait = 0.0
        one_pass: Pass | None = None
        try:
            while not self._stopped.wait(wait):
                wait = one.interval_seconds * random.uniform(0.9, 1.0)
                try:
                    one_pass = one_pass or one.begin(around)
                    if one_pass():
                        around.ring()
                except StoreError as error:
                    log.debug("%s waits for the store: %s", one.name, error)
                    wait = min(PATIENCE_SECONDS, 10 * wait)
                except Exception:
                    log.exception("%s stumbled and goes on", one.name)
                    wait = min(PATIENCE_SECONDS, 10 * wait)
        finally:
            around.store.close()
