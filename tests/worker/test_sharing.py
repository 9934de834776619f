"""Which work a worker takes and in which order, and how it lives beside others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Item, Pipeline, Skip, UsageError
from tests.support.bench import Bench
from tests.support.kinds import keys, stage
from tests.support.processes import wait_for

# Order and choice of stages --------------------------------------------------------------------------------------------


def test_where_two_stages_meet_the_next_begins_once_both_have_passed(run: Bench):
    """A diamond: b and c follow a, d follows both; one of them is skipped for some items."""
    runs: list[tuple[str, str]] = []
    pipeline = Pipeline("p")

    def made(name: str) -> Callable[[Item, Context], Any]:
        def handler(item: Item, ctx: Context) -> Any:
            runs.append((name, item.key))
            if name == "b" and item.key.endswith("3"):
                return Skip("three")
            if name == "d":
                return [ctx.result("a"), ctx.result("b"), ctx.result("c")]
            return f"{name} of {item.key}"

        return handler

    for name, after in (("a", ()), ("b", "a"), ("c", "a"), ("d", ("b", "c"))):
        stage(pipeline, "loop" if name == "b" else "thread", made(name), name=name, after=after)
    ran = run(pipeline, keys(40))
    assert len(runs) == len(set(runs)) == 160
    for key in keys(40):
        b = None if key.endswith("3") else f"b of {key}"
        assert ran.result(key, "d") == [f"a of {key}", b, f"c of {key}"]


def test_a_worker_runs_only_the_stages_it_offers(run: Bench):
    pipeline = Pipeline("p")
    for name, after in (("first", ()), ("second", "first"), ("third", "second")):
        stage(pipeline, "thread", lambda item, ctx: None, name=name, after=after)
    with run.serving(pipeline, keys(5), stages=("first", "p/third")) as (_, ran):
        wait_for(lambda: ran.states("first") == {"done": 5})
        assert ran.states("second") == {"pending": 5}
        assert ran.app.why("page-0").reason == "no_worker"
        with run.serving(pipeline, stages=("second",)):
            wait_for(lambda: ran.states("third") == {"done": 5})


def test_a_stage_that_nobody_knows_cannot_be_offered(run: Bench):
    pipeline = Pipeline("p")
    stage(pipeline, "thread", lambda item, ctx: None, name="first")
    with pytest.raises(UsageError, match="frist"), run.serving(pipeline, stages=("frist",)):
        pass


@pytest.mark.parametrize("kind", ["thread", "loop", "process"])
def test_items_finish_early_instead_of_all_advancing_in_step(run: Bench, kind: str, tmp_path: Path):
    """The last stages come first: the first item is through before the last one has begun."""
    order = tmp_path / "order"
    pipeline = Pipeline("p")

    def work(item: Item, ctx: Context) -> None:
        with order.open("a") as file:
            file.write(f"{item.key}\n")
        time.sleep(0.005)

    for name, after in (("first", ()), ("second", "first"), ("third", "second")):
        stage(pipeline, kind, work, name=name, after=after)
    run(pipeline, keys(80), concurrency=2)
    seen = order.read_text().splitlines()
    third_visit = [place for place, key in enumerate(seen) if key == "page-0"][2]
    assert third_visit < seen.index("page-79")


# Workers beside each other ---------------------------------------------------------------------------------------------


def test_a_run_is_over_only_when_the_others_have_finished_too(run: Bench):
    """What another worker holds may yet come back, or lead to more."""
    gate, begun = threading.Event(), threading.Event()
    pipeline = Pipeline("p")

    @pipeline.stage()
    def first(item: Item, ctx: Context) -> None:
        begun.set()
        gate.wait(20)

    @pipeline.stage(after="first")
    def second(item: Item, ctx: Context) -> None:
        pass

    app = run.app(pipeline)
    with run.serving(pipeline, ["page"], stages=("first",)) as (_, ran):
        wait_for(begun.is_set)
        over = threading.Event()
        thread = threading.Thread(target=lambda: (app.run(), over.set()))
        thread.start()
        try:
            wait_for(lambda: len(ran.app.workers()) == 2)
            assert not over.wait(0.5)
        finally:
            gate.set()
        assert over.wait(10)
        thread.join()
    assert ran.state("page", "second") == "done"


def test_two_workers_share_slow_work_evenly(run: Bench):
    """A worker takes what it can start, not what it can hold: the other one would stand idle."""
    started: list[int] = []
    gate = threading.Event()
    pipeline = Pipeline("p")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None:
        started.append(1)
        gate.wait(60)

    with run.serving(pipeline, concurrency=4), run.serving(pipeline, concurrency=4) as (_, ran):
        wait_for(lambda: len(ran.app.workers()) == 2)
        ran.app.add("p", keys(8))
        try:
            wait_for(lambda: len(started) == 8)
        finally:
            gate.set()
        wait_for(lambda: ran.states("work") == {"done": 8})


def test_a_worker_that_knows_its_work_to_be_slow_leaves_the_rest_to_others(run: Bench):
    """Also after it has learnt how long the handler takes: a tenth of a second's work ahead, and no more."""
    gate = threading.Event()
    pipeline = Pipeline("p")

    @pipeline.stage()
    async def work(item: Item, ctx: Context) -> None:
        if item.data.get("slow"):
            while not gate.is_set():
                await asyncio.sleep(0.01)
        else:
            await asyncio.sleep(0.2)

    with run.serving(pipeline, keys(8), concurrency=4) as (_, ran):
        wait_for(lambda: ran.states("work") == {"done": 8})
        ran.app.add("p", [{"key": f"slow-{number}", "slow": True} for number in range(20)])
        wait_for(lambda: ran.states("work").get("in_progress", 0) >= 4)
        try:
            assert ran.states("work")["in_progress"] <= 4 + 2
        finally:
            gate.set()
        wait_for(lambda: ran.states("work") == {"done": 28})


# Heartbeats ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("D1")
def test_one_row_per_worker_beats_for_everything_it_holds(run: Bench):
    """Also while every handler blocks its thread; and nothing but that row is written."""
    gate = threading.Event()
    pipeline = Pipeline("p")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None:
        gate.wait(20)

    with run.serving(pipeline, keys(50), concurrency=50, lease_seconds=0.3) as (_, ran):
        try:
            wait_for(lambda: ran.states("work") == {"in_progress": 50})
            [worker] = ran.app.workers()
            first = ran.app.show("page-0").stages
            wait_for(lambda: ran.app.workers()[0].heartbeat_at > worker.heartbeat_at + timedelta(seconds=0.6))
            assert len(ran.app.workers()) == 1
            assert ran.app.show("page-0").stages == first
            assert ran.app.workers()[0].alive
        finally:
            gate.set()
        wait_for(lambda: ran.states("work") == {"done": 50})
    assert ran.app.workers() == ()
    assert ran.events("worker_died") == ()
