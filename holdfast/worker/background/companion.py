"""Companions: background tasks of a worker, each with its own thread and connection.

They look for new items, watch a file, or send alerts. None can delay the work: a companion that fails logs the error
and tries again.
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

#: The longest wait before the next pass after an error.
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Around:
    """What a companion may use: its own store, the current id of the worker, the stop event, and a way to wake the
    committer.
    """

    store: Store
    worker: Callable[[], int]
    stopped: threading.Event
    ring: Callable[[], None]


#: Makes one pass; True if there may be something to claim.
Pass = Callable[[], bool]


def _nothing() -> None: ...


@dataclass(frozen=True)
class Passes:
    """The pass that a companion repeats, and the one it makes after the work has ended."""

    one: Pass
    last: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Companion:
    """A background task. `begin` is called in the companion's thread."""

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
        """Make no more passes except the last."""
        self._stopped.set()

    def end(self) -> None:
        """Let each companion make its last pass within its time limit. The worker must still be registered."""
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
            # The work may have ended before the first pass.
            (passes or one.begin(around)).last()
        except StoreError as error:
            log.warning("%s: the last pass could not be made: %s", one.name, error)
        except Exception:
            log.exception("%s stumbled in its last pass", one.name)
        finally:
            around.store.close()
