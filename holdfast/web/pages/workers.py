"""Workers: those that are alive, those that are silent, and those that died last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.answers.event import EventPage
from holdfast.answers.worker import Workers, WorkerStatus
from holdfast.app import Holdfast
from holdfast.web.filters import Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.long_lists import AFTER, Line, in_parts
from holdfast.web.page import Page

MOST_DEAD = 20


@dataclass(frozen=True)
class WorkersPage:
    workers: Workers
    #: The events of those that died.
    dead: EventPage


def ask(app: Holdfast, query: Query) -> WorkersPage:
    return WorkersPage(app.workers(), app.newest_events(event="worker_died", most=MOST_DEAD))


def view(answer: WorkersPage, query: Query) -> Mapping[str, Any]:
    return in_parts(_lines(answer), query)


def _lines(answer: WorkersPage) -> Iterator[Line]:
    """Those that live, then those that died."""
    yield from (Line("worker", one, f"worker-{one.id}") for one in answer.workers)
    if not answer.workers:
        yield Line("no worker", None, "no-worker")
    yield from (Line("dead", one, f"dead-{one.id}") for one in answer.dead.events)


def rows(answer: WorkersPage) -> Iterable[Mapping[str, Any]]:
    """Those that live, then those that died."""
    for one in answer.workers:
        yield one.json()
    for died in answer.dead.events:
        told = {name: died.data.get(name) for name in ("name", "why")}
        yield {"id": died.data.get("worker"), "alive": False, "died_at": died.at, **told}


page = Page(
    name="workers",
    title="Workers",
    place=65,
    filters=(AFTER,),
    ask=ask,
    view=view,
    rows=rows,
    columns=(*columns_of(WorkerStatus), "died_at", "why"),
)
