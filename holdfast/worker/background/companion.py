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


def _nothing() -> None: ...


@dataclass(frozen=True)
class Passes:
    """What a companion does again and again, and what it does once more when the work is over."""

    one: Pass
    last: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Companion:
    """`begin` is called in the companion's thread."""

    name: str
    interval_seconds: float
    begin: Callable[[Around], Passes]
    #: How long the worker waits for its last pass.
    farewell_seconds: float = 1.0


class Company:
    """The companions of one worker, from its start to its end."""

    def __init__(self, companions: tuple[Companion, ...], around: Callable[[threading.Event], Around]) -> None:
        self._stopped = threading.Event()
        self._work_is_over = threading.Event()
        self._around = around
        self._threads = [
            (
                threading.Thread(target=self._run, args=(one,), name=f"holdfast-{one.name}", daemon=True),
                one.farewell_seconds,
            )
            for one in companions
        ]

    def start(self) -> None:
        for thread, _ in self._threads:
            thread.start()

    def stop(self) -> None:
        """No more passes, but for the last."""
        self._stopped.set()

    def end(self) -> None:
        """The work is over, and its worker still vouches for them: let each make its last pass, for as long as it may take."""
        self._stopped.set()
        self._work_is_over.set()
        for thread, farewell_seconds in self._threads:
            if thread.ident is not None:
                thread.join(farewell_seconds)

    def _run(self, one: Companion) -> None:
        around = self._around(self._stopped)
        wait = 0.0
        passes: Passes | None = None
        try:
            while not self._stopped.wait(wait):
                wait = one.interval_seconds * random.uniform(0.9, 1.0)
                try:
                    passes = passes or one.begin(around)
                    if passes.one():
                        around.ring()
                except StoreError as error:
                    log.debug("%s waits for the store: %s", one.name, error)
                    wait = min(PATIENCE_SECONDS, 10 * wait)
                except Exception:
                    log.exception("%s stumbled and goes on", one.name)
                    wait = min(PATIENCE_SECONDS, 10 * wait)
            self._work_is_over.wait()
            # The work may have been over before the first pass.
            (passes or one.begin(around)).last()
        except StoreError as error:
            log.warning("%s: the last pass could not be made: %s", one.name, error)
        except Exception:
            log.exception("%s stumbled in its last pass", one.name)
        finally:
            around.store.close()
