"""holdfast's side: items that pass stages which do nothing, so that all the time is holdfast's own."""

from __future__ import annotations

import resource
import threading
import time
from typing import Any

from holdfast import Holdfast, Pipeline
from holdfast.worker import Settings

Facts = dict[str, Any]


def pipeline(url: str, stages: int, kind: str) -> Pipeline:
    """Stages one after another, named s1, s2, …"""
    made = Pipeline("bench", store=url)
    for number in range(1, stages + 1):
        after = [f"s{number - 1}"] if number > 1 else []
        made.stage(name=f"s{number}", after=after)(_idle_async if kind == "async" else _idle)
    return made


def fill(url: str, stages: int, items: int) -> None:
    """Make a store with so many items."""
    pipeline(url, stages, "sync").add({"key": f"item-{number:08d}", "page": number} for number in range(items))


def drain(url: str, stages: int, kind: str, items: int) -> Facts:
    """Take every item through; the time runs from the worker's start until it knows that nothing is left."""
    with Holdfast(url, [pipeline(url, stages, kind).spec]) as app:
        worker = app.worker(Settings())
        ends: list[tuple[float, float]] = []

        def note_the_end() -> None:
            worker.committer.drained.wait()
            ends.append((time.perf_counter(), _cpu()))

        watcher = threading.Thread(target=note_the_end)
        cpu, began = _cpu(), time.perf_counter()
        # The first tick comes when the parts of the worker are made; there is no second one.
        worker.run(until_drained=True, on_tick=watcher.start, tick_seconds=1e6)
        if watcher.ident is None:
            note_the_end()
        else:
            watcher.join()
        states = [stage["states"] for stage in app.status()[0]["stages"]]
        if states != [{"done": items}] * stages:
            raise SystemExit(f"not every item is done: {states}")
    [(ended, spent)] = ends
    return {"seconds": ended - began, "cpu_seconds": spent - cpu}


def _idle(item: Any, ctx: Any) -> None:
    return None


async def _idle_async(item: Any, ctx: Any) -> None:
    return None


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
