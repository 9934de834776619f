"""Alerts: checks events against every rule and sends notifications.

A companion of a worker with its own thread and connection, so that neither a slow check nor a hanging webhook delays
work. A pass records how deliveries ended, checks new events, and starts the deliveries that are due. Each delivery has
its own thread, so that one that hangs delays no other, and is abandoned after its time limit. The last pass, after the
work has ended, delivers the latest alerts and records the outcomes.
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

#: The most deliveries at a time.
MOST_AT_ONCE = 8
#: How long a pass waits for a database in trouble.
PATIENCE_SECONDS = 1.0
#: How long the last pass waits for deliveries in progress.
FAREWELL_SECONDS = 2.0


class Passed(NamedTuple):
    """The counts of one pass."""

    raised: int
    told: int
    failed: int


class Alerts:
    """Checks events against rules and delivers alerts. `worker` returns the current id of the worker that takes the
    deliveries.
    """

    def __init__(self, store: Store, rules: Sequence[AlertRule], worker: Callable[[], int]) -> None:
        self._store = store
        self._worker = worker
        self._under_way: list[OngoingDelivery] = []
        self._bell = threading.Event()
        self._rules = {rule.name: rule for rule in rules}
        for secret in (secret for rule in rules for secret in rule.secrets):
            remember_secret(secret)

    def one_pass(self) -> Passed:
        """Record how deliveries ended, check new events, and start the deliveries that are due."""
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
        """Deliver the alerts raised so far and record the outcomes. A delivery that does not end in time is abandoned
        and recorded as failed; another worker retries it later.
        """
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
        """Record how deliveries ended, one at a time. One that cannot be recorded now is kept for the next pass."""
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
