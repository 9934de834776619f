"""A bench for pipelines with resources and tuning, and for several pipelines at once.

pipeline = Pipeline("p", resources={"api": {"rate": "10/s"}})
with run.serving(pipeline, keys(5)) as (worker, ran): ...
with run.crowd(pipeline, 3) as ran: ...               # three workers, each with its own connections
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from holdfast import Holdfast, Pipeline
from tests.support.bench import Bench, Items, Ran


class LimitedBench(Bench):
    """Runs pipelines with what they say of resources; `others` are offered by every worker, too."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.others: list[Pipeline] = []

    def app(self, pipeline: Pipeline, items: Items = ()) -> Holdfast:
        pipelines = [pipeline, *self.others]
        resources = {name: given for one in pipelines for name, given in one.resources.items()}
        tunings = {one.name: one.tuning for one in pipelines}
        app = self._stack.enter_context(
            Holdfast(self.url, [one.spec for one in pipelines], resources=resources, tunings=tunings)
        )
        if items:
            app.add(pipeline.name, items)
        return app

    @contextmanager
    def crowd(self, pipeline: Pipeline, workers: int, items: Items = (), **settings: Any) -> Iterator[Ran]:
        """So many workers beside the test."""
        app = self.app(pipeline, items)
        with ExitStack() as stack:
            for number in range(workers):
                stack.enter_context(self.serving(pipeline, **{"name": f"w{number}", **settings}))
            yield Ran(app)


class Starts:
    """When handlers started and ended, and how many ran at once."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.keys: list[str] = []
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.moments)

    @contextmanager
    def one(self, key: str) -> Iterator[int]:
        """Around what a handler does; tells which start this is, counted from 1."""
        with self._lock:
            self.moments.append(time.monotonic())
            self.keys.append(key)
            number = len(self.moments)
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            yield number
        finally:
            with self._lock:
                self.running -= 1

    def forget_most(self) -> None:
        with self._lock:
            self.most = self.running
