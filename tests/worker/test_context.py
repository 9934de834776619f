"""What a handler finds in its context."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Item, Permanent, Pipeline, RetryLater, Skip
from holdfast.answers import ProgressNote, WorkerStatus
from tests.support.bench import Bench
from tests.support.kinds import KINDS, Handler, every_kind, keys, stage
from tests.support.processes import wait_for

LARGE = "ä" * 20_000


def test_a_handler_finds_the_results_of_all_stages_before_it(run: Bench):
    """Of the parent, of the grandparent, of a skipped stage, and one too large to travel with the claim."""

    def last(kind: str) -> Handler:
        def handler(item: Item, ctx: Context) -> Any:
            large = ctx.result(f"large.{kind}")
            ctx.result(f"small.{kind}").append("mine, and nobody else's")
            same = large == {"text": LARGE, "key": item.key}
            return [same, ctx.result(f"skipped.{kind}"), ctx.result(f"small.{kind}")]

        return handler

    pipeline = Pipeline("p")
    every_kind(pipeline, "large", lambda kind: lambda item, ctx: {"text": LARGE, "key": item.key})
    every_kind(pipeline, "skipped", lambda kind: lambda item, ctx: Skip(), after="large")
    every_kind(pipeline, "small", lambda kind: lambda item, ctx: [1, 2.5, None, {"ü": True}], after="skipped")
    every_kind(pipeline, "last", last, after="small")
    ran = run(pipeline, keys(3))
    for kind in KINDS:
        assert [ran.result(key, f"last.{kind}") for key in keys(3)] == [[True, None, [1, 2.5, None, {"ü": True}]]] * 3


def test_a_handler_that_asks_for_a_result_there_cannot_be_hears_why(run: Bench):
    asked = {"later": "stage 'later' has no result for this item yet", "unknown": "no stage 'unknown'"}
    pipeline = Pipeline("p")
    every_kind(pipeline, "first", lambda kind: lambda item, ctx: ctx.result(item.key), max_attempts=1)
    stage(pipeline, "thread", lambda item, ctx: None, name="later", after=[f"first.{kind}" for kind in KINDS])
    ran = run(pipeline, asked)
    for kind in KINDS:
        for key, said in asked.items():
            assert ran.state(key, f"first.{kind}") == "exhausted"
            assert said in ran.stage(key, f"first.{kind}").error


@pytest.mark.fault(57)
def test_the_next_stage_sees_the_same_value_at_once_and_after_a_resume(run: Bench):
    """Straight on in the same worker, or in another worker that read it from the database: the same value and types."""
    value = {
        "int": 2**63,
        "big": 10**400,
        "negative": -(2**64),
        "float": 1.0,
        "small": 5e-324,
        "list": [[], {}, [None]],
        "text": "a\u0301\u2028\U0001f600",
        "": "an empty key",
        "numbers": {"1": 1},
        "bool": [True, False, 1, 0],
    }
    pipeline = Pipeline("p")
    every_kind(pipeline, "first", lambda kind: lambda item, ctx: value)
    every_kind(pipeline, "second", lambda kind: lambda item, ctx: repr(ctx.result(f"first.{kind}")), after="first")
    ran = run(pipeline, ["at once"])
    first = tuple(f"first.{kind}" for kind in KINDS)
    with run.serving(pipeline, ["resumed"], stages=first):
        wait_for(lambda: {ran.state("resumed", name) for name in first} == {"done"})
    assert {ran.state("resumed", f"second.{kind}") for kind in KINDS} == {"pending"}
    run(pipeline)
    for kind in KINDS:
        assert ran.result("at once", f"second.{kind}") == ran.result("resumed", f"second.{kind}") == repr(value)


@pytest.mark.req("D1")
@pytest.mark.parametrize("kind", KINDS)
def test_progress_travels_with_the_heartbeat_and_shows_in_why(run: Bench, kind: str, tmp_path: Path):
    gate = tmp_path / "gate"
    pipeline = Pipeline("p")

    def work(item: Item, ctx: Context) -> None:
        ctx.progress(3, 12, "pages")
        while not gate.exists():
            time.sleep(0.01)

    stage(pipeline, kind, work, name="work")
    with run.serving(pipeline, ["page"], lease_seconds=0.3) as (_, ran):
        note = wait_for(lambda: ran.app.why("page").progress)
        assert note == ProgressNote("page", "work", 3, 12, "pages")
        assert "is working on it, attempt 1 of 5" in ran.app.why("page").text
        gate.touch()
        wait_for(lambda: ran.state("page", "work") == "done")
        wait_for(lambda: ran.app.workers()[0].progress == ())


@pytest.mark.req("P17")
def test_the_last_error_of_a_worker_travels_with_its_heartbeat(run: Bench):
    """A snooze and a skip are none, and what succeeds later does not hide it."""
    pipeline = Pipeline("p")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> Any:
        if item.key == "bad":
            raise Permanent("no pages")
        if item.key == "blank":
            raise Skip("nothing in it")
        return RetryLater(after="1h", reason="closed") if item.key == "late" else 1

    with run.serving(pipeline, ["late", "blank"], lease_seconds=2.0) as (_, ran):

        def worker_that(has: Callable[[WorkerStatus], object]) -> WorkerStatus:
            return wait_for(lambda: next((one for one in ran.app.workers() if has(one)), None))

        assert worker_that(lambda one: one.done.keys() >= {"retry_later", "skipped"}).last_error is None
        ran.app.add("p", ["bad"])
        worker_that(lambda one: one.last_error)
        ran.app.add("p", ["good"])
        worker = worker_that(lambda one: one.done.get("done"))
        assert worker.last_error is not None
        assert (worker.last_error.stage, worker.last_error.item) == ("p/work", "bad")
        assert worker.last_error.error == "Permanent: no pages"


def test_a_handler_can_see_that_the_worker_is_stopping(run: Bench):
    pipeline = Pipeline("p")
    started = threading.Event()

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> Any:
        started.set()
        while not ctx.stopping:
            time.sleep(0.005)
        return RetryLater(after=0)

    with run.serving(pipeline, ["page"], grace_seconds=10) as (_, ran):
        wait_for(started.is_set)
    assert ran.state("page", "work") == "retry_later"
    assert ran.stage("page", "work").attempts == 0


def test_the_log_of_a_context_names_item_stage_and_attempt(run: Bench, caplog: pytest.LogCaptureFixture):
    pipeline = Pipeline("p")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None:
        ctx.log.warning("look at %s", "this")

    run(pipeline, ["page"])
    assert "[page work #1] look at this" in caplog.messages
