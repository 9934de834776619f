"""Alerts: the rules that the store knows, and what became of their notifications."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.answers.alert import AlertStatus
from holdfast.app import Holdfast
from holdfast.web.filters import Query
from holdfast.web.page import Page


def ask(app: Holdfast, query: Query) -> AlertStatus:
    return app.alert_status()


def rows(answer: AlertStatus) -> Iterable[Any]:
    return answer.deliveries


page = Page(name="alerts", title="Alerts", place=80, ask=ask, rows=rows)
