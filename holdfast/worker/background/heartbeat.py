"""The heartbeat: renews all leases of this worker at once and listens for notifications, on its own thread and
connection.

It also decides how far the worker may trust itself. A heartbeat that found the worker's row proves that every lease is
valid, because leases are freed only after the row is gone. After a whole lease without a heartbeat, the worker must
start and commit nothing until a heartbeat succeeds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from holdfast.engine import workers
from holdfast.engine.workers import Identity
from holdfast.errors import StoreBroken, StoreError
from holdfast.model.logs import logger
from holdfast.store import Store

log = logger("holdfast.worker")


class Heartbeat:
    """Keeps the row of one worker alive."""

    def __init__(
        self,
        store: Store,
        renew: Callable[[], Identity],
        versions: Mapping[int, str],
        facts: Callable[[], dict[str, Any]],
        wants_news: Callable[[], bool],
        on_news: Callable[[Collection[int]], None],
        on_lost: Callable[[], None],
        on_broken: Callable[[StoreBroken], None],
    ) -> None:
        self._store = store
        self._renew = renew
        self._versions = versions
        self._facts = facts
        self._wants_news = wants_news
        self._on_news = on_news
        self._on_lost = on_lost
        self._on_broken = on_broken
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)
        self.identity = renew()
        self._lease_seconds = self.identity.lease_us / 1e6
        self._is_urgent = False
        #: When the latest successful heartbeat was sent.
        self._beaten = 0.0
        #: Since when heartbeats have succeeded without a gap.
        self._steady_since = 0.0

    def start(self) -> None:
        """Register the worker; from here on it may claim."""
        self._join(patience_seconds=30.0)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=2.0)

    def leave(self) -> None:
        """Deregister the worker. If the thread is still waiting for the database, let the lease expire instead."""
        if not self._thread.is_alive():
            self._store.write(
                lambda tx: workers.leave(tx, self.identity, {"done": self._facts()["done"]}), patience_seconds=2.0
            )

    def close(self) -> None:
        if not self._thread.is_alive():
            self._store.close()

    def beat_soon(self) -> None:
        """Send the next heartbeat at once, because it carries news for others."""
        self._is_urgent = True

    @property
    def trusted(self) -> bool:
        """False after a whole lease without a heartbeat: another worker may have taken over."""
        return time.monotonic() - self._beaten < self._lease_seconds

    @property
    def may_judge(self) -> bool:
        """Whether this worker may declare others dead. Not if it missed heartbeats itself within the last lease: the
        cause may have affected every worker.
        """
        now = time.monotonic()
        return now - self._beaten < self._lease_seconds / 2 and now - self._steady_since >= self._lease_seconds

    def one_pass(self) -> bool:
        """Send one heartbeat; False if the row was gone and the worker registered again."""
        sent = time.monotonic()
        found = self._store.writing(lambda tx: workers.beat(tx, self.identity, self._facts())).run()
        if not found:
            log.warning(
                "worker %s was declared dead; its work goes to others, it goes on under a new number",
                self.identity.name,
            )
            self._on_lost()
            self.identity = self._renew()
            self._join(patience_seconds=0.0)
            return False
        if sent - self._beaten > self._lease_seconds / 2:
            self._steady_since = sent
        self._beaten = sent
        return True

    def _join(self, patience_seconds: float) -> None:
        sent = time.monotonic()
        self._store.write(
            lambda tx: workers.join(tx, self.identity, self._versions, self._facts()), patience_seconds=patience_seconds
        )
        self._beaten = self._steady_since = sent

    def _run(self) -> None:
        interval = self._lease_seconds / 3
        due = time.monotonic() + interval
        listener = None
        while not self._stopped.is_set():
            try:
                beaten = self._is_urgent or time.monotonic() >= due
                if beaten:
                    self._is_urgent = False
                    self.one_pass()
                    due = time.monotonic() + interval
                if listener is None:
                    listener = self._store.listener()
                # Short waits, so that neither a stop nor a heartbeat is late.
                wait = min(max(due - time.monotonic(), 0.0), 0.05)
                if beaten:
                    wait = 0.0  # read notifications even if unwanted, or they would pile up
                elif not self._wants_news():
                    self._stopped.wait(min(wait, 0.01))
                    continue
                if (stages := listener.wait(wait)) is not None:
                    self._on_news(stages)
            except StoreBroken as error:
                self._on_broken(error)
                return
            except StoreError as error:
                log.debug("no heartbeat: %s", error)
                listener = None
                self._stopped.wait(min(0.2, interval))
            except Exception:
                log.exception("no heartbeat")
                self._stopped.wait(min(0.2, interval))
        if listener is not None:
            listener.close()
