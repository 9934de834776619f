"""Alerts: looks through the events for every rule, and tells whoever is to be told.

A companion of a worker, in a thread and on a connection of its own: neither a slow look nor an address that hangs keeps work
waiting. A pass writes down how tellings went, looks, and begins to tell what is due; each telling is a thread that lives as
long as it takes, so that one address which hangs delays no other. A telling that outlives its time is given up, whatever it
does. The last pass comes when the work is over: what has just happened is told, and what was told is written down.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.engine import alerts
from holdfast.engine.alerts import Delivery
from holdfast.model.alert import AlertRule
from holdfast.model.logs import logger
from holdfast.model.redact import remember_secret
from holdfast.store import Store
from holdfast.worker.background.delivery import OngoingDelivery

log = logger("holdfast.alert")

#: Tellings that go on at a time.
MOST_AT_ONCE = 8
#: How long the look at a database in trouble waits.
PATIENCE_SECONDS = 1.0
#: How long the last pass waits for tellings that are under way.
FAREWELL_SECONDS = 2.0


class Passed(NamedTuple):
    """What one pass did."""

    raised: int
    told: int
    failed: int


class Alerts:
    """Watches events by rules, and tells. `worker` says the number of the worker that vouches for it at the moment."""

    def __init__(self, store: Store, rules: Sequence[AlertRule], worker: Callable[[], int]) -> None:
        self._store = store
        self._worker = worker
        self._under_way: list[OngoingDelivery] = []
        self._bell = threading.Event()
        self._rules = {rule.name: rule for rule in rules}
        for secret in (secret for rule in rules for secret in rule.secrets):
            remember_secret(secret)

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

    def last_pass(self) -> None:
        """Tell what has happened up to now, and write down what was told. What is not told by then is ended, and has failed: it
        is tried again later, by whoever works then."""
        give_up_at = time.monotonic() + FAREWELL_SECONDS
        self.one_pass()
        while self._under_way and time.monotonic() < give_up_at:
            self._bell.wait(give_up_at - time.monotonic())
            self._bell.clear()
            self.one_pass()
        for telling in list(self._under_way):
            telling.give_up()
            self._write_down(telling, telling.error or "its worker ended before it was told")

    def _begin(self, delivery: Delivery) -> None:
        telling = OngoingDelivery(self._rules.get(delivery.alert), delivery, self._bell.set)
        self._under_way.append(telling)
        telling.start()

    def _settle(self) -> tuple[int, int]:
        """Write down how tellings ended, one by one: what could not be written is kept for the next time."""
        told = failed = 0
        now = time.monotonic()
        for telling in list(self._under_way):
            if telling.is_over(now):
                error = telling.error
                self._write_down(telling, error)
                told, failed = (told + 1, failed) if error is None else (told, failed + 1)
        return told, failed

    def _write_down(self, telling: OngoingDelivery, error: str | None) -> None:
        one = telling.delivery
        if error is None:
            self._store.write(lambda tx: alerts.delivered(tx, one), patience_seconds=PATIENCE_SECONDS)
        else:
            self._store.write(lambda tx: alerts.failed_delivery(tx, one, error), patience_seconds=PATIENCE_SECONDS)
            log.warning("alert %r could not be told by %s, attempt %d: %s", one.alert, one.by, one.attempt, error)
        self._under_way.remove(telling)
