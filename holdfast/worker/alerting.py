"""Alerting: looks through the events for every rule, and tells whoever is to be told.

In threads of its own, on a connection of its own: neither a slow look nor an address that hangs keeps work waiting. One
thread looks, takes what is to be told, and writes down how it went; each telling is a thread that lives as long as it takes,
so that one address which hangs delays no other. A telling that outlives its time is given up, whatever it does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.engine import alerts
from holdfast.engine.alerts import Delivery
from holdfast.errors import StoreError
from holdfast.model.alert import AlertRule
from holdfast.model.logs import logger
from holdfast.model.redact import remember_secret
from holdfast.store import Store
from holdfast.worker.telling import Telling

log = logger("holdfast.alert")

#: Tellings that go on at a time.
MOST_AT_ONCE = 8
#: How long the look at a database in trouble waits, and how often that is said.
PATIENCE_SECONDS, COMPLAIN_SECONDS = 1.0, 60.0
#: How long a stop waits for tellings that are under way.
FAREWELL_SECONDS = 2.0


class Passed(NamedTuple):
    """What one pass did."""

    raised: int
    told: int
    failed: int


class Alerting:
    """Watches events by rules, and tells. `worker` says the number of the worker that vouches for it at the moment."""

    def __init__(
        self, store: Store, rules: Sequence[AlertRule], worker: Callable[[], int], *, poll_seconds: float = 1.0
    ) -> None:
        self._store = store
        self._worker = worker
        self._poll = poll_seconds
        self._under_way: list[Telling] = []
        self._bell = threading.Event()
        self._stopped = False
        self._complained_at = -COMPLAIN_SECONDS
        self._thread = threading.Thread(target=self._run, name="holdfast-alerting", daemon=True)
        self._rules: dict[str, AlertRule] = {}
        self.set_rules(rules)

    def set_rules(self, rules: Sequence[AlertRule]) -> None:
        """These rules from now on; may be called from any thread, while it runs."""
        for secret in (secret for rule in rules for secret in rule.secrets):
            remember_secret(secret)
        self._rules = {rule.name: rule for rule in rules}
        self._bell.set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End soon. What is still being told then is told again by another worker, once this one is gone."""
        self._stopped = True
        self._bell.set()
        if self._thread.ident is None:
            self._store.close()
        else:
            self._thread.join(FAREWELL_SECONDS + 2 * PATIENCE_SECONDS)

    def one_pass(self) -> Passed:
        """Write down how tellings went, look through new events, and begin to tell what is due."""
        told, failed = self._settle()
        rules = list(self._rules.values())
        if not rules or not self._store.read(
            lambda tx: alerts.anything_to_do(tx, rules), patience_seconds=PATIENCE_SECONDS
        ):
            return Passed(0, told, failed)
        raised = self._store.write(lambda tx: alerts.watch_events(tx, rules), patience_seconds=PATIENCE_SECONDS)
        room = MOST_AT_ONCE - len(self._under_way)
        if room > 0:
            worker = self._worker()
            taken = self._store.write(
                lambda tx: alerts.take_deliveries(tx, rules, worker, room), patience_seconds=PATIENCE_SECONDS
            )
            for delivery in taken:
                self._begin(delivery)
        return Passed(raised, told, failed)

    def _begin(self, delivery: Delivery) -> None:
        telling = Telling(self._rules.get(delivery.alert), delivery, self._bell.set)
        self._under_way.append(telling)
        telling.start()

    def _settle(self) -> tuple[int, int]:
        """Write down how tellings ended, one by one: what could not be written is kept for the next time."""
        told = failed = 0
        now = time.monotonic()
        for telling in list(self._under_way):
            if not telling.is_over(now):
                continue
            one, error = telling.delivery, telling.error
            if error is None:
                self._store.write(lambda tx, one=one: alerts.delivered(tx, one), patience_seconds=PATIENCE_SECONDS)  # type: ignore[misc]
                told += 1
            else:
                self._store.write(
                    lambda tx, one=one, error=error: alerts.failed_delivery(tx, one, error),  # type: ignore[misc]
                    patience_seconds=PATIENCE_SECONDS,
                )
                failed += 1
                log.warning("alert %r could not be told by %s, attempt %d: %s", one.alert, one.by, one.attempt, error)
            self._under_way.remove(telling)
        return told, failed

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._bell.clear()
                self._carefully(self.one_pass)
                self._bell.wait(self._poll)
            self._say_goodbye()
        finally:
            self._store.close()

    def _say_goodbye(self) -> None:
        give_up_at = time.monotonic() + FAREWELL_SECONDS
        while self._under_way and time.monotonic() < give_up_at:
            self._carefully(self._settle)
            self._bell.wait(0.02)
            self._bell.clear()
        for telling in self._under_way:
            telling.give_up()

    def _carefully(self, act: Callable[[], object]) -> None:
        """Whatever goes wrong here is no reason to stop."""
        try:
            act()
        except StoreError as error:
            now = time.monotonic()
            if now - self._complained_at >= COMPLAIN_SECONDS:
                self._complained_at = now
                log.warning("alerts wait for the store: %s", error)
        except Exception:
            log.exception("alerting stumbled and goes on")
