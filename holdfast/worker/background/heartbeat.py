"""The heartbeat: renews all leases of this worker at once and listens for notifications, on its own thread and
connection.

It also decides how far the worker may trust itself. A heartbeat that found the worker's row proves that every lease is
valid, because leases are freed only after the row is gone. After a whole lease without a heartbeat, the worker must
start and commit nothing until a heartbeat succeeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.engine import workers
from holdfast.engine.workers import Identity
from holdfast.model.log_lines import logger
from holdfast.runtime.services import Service
from holdfast.store import Store
from holdfast.store.driver import NewsListener

log = logger("holdfast.worker")

#: The longest wait for a notification, so that neither a stop nor a heartbeat is late.
LISTEN_SECONDS = 0.05
#: How often a busy worker is asked whether it wants to be notified again.
BUSY_SECONDS = 0.01


@dataclass(eq=False)
class Heartbeat(Service):
    """Keeps the row of one worker alive."""

    name = "heartbeat"
    last_pass_seconds = 4.0

    _store: Store
    _renew: Callable[[], Identity]
    _versions: Mapping[int, str]
    _facts: Callable[[], dict[str, Any]]
    _on_lost: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.identity = self._renew()
        self.lease_seconds = self.identity.lease_us / 1e6
        self._interval = self.lease_seconds / 3
        self.retry_seconds = min(0.2, self._interval)
        #: When the latest successful heartbeat was sent.
        self._beaten = 0.0
        #: Since when heartbeats have succeeded without a gap.
        self._steady_since = 0.0

    def join(self, patience_seconds: float = 30.0) -> None:
        """Register the worker; from here on it may claim."""
        sent = time.monotonic()
        self._store.write(
            lambda tx: workers.join(tx, self.identity, self._versions, self._facts()), patience_seconds=patience_seconds
        )
        self._beaten = self._steady_since = sent
        self.due = time.monotonic() + self._interval

    def one_pass(self) -> bool:
        """Send one heartbeat. If the row is gone, hand back what has not started and register again."""
        sent = time.monotonic()
        # Before it is sent: a request to beat soon may come meanwhile.
        self.due = sent + self._interval
        found = self._store.writing(lambda tx: workers.beat(tx, self.identity, self._facts())).run()
        if not found:
            log.warning(
                "worker %s was declared dead; its work goes to others, it goes on under a new number",
                self.identity.name,
            )
            self._on_lost()
            self.identity = self._renew()
            self.join(patience_seconds=0.0)
            return False
        if sent - self._beaten > self.lease_seconds / 2:
            self._steady_since = sent
        self._beaten = sent
        return False

    def last_pass(self) -> None:
        """Deregister the worker."""
        done = {"done": self._facts()["done"]}
        self._store.write(lambda tx: workers.leave(tx, self.identity, done), patience_seconds=2.0)

    def end(self) -> None:
        self._store.close()

    def beat_soon(self) -> None:
        """Send the next heartbeat at once, because it carries news for others."""
        self.due = 0.0

    @property
    def trusted(self) -> bool:
        """False after a whole lease without a heartbeat: another worker may have taken over."""
        return time.monotonic() - self._beaten < self.lease_seconds

    @property
    def may_judge(self) -> bool:
        """Whether this worker may declare others dead. Not if it missed heartbeats itself within the last lease: the
        cause may have affected every worker.
        """
        now = time.monotonic()
        return now - self._beaten < self.lease_seconds / 2 and now - self._steady_since >= self.lease_seconds


@dataclass(eq=False)
class Listening(Service):
    """Waits for notifications between two heartbeats, on the same connection."""

    name = "notifications"

    _store: Store
    _heartbeat: Heartbeat
    _wants_news: Callable[[], bool]
    _on_news: Callable[[Collection[int]], None]

    def __post_init__(self) -> None:
        self._listener: NewsListener | None = None
        #: The heartbeat after which notifications were read last.
        self._read_before = 0.0

    def one_pass(self) -> bool:
        """Wait for one notification."""
        next_beat = self._heartbeat.due
        wait = min(max(next_beat - time.monotonic(), 0.0), LISTEN_SECONDS)
        if not self._wants_news():
            if next_beat == self._read_before:
                self.due = time.monotonic() + min(wait, BUSY_SECONDS)
                return False
            wait = 0.0  # read them even if unwanted, or they would pile up
        self._read_before = next_beat
        try:
            self._listener = self._listener or self._store.listener()
            stages = self._listener.wait(wait)
        except BaseException:
            self._listener = None
            raise
        self.due = time.monotonic()
        if stages is not None:
            self._on_news(stages)
        return False

    def end(self) -> None:
        if self._listener is not None:
            self._listener.close()
