"""Alerts: checks events against every rule and sends notifications.

A service with its own thread and connection, so that neither a slow check nor a hanging webhook delays work. A pass
records how deliveries ended, checks new events, and starts the deliveries that are due. Each delivery has its own
thread, so that one that hangs delays no other, and is abandoned after its time limit. The last pass, after the work has
ended, delivers the latest alerts and records the outcomes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.engine import alert_rules
from holdfast.model.alert import AlertRule
from holdfast.model.log_lines import logger
from holdfast.model.redact import remember_secret
from holdfast.runtime.services import MakeService, Service
from holdfast.store import Store, Transaction
from holdfast.worker.background.delivery import OngoingDelivery, longest_request_seconds

log = logger("holdfast.alert")

T = TypeVar("T")

#: The most deliveries at a time.
MOST_AT_ONCE = 8
#: How long a pass waits for a database in trouble.
PATIENCE_SECONDS = 1.0
#: How long the last pass checks for new alerts and waits for commands. For webhooks it waits as long as they may take.
LAST_PASS_SECONDS = 2.0
INTERVAL_SECONDS = 1.0


class Alerts(Service):
    """Checks events against rules and delivers alerts. `worker` returns the current id of the worker that takes the
    deliveries.
    """

    name = "alerts"
    retry_seconds = 10.0

    def __init__(
        self,
        store: Store,
        rules: Sequence[AlertRule],
        worker: Callable[[], int],
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._store = store
        self._worker = worker
        self._interval = interval_seconds
        self.last_pass_seconds = LAST_PASS_SECONDS + longest_request_seconds() + 2 * PATIENCE_SECONDS
        self._under_way: list[OngoingDelivery] = []
        self._one_ended = threading.Event()
        self._in_a_hurry = threading.Event()
        self._rules = {rule.name: rule for rule in rules}
        for secret in (secret for rule in rules for secret in rule.secrets):
            remember_secret(secret)

    def one_pass(self) -> bool:
        """Record how deliveries ended, check new events, and start the deliveries that are due."""
        self.due = time.monotonic() + self._interval
        self._record_ended()
        rules = list(self._rules.values())
        if not rules or not self._store.read(
            lambda tx: alert_rules.anything_to_do(tx, rules), patience_seconds=PATIENCE_SECONDS
        ):
            return False
        self._write(lambda tx: alert_rules.watch_events(tx, rules))
        room = MOST_AT_ONCE - len(self._under_way)
        if room > 0:
            worker = self._worker()
            for delivery in self._write(lambda tx: alert_rules.take_deliveries(tx, rules, worker, room)):
                ongoing = OngoingDelivery(self._rules.get(delivery.alert), delivery, self._one_ended.set)
                self._under_way.append(ongoing)
                ongoing.start()
        return False

    def last_pass(self) -> None:
        """Deliver the alerts raised so far and record the outcomes. A webhook is awaited as long as it may take: its address
        may have got the alert already. A command that does not end in time is killed. What is left is recorded as failed;
        another worker retries it later.
        """
        give_up_at = time.monotonic() + LAST_PASS_SECONDS
        self._last_look(is_early=True)
        while not self._in_a_hurry.is_set() and self._under_way:
            left = give_up_at - time.monotonic()
            if left <= 0 and not any(ongoing.is_request for ongoing in self._under_way):
                break
            self._one_ended.wait(left if left > 0 else INTERVAL_SECONDS)
            self._one_ended.clear()
            self._last_look(is_early=time.monotonic() < give_up_at)
        for ongoing in list(self._under_way):
            # It may have ended since.
            if ongoing.is_over(time.monotonic()):
                self._record(ongoing, ongoing.error)
            else:
                ongoing.abandon()
                self._record(ongoing, ongoing.error or "its worker ended before it was delivered")

    def _last_look(self, is_early: bool) -> None:
        """A pass; later, and in a hurry, one that starts nothing new."""
        if is_early and not self._in_a_hurry.is_set():
            self.one_pass()
        else:
            self._record_ended()

    def hurry(self) -> None:
        self._in_a_hurry.set()
        self._one_ended.set()

    def end(self) -> None:
        self._store.close()

    def _write(self, work: Callable[[Transaction], T]) -> T:
        return self._store.write(work, patience_seconds=PATIENCE_SECONDS)

    def _record_ended(self) -> None:
        """Record how deliveries ended, one at a time. One that cannot be recorded now is kept for the next pass."""
        now = time.monotonic()
        for ongoing in list(self._under_way):
            if ongoing.is_over(now):
                self._record(ongoing, ongoing.error)

    def _record(self, ongoing: OngoingDelivery, error: str | None) -> None:
        one = ongoing.delivery
        if error is None:
            self._write(lambda tx: alert_rules.delivered(tx, one))
        else:
            self._write(lambda tx: alert_rules.failed_delivery(tx, one, error))
            log.warning("alert %r could not be delivered by %s, attempt %d: %s", one.alert, one.by, one.attempt, error)
        self._under_way.remove(ongoing)


def alerting(rules: Sequence[AlertRule]) -> MakeService:
    """A service that checks events against these rules and notifies people."""
    return lambda context: Alerts(context.store, rules, context.worker)
