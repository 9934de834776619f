"""Background services: what runs beside the work, one short pass at a time.

Any number of processes may run the same service at once; none needs a leader. A service runs in the thread that calls its
scheduler, or in a thread of its own, where it delays nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.errors import StoreBroken, StoreError
from holdfast.model.log_lines import logger
from holdfast.store import Store

log = logger("holdfast.worker")

#: How often a process that waits for a last pass looks whether somebody is in a hurry.
LOOK_SECONDS = 0.05


class Service:
    """Something to do again and again while a process works."""

    #: For the log, and the name of its thread.
    name = "service"
    #: When the next pass is due, on the monotonic clock.
    due = 0.0
    #: How long after a failed pass the next one is due.
    retry_seconds = 0.2
    #: How long the process waits for the last pass.
    last_pass_seconds = 1.0

    def one_pass(self) -> bool:
        """Do what is due, and set `due`; True if there may be something to claim now."""
        raise NotImplementedError

    def last_pass(self) -> None:
        """Do what must still be done once the work has ended."""

    def hurry(self) -> None:
        """Make the last pass without waiting for anything, or cut it short; called from another thread."""

    def end(self) -> None:
        """Release what it holds. Nothing is called after this."""


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What a service gets from its worker: a store of its own, the worker's current number, and whether the worker stops."""

    store: Store
    worker: Callable[[], int]
    stopped: threading.Event


#: Makes a service for one worker.
MakeService = Callable[[ServiceContext], Service]


class Scheduler:
    """Runs services in the thread that calls it, the longest overdue first, and none before `not_before`."""

    def __init__(self, services: Sequence[Service], not_before: float = 0.0) -> None:
        self._services = services
        self._not_before = not_before

    def begin(self) -> None:
        """Start now."""
        self._not_before = 0.0

    @property
    def due(self) -> float:
        """When the next pass is due."""
        return max(self._not_before, min([service.due for service in self._services]))

    def run(self, is_called: Callable[[], bool]) -> bool:
        """Make the passes that are due; only one of them if the thread is called to other work. True if there may be
        something to claim. Raises StoreError if the database cannot be used now.
        """
        now = time.monotonic()
        while self.due <= now:
            if self._one_pass(min(self._services, key=lambda service: service.due)):
                return True
            if is_called():
                break
        return False

    def _one_pass(self, service: Service) -> bool:
        try:
            return service.one_pass()
        except Exception as error:
            service.due = time.monotonic() + service.retry_seconds
            if isinstance(error, StoreError):
                raise
            # A service that fails must not keep the others from their passes, nor the thread from its other work.
            log.exception("%s: a pass failed and will be made again", service.name)
            return False


class ServiceThread:
    """A thread with services of its own, from the start of a process's work to its end."""

    def __init__(
        self,
        services: Sequence[Service],
        on_found: Callable[[], None] = lambda: None,
        on_broken: Callable[[StoreBroken], None] = lambda error: None,
        stopped: threading.Event | None = None,
    ) -> None:
        """`on_found` is called when there may be something to claim, `on_broken` when the database has become unusable. Once
        `stopped` is set, no pass is made but the last.
        """
        self._stopped = stopped or threading.Event()
        self._services = services
        self._scheduler = Scheduler(services)
        self._on_found = on_found
        self._on_broken = on_broken
        #: Set when the services may make their last pass or, with `_at_once`, end without one.
        self._work_is_over = threading.Event()
        self._at_once = False
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{services[0].name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, *, last_pass: bool = True) -> None:
        """The work has ended: have each service make its last pass, if it may, and end."""
        self._at_once = not last_pass
        self._stopped.set()
        self._work_is_over.set()

    def join(self, in_a_hurry: Callable[[], bool] = lambda: False) -> None:
        """Wait for the last passes, each within its time; once somebody is in a hurry, they are cut short. A thread that hangs
        is left behind.
        """
        if self._thread.ident is None:
            self._release()
            return
        give_up_at = time.monotonic() + sum(service.last_pass_seconds for service in self._services)
        while self._thread.is_alive() and (left := give_up_at - time.monotonic()) > 0:
            if in_a_hurry():
                self.hurry()
            self._thread.join(min(left, LOOK_SECONDS))

    def hurry(self) -> None:
        for service in self._services:
            service.hurry()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(max(0.0, self._scheduler.due - time.monotonic())):
                self._run_due()
            self._work_is_over.wait()
            for service in self._services if not self._at_once else ():
                self._run_last(service)
        finally:
            self._release()

    def _release(self) -> None:
        for service in reversed(self._services):
            service.end()

    def _run_due(self) -> None:
        try:
            if self._scheduler.run(self._stopped.is_set):
                self._on_found()
        except StoreError as error:
            log.debug("%s: %s", self._services[0].name, error)
            if isinstance(error, StoreBroken):
                self._on_broken(error)

    def _run_last(self, service: Service) -> None:
        try:
            service.last_pass()
        except StoreError as error:
            log.warning("%s: the last pass could not be made: %s", service.name, error)
        except Exception:
            log.exception("%s: the last pass failed", service.name)
