"""A worker says that it has begun before any handler runs: a handler may end its process, or close its files."""

from __future__ import annotations

import logging
import threading

import pytest

from holdfast import Pipeline
from holdfast.worker import Settings
from tests.support.bench import STUCK_SECONDS, Bench


class _UntilSet(logging.Handler):
    """Holds up the thread that starts the worker, once all its parts have been started."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self._event = event

    def emit(self, record: logging.LogRecord) -> None:
        if "offers" in record.getMessage():
            assert self._event.wait(STUCK_SECONDS)


@pytest.mark.req("V7")
def test_the_first_tick_comes_before_the_first_handler(run: Bench, request: pytest.FixtureRequest) -> None:
    """A supervisor that has not heard of a worker takes its end for a mistake that no restart can mend."""
    order: list[str] = []
    has_run = threading.Event()
    pipeline = Pipeline("p")

    @pipeline.stage()
    def work(item, ctx):
        order.append("handler")
        has_run.set()

    logger, late = logging.getLogger("holdfast.worker"), _UntilSet(has_run)
    logger.addHandler(late)
    before, logger.level = logger.level, logging.INFO
    request.addfinalizer(lambda: (logger.removeHandler(late), logger.setLevel(before)))
    run.app(pipeline, ["a"]).run(Settings(poll_seconds=0.1), on_tick=lambda: order.append("tick"))
    assert order[:2] == ["tick", "handler"]


@pytest.mark.req("V7")
def test_a_worker_whose_first_tick_fails_runs_no_handler_and_leaves(run: Bench) -> None:
    pipeline = Pipeline("p")
    ran: list[str] = []

    @pipeline.stage()
    def work(item, ctx):
        ran.append(item.key)

    def fail() -> None:
        raise OSError("nobody listens")

    app = run.app(pipeline, ["a"])
    with pytest.raises(OSError, match="nobody listens"):
        app.run(Settings(poll_seconds=0.1, grace_seconds=0.1), on_tick=fail)
    assert (ran, app.workers()) == ([], ())
