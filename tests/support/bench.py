"""A worker in the test's own process.

run = Bench(url)                                  # or the fixture of that name
ran = run(pipeline, ["page-1"])                   # works until nothing is left to do
with run.serving(pipeline) as (worker, ran): ...  # works beside the test
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from holdfast import Backoff, Holdfast, Pipeline
from holdfast.answers import Events, StageOfItem
from holdfast.worker import Settings, Worker

STUCK_SECONDS = 20.0
QUICK = Backoff(first_seconds=0.01, most_seconds=0.02)

Items = Iterable[str | Mapping[str, Any] | tuple[str, Any]]


class Ran:
    """A store whose pipeline has been run, and what became of the items."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app

    def stage(self, key: str, stage: str) -> StageOfItem:
        """State, attempts, error and result of one stage of an item."""
        return self.app.show(key).stage(stage)

    def state(self, key: str, stage: str) -> str | None:
        return self.stage(key, stage).state

    def result(self, key: str, stage: str) -> Any:
        return self.stage(key, stage).result

    def states(self, stage: str) -> Mapping[str, int]:
        """How many items are in which state."""
        return next(
            one.states for pipeline in self.app.status().pipelines for one in pipeline.stages if one.name == stage
        )

    def events(self, event: str, key: str | None = None) -> Events:
        return self.app.events(event=event, key=key, most=10_000)


class Bench:
    """Runs pipelines on the test's store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._stack = ExitStack()

    def app(self, pipeline: Pipeline[Any], items: Items = ()) -> Holdfast:
        app = self._stack.enter_context(Holdfast(self.url, [pipeline.spec], resources=pipeline.resources))
        if items:
            app.add(pipeline.name, items)
        return app

    def __call__(
        self, pipeline: Pipeline[Any], items: Items = (), *, timeout: float = STUCK_SECONDS, **settings: Any
    ) -> Ran:
        """Add the items and work until nothing is left to do."""
        app = self.app(pipeline, items)
        give_up_at = time.monotonic() + timeout

        def on_tick() -> None:
            if time.monotonic() > give_up_at:
                raise AssertionError(f"not done within {timeout:.0f} s: {app.status()}")

        app.run(Settings(**{"grace_seconds": 0.2, "poll_seconds": 0.1, **settings}), on_tick=on_tick, tick_seconds=0.1)
        assert app.check() == []
        return Ran(app)

    @contextmanager
    def serving(self, pipeline: Pipeline[Any], items: Items = (), **settings: Any) -> Iterator[tuple[Worker, Ran]]:
        """A worker in a thread beside the test, stopped at the end."""
        app = self.app(pipeline, items)
        worker = app.worker(Settings(**{"grace_seconds": 0.2, "poll_seconds": 0.1, **settings}))
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            yield worker, Ran(self.app(pipeline))
        finally:
            worker.stop()
            thread.join(STUCK_SECONDS)
            assert not thread.is_alive(), "the worker did not stop"

    def close(self) -> None:
        self._stack.close()
