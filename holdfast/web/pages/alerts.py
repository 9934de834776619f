"""Alerts: the rules that the store knows, and what became of their notifications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.answers.alert import AlertDelivery, AlertStatus
from holdfast.app import Holdfast
from holdfast.web.filters import Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.long_lists import AFTER, Line, in_parts
from holdfast.web.page import Page

#: What rules have and notifications do not.
OF_RULES = ("says", "active", "pipeline", "queued", "told_at", "looked_at")


def ask(app: Holdfast, query: Query) -> AlertStatus:
    return app.alert_status()


def view(answer: AlertStatus, query: Query) -> Mapping[str, Any]:
    return in_parts(_lines(answer), query)


def _lines(answer: AlertStatus) -> Iterator[Line]:
    """The rules, then the notifications. Those that say the same of themselves are numbered."""
    yield from (Line("rule", one, f"rule-{one.name}") for one in answer.rules)
    if not answer.rules:
        yield Line("no rule", None, "no-rule")
    so_far: Counter[str] = Counter()
    for one in answer.deliveries:
        name = f"{one.alert}-{one.by}-{one.at or one.due_at}"
        so_far[name] += 1
        yield Line("notification", one, f"notification-{name}-{so_far[name]}")


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
    filters=(AFTER,),
    ask=ask,
    view=view,
    rows=rows,
    columns=("kind", *columns_of(AlertDelivery), *OF_RULES),
)
