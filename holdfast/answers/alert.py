"""Alerts: the rules that a store knows, and their notifications."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from holdfast.answers.answer import Answer
from holdfast.answers.text_tables import shortened, table, to_the_second
from holdfast.model.log_lines import printable


class AlertRuleStatus(Answer, frozen=True):
    """A rule that a worker has watched events for."""

    _brief: ClassVar = ("name", "told_at", "queued")

    name: str
    #: When it notifies and how, in words without addresses. None if only workers of an earlier version have had it.
    says: str | None
    #: Whether a program still has it, as far as workers that have started since have told.
    active: bool
    #: A pipeline of that program.
    pipeline: str | None
    #: The time of the event up to which it has looked; None if that one was pruned.
    looked_at: datetime | None
    #: When it last notified somebody.
    told_at: datetime | None
    #: How many of its notifications wait.
    queued: int


class AlertDelivery(Answer, frozen=True):
    """A notification, sent in one way."""

    _brief: ClassVar = ("alert", "by", "state", "attempts")

    alert: str
    #: `webhook`, `command` or `log`.
    by: str
    #: `queued`, `being delivered`, `to be retried`, `delivered` or `given up`.
    state: str
    #: When it was delivered or given up.
    at: datetime | None
    #: When the next attempt is due.
    due_at: datetime | None
    attempts: int
    #: How many events it tells of.
    count: int | None
    text: str | None
    error: str | None


class AlertStatus(Answer, frozen=True):
    """The alert rules of a store; and their notifications, those that wait first, then the newest."""

    _brief: ClassVar = ("rules", "deliveries")

    rules: tuple[AlertRuleStatus, ...]
    deliveries: tuple[AlertDelivery, ...]

    def lines(self, width: int | None = None) -> list[str]:
        if not self.rules:
            return ["No worker has watched for alerts yet."]
        rows = [
            [
                shortened(one.name, 60),
                one.queued,
                to_the_second(one.told_at),
                to_the_second(one.looked_at),
                shortened(one.says or "", 200) if one.active else "no program has it any more",
            ]
            for one in self.rules
        ]
        lines = table(["alert", "queued", "last notification", "looked until", "says"], rows, width=width)
        sent = [
            [
                shortened(one.alert, 40),
                one.by,
                one.state,
                to_the_second(one.at or one.due_at),
                one.attempts,
                shortened(printable(one.error or one.text or ""), 100),
            ]
            for one in self.deliveries
        ]
        head = ["alert", "by", "is", "at", "attempts", "says"]
        return [*lines, "", *table(head, sent, width=width)] if sent else lines
