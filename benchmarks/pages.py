"""How long every page of the dashboard takes, and how large it is: asked of the ASGI application itself, over a real store.

An answer is kept for a second and shared; here it is forgotten before each request, so that each asks the store.
"""

from __future__ import annotations

import asyncio
import json
import time
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import quote

from benchmarks.mixture import ADDRESS, NAME
from benchmarks.processes import family_cpu, postgres_server
from holdfast import Holdfast
from holdfast.model.states import State
from holdfast.web import Access, dashboard
from holdfast.web.dashboard import Dashboard

#: A page is asked for so often, or until it has taken so much CPU; the first answer, which opens files, does not count.
MOST_TIMES, LEAST_TIMES, ENOUGH_SECONDS = 20, 4, 1.0
#: What makes the picture of the matrix, in the background.
COUNTED = "matrix, counted"
#: By name: the address of a page. What is in braces is said by the store.
PAGES = {
    "overview": "overview",
    "overview, JSON": "overview.json",
    "matrix, picture": "matrix",
    "matrix, JSON": "matrix.json",
    "items": "items",
    "items, JSON": "items.json",
    "items, CSV": "items.csv",
    "items, the middle": "items?after={middle}",
    "items, the last page": "items?after={last}",
    "items of a pipeline": f"items?pipeline={NAME}",
    **{f"items, {state}": f"items?state={state}" for state in State},
    **{f"items, {state}, the last page": f"items?state={state}&after={{last}}" for state in ("done", "failed")},
    "items, at a stage": "items?stage=read",
    "items, failed at a stage": "items?stage=read&state=failed",
    "items, of an error group": "items?group={group}",
    "items, of an error group, the last page": "items?group={group}&after={last}",
    "items, of a key": "items?key={key}",
    "items, of a key prefix": "items?key={prefix}*",
    "items, done, of a key prefix": "items?key={prefix}*&state=done",
    "items, with an error text": "items?error=torn",
    "items, since an hour ago": "items?since=1h",
    "items, since an hour ago, JSON": "items.json?since=1h",
    "items, since nine days ago": "items?since=9d",
    "items, until nine days ago": "items?until=9d",
    "items, done since an hour ago": "items?state=done&since=1h",
    "items, failed since an hour ago": "items?state=failed&since=1h",
    "items, by attempts": "items?attempts=5",
    "items, by cost": "items?cost=100",
    "items, of a stretch of the matrix": f"items?pipeline={NAME}&stage=read&after={{middle}}",
    "item": "item?key={key}",
    "item, JSON": "item.json?key={key}",
    "value": "value?key={key}&part=data",
    "errors": "errors",
    "errors, JSON": "errors.json",
    "costs": "costs",
    "costs, by model and day": "costs?by=model&by=day",
    "throughput": "throughput",
    "throughput, two weeks": "throughput?last=14d",
    "limits": "limits",
    "workers": "workers",
    "sources": "sources",
    "events": "events",
    "events of a kind": "events?event=attempt_failed",
    "events of a stage": "events?stage=print",
    "event": "events/{event}",
    "alerts": "alerts",
    "audit": "audit",
    "actions": "actions",
    "action": "actions/1",
    "preview of a retry": "act/retry?state=failed",
    "preview of a retry of a key prefix": "act/retry?key={root}*",
    "preview of a cancel": "act/cancel",
    "preview of a deletion": "act/delete?state=failed",
    "preview of a retry of an error group": "act/retry?group={group}",
}


class Answer(NamedTuple):
    body: bytes
    seconds: float
    cpu_seconds: float


def measure(url: str, items: int) -> dict[str, float]:
    """Milliseconds, CPU and bytes of every page, under the page's name and a stroke; and of the count for the matrix."""
    app = dashboard(url, access=lambda request: Access("ada"), question_seconds=600.0)
    with Holdfast(url, create=False) as opened:
        places = _places(opened, items)
    try:
        return asyncio.run(_measure(app, places, postgres_server(url)))
    finally:
        app.close()


def _places(app: Holdfast, items: int) -> dict[str, str]:
    [one] = app.items(after=items // 2 // 20 * 20, most=1)
    [failed] = app.items(state="failed", most=1)
    group = app.show(failed.key).stage(str(failed.stage)).error_group
    [event] = app.events(most=1)
    found = {
        "key": one.key,
        "prefix": one.key[:-2],
        "root": ADDRESS,
        "middle": str(one.id),
        "last": str(items - 60),
        "group": str(group),
        "event": str(event.id),
    }
    return {name: quote(text) for name, text in found.items()}


async def _measure(app: Dashboard, places: dict[str, str], server: int | None) -> dict[str, float]:
    found: dict[str, float] = {}
    # The picture of the matrix is made beside whatever is asked: last, so that it disturbs nothing.
    for name, address in sorted(PAGES.items(), key=lambda page: page[1].startswith("matrix")):
        if address.startswith("matrix") and f"{COUNTED}/ms" not in found:
            found |= await _picture(app, server)
        found |= {f"{name}/{key}": value for key, value in (await _page(app, address.format(**places), server)).items()}
    return found


async def _page(app: Dashboard, path: str, server: int | None) -> dict[str, float]:
    before = 0.0 if server is None else family_cpu(server)
    answers = [await _asked(app, path)]
    while len(answers) <= LEAST_TIMES or (
        len(answers) <= MOST_TIMES and sum(one.cpu_seconds for one in answers) < ENOUGH_SECONDS
    ):
        answers.append(await _asked(app, path))
    of_server = 0.0 if server is None else (family_cpu(server) - before) / len(answers)
    taken = sorted(1000 * one.seconds for one in answers[1:])
    return {
        "ms": median(taken),
        "p95_ms": taken[-(-len(taken) * 95 // 100) - 1],
        "cpu_ms": 1000 * (median(one.cpu_seconds for one in answers[1:]) + of_server),
        "kb": max(len(one.body) for one in answers) / 1000,
    }


async def _picture(app: Dashboard, server: int | None) -> dict[str, float]:
    """Have everything counted for the matrix, in the background as it is; what that took of the machine."""
    before = 0.0 if server is None else family_cpu(server)
    began, spent = time.perf_counter(), time.process_time()
    # 503 until it is counted.
    while "matrix" not in json.loads((await _asked(app, "matrix.json", 503)).body):
        await asyncio.sleep(0.05)
    of_server = 0.0 if server is None else family_cpu(server) - before
    return {
        f"{COUNTED}/ms": 1000 * (time.perf_counter() - began),
        f"{COUNTED}/cpu_ms": 1000 * (time.process_time() - spent + of_server),
    }


async def _asked(app: Dashboard, address: str, *also: int) -> Answer:
    """The answer to a request, as a server would pass it on: 200, or one of these."""
    path, _, query = address.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": f"/{path}",
        "raw_path": f"/{path}".encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    app.questions.forget()
    began, spent = time.perf_counter(), time.process_time()
    await app(scope, receive, send)
    taken = Answer(
        b"".join(one.get("body", b"") for one in sent), time.perf_counter() - began, time.process_time() - spent
    )
    if sent[0]["status"] not in (200, *also):
        raise SystemExit(f"{address}: {sent[0]['status']}, {taken.body[-300:].decode()}")
    return taken
