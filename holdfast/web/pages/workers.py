"""Workers: those that are alive, those that are silent, and those that died last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.answers.event import EventPage
from holdfast.answers.worker import Workers
from holdfast.app import Holdfast
from holdfast.web.filters import Query
from holdfast.web.page import Page

MOST_DEAD = 20


@dataclass(frozen=True)
class WorkersPage:
    workers: Workers
    #: The events of those that died.
    dead: EventPage


def ask(app: Holdfast, query: Query) -> WorkersPage:
    return WorkersPage(app.workers(), app.newest_events(event="worker_died", most=MOST_DEAD))


def rows(answer: WorkersPage) -> Iterable[Any]:
    return answer.workers


page = Page(name="workers", title="Workers", place=65, ask=ask, rows=rows)
