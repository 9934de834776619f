"""Alerts: the rules that the store knows, and what became of their notifications."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.answers.alert import AlertDelivery, AlertStatus
from holdfast.app import Holdfast
from holdfast.web.filters import Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.page import Page

#: What rules have and notifications do not.
OF_RULES = ("says", "active", "pipeline", "queued", "told_at", "looked_at")


def ask(app: Holdfast, query: Query) -> AlertStatus:
    return app.alert_status()


def rows(answer: AlertStatus) -> Iterable[Mapping[str, Any]]:
    """The rules, then the notifications."""
    for rule in answer.rules:
        yield {"kind": "rule", "alert": rule.name, **{name: getattr(rule, name) for name in OF_RULES}}
    for one in answer.deliveries:
        yield {"kind": "notification", **one.json()}


page = Page(
    name="alerts",
    title="Alerts",
    place=80,
    ask=ask,
    rows=rows,
    columns=("kind", *columns_of(AlertDelivery), *OF_RULES),
)
