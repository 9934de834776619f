"""What a handler may be and may answer, and what it finds in its context."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Backoff, BatchContext, Context, Item, Permanent, Pipeline, RetryLater, Skip, UsageError
from tests.support.bench import QUICK, Bench
from tests.support.processes import wait_for

KINDS: dict[str, dict[str, Any]] = {"thread": {}, "loop": {}, "process": {"isolate": "process"}, "async process": {"isolate": "process"}}


def stage(pipeline: Pipeline, kind: str, handler: Callable[[Item, Context], Any], **settings: Any) -> None:
    """Make a plain function a stage of the given kind."""

    async def on_the_loop(item: Item, ctx: Context) -> Any:
        await asyncio.sleep(0)
        return handler(item, ctx)

    pipeline.stage(**{"backoff": QUICK, **KINDS[kind], **settings})(
        on_the_loop if kind in ("loop", "async process") else handler
    )


def keys(count: int) -> list[str]:
    return [f"page-{number}" for number in range(count)]


# Kinds of handlers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_gets_item_and_context_and_its_answer_is_kept(run: Bench, kind: str):
    pipeline = Pipeline("p")
    stage(pipeline, kind, lambda item, ctx: {"saw": item.data, "key": item.key, "attempt": ctx.attempt}, name="work")
    ran = run(pipeline, [{"key": key, "n": len(key)} for key in keys(12)])
    for key in keys(12):
        assert ran.result(key, "work") == {"saw": {"n": len(key)}, "key": key, "attempt": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_raises_is_tried_again_until_its_attempts_are_spent(run: Bench, kind: str):
    """The error of the last attempt stands, with all attempts counted."""

    def work(item: Item, ctx: Context) -> str:
        if item.key == "page-0" or ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}")
        return "at last"

    pipeline = Pipeline("p")
    stage(pipeline, kind, work, name="work", max_attempts=3)
    ran = run(pipeline, keys(4))
    spoilt = ran.stage("page-0", "work")
    assert (spoilt["state"], spoilt["attempts"], spoilt["error"]) == ("exhausted", 3, "ValueError: attempt 3")
    assert {(ran.stage(key, "work")["attempts"], ran.result(key, "work")) for key in keys(4)[1:]} == {(3, "at last")}
    assert "in work" in ran.events("exhausted", "page-0")[0]["data"]["traceback"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["returned", "raised"])
def test_skip_ends_the_stage_as_if_it_were_done(run: Bench, kind: str, way: str):
    pipeline = Pipeline("p")

    def first(item: Item, ctx: Context) -> Any:
        answer = Skip("nothing to do")
        if way == "raised":
            raise answer
        return answer

    stage(pipeline, kind, first, name="first")
    stage(pipeline, kind, lambda item, ctx: {"of a skipped stage": ctx.result("first")}, name="second", after="first")
    ran = run(pipeline, keys(2))
    skipped = ran.stage("page-0", "first")
    assert (skipped["state"], skipped["error"], skipped["attempts"]) == ("skipped", "nothing to do", 1)
    assert ran.result("page-1", "second") == {"of a skipped stage": None}


@pytest.mark.req("J16")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["returned", "raised"])
def test_retry_later_waits_as_told_and_spends_no_attempt(run: Bench, kind: str, way: str, tmp_path):
    """Three times later with two attempts in all; and never sooner than asked for."""
    times = tmp_path / "times"

    def work(item: Item, ctx: Context) -> Any:
        with times.open("a") as file:
            file.write(f"{time.monotonic()} {ctx.attempt}\n")
        if len(times.read_text().splitlines()) <= 3:
            answer = RetryLater(after=0.15, reason="the library is closed")
            if way == "raised":
                raise answer
            return answer
        return "open"

    pipeline = Pipeline("p")
    stage(pipeline, kind, work, name="work", max_attempts=2)
    ran = run(pipeline, ["page"])
    assert (ran.state("page", "work"), ran.stage("page", "work")["attempts"]) == ("done", 1)
    at = [line.split() for line in times.read_text().splitlines()]
    assert [attempt for _, attempt in at] == ["1"] * 4
    waits = [float(later[0]) - float(earlier[0]) for earlier, later in zip(at, at[1:], strict=False)]
    assert min(waits) >= 0.149
    assert {event["data"]["error"] for event in ran.events("snoozed", "page")} == {"the library is closed"}


@pytest.mark.parametrize("kind", KINDS)
def test_permanent_ends_the_stage_at_once_and_what_follows_never_begins(run: Bench, kind: str):
    pipeline = Pipeline("p")

    def first(item: Item, ctx: Context) -> Any:
        raise Permanent("no such book")

    stage(pipeline, kind, first, name="first")
    stage(pipeline, kind, lambda item, ctx: None, name="second", after="first")
    ran = run(pipeline, ["page"])
    failed = ran.stage("page", "first")
    assert (failed["state"], failed["attempts"], failed["error"]) == ("failed", 1, "Permanent: no such book")
    assert ran.state("page", "second") is None


@pytest.mark.req("J16")
def test_a_failed_attempt_waits_no_longer_than_its_backoff_allows(run: Bench):
    """Full jitter: anywhere between zero and the ceiling, which doubles."""
    times: list[float] = []

    pipeline = Pipeline("p")

    @pipeline.stage(max_attempts=4, backoff=Backoff(first_seconds=0.1, factor=2, most_seconds=0.3))
    def work(item: Item, ctx: Context) -> None:
        times.append(time.monotonic())
        raise ValueError

    ran = run(pipeline, ["page"])
    due = [(event["data"]["due_at"] - event["at"]) / 1e6 for event in ran.events("attempt_failed", "page")]
    assert [wait <= ceiling for wait, ceiling in zip(due, (0.1, 0.2, 0.3), strict=True)] == [True] * 3
    for earlier, later, wait in zip(times, times[1:], due, strict=False):
        assert later - earlier >= wait - 0.005


# Batches --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolate", [None, "process"])
def test_a_batch_gets_a_list_and_answers_with_one_verdict_each(run: Bench, isolate: Any):
    pipeline = Pipeline("p")

    @pipeline.stage(batch=8, max_attempts=2, backoff=QUICK, isolate=isolate)
    def work(items: list[Item], ctx: BatchContext) -> list[Any]:
        verdicts: dict[str, Any] = {
            "skipped": Skip("known"), "failed": Permanent("never"), "raised": ValueError("not today"),
            "refused": {1, 2}, "done": {"size": len(items)},
        }  # fmt: skip
        return [
            RetryLater(after=0.01) if item.key == "later" and ctx.of(item).attempt == 1 and len(items) > 1
            else verdicts.get(item.key, "again")
            for item in items
        ]  # fmt: skip

    ran = run(pipeline, ["skipped", "failed", "raised", "refused", "later", "done"], concurrency=1)
    assert {key: ran.state(key, "work") for key in ("skipped", "failed", "raised", "refused", "later", "done")} == {
        "skipped": "skipped", "failed": "failed", "raised": "exhausted", "refused": "failed", "later": "done", "done": "done",
    }  # fmt: skip
    assert ran.result("done", "work") == {"size": 6}
    assert ran.stage("later", "work")["attempts"] == 1
    assert ran.stage("raised", "work")["error"] == "ValueError: not today"
    assert "'refused'" in ran.stage("refused", "work")["error"] and "set" in ran.stage("refused", "work")["error"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda items: items[1:], "3 verdicts"), (lambda items: [*items, *items], "8 verdicts"),
        (lambda items: None, "a NoneType"), (lambda items: dict.fromkeys(item.key for item in items), "a dict"),
    ],
)  # fmt: skip
def test_a_batch_that_answers_with_another_number_of_verdicts_has_failed(
    run: Bench, answer: Callable[[list[Item]], Any], said: str
):
    """Nobody can tell whose verdict is missing: none is taken."""
    pipeline = Pipeline("p")

    @pipeline.stage(batch=8)
    def work(items: list[Item], ctx: BatchContext) -> Any:
        return answer(items)

    ran = run(pipeline, keys(4), concurrency=1)
    for key in keys(4):
        assert ran.state(key, "work") == "failed"
        assert f"the handler returned {said}" in ran.stage(key, "work")["error"]


def test_a_batch_that_raises_is_tried_again_item_by_item(run: Bench):
    """Nobody knows which item was to blame: each gets a call of its own, and only the guilty one is spent."""
    sizes: list[list[str]] = []
    pipeline = Pipeline("p")

    @pipeline.stage(batch=8, max_attempts=2, backoff=QUICK)
    async def work(items: list[Item], ctx: BatchContext) -> list[Any]:
        sizes.append([item.key for item in items])
        if any(item.key == "page-3" for item in items):
            raise ValueError("one of you")
        return ["fine"] * len(items)

    ran = run(pipeline, keys(8), concurrency=1)
    assert sizes[0] == keys(8)
    assert sorted(size[0] for size in sizes[1:]) == sorted(keys(8)) and {len(size) for size in sizes[1:]} == {1}
    assert ran.states("work") == {"done": 7, "exhausted": 1}
    assert ran.state("page-3", "work") == "exhausted"


def test_a_batch_is_never_larger_than_asked_for_and_takes_what_there_is(run: Bench):
    sizes: list[int] = []
    pipeline = Pipeline("p")

    @pipeline.stage(batch=5)
    def work(items: list[Item], ctx: BatchContext) -> list[int]:
        sizes.append(len(items))
        return list(range(len(items)))

    ran = run(pipeline, keys(23), concurrency=2)
    assert max(sizes) == 5 and sum(sizes) == 23
    assert ran.states("work") == {"done": 23}


# The context ----------------------------------------------------------------------------------------------------------

LARGE = "ä" * 20_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_finds_the_results_of_all_stages_before_it(run: Bench, kind: str):
    """Of the parent, of the grandparent, of a skipped stage, and one too large to travel with the claim."""
    pipeline = Pipeline("p")
    stage(pipeline, kind, lambda item, ctx: {"text": LARGE, "key": item.key}, name="large")
    stage(pipeline, kind, lambda item, ctx: Skip(), name="skipped", after="large")
    stage(pipeline, kind, lambda item, ctx: [1, 2.5, None, {"ü": True}], name="small", after="skipped")

    def last(item: Item, ctx: Context) -> Any:
        large = ctx.result("large")
        small = ctx.result("small")
        small.append("mine")
        return [large["key"] == item.key, large["text"] == LARGE, ctx.result("skipped"), ctx.result("small")]

    stage(pipeline, kind, last, name="last", after="small")
    ran = run(pipeline, keys(3))
    assert [ran.result(key, "last") for key in keys(3)] == [[True, True, None, [1, 2.5, None, {"ü": True}]]] * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("asked", "said"), [("later", "has no result for this item yet"), ("unknown", "no stage 'unknown'")])
def test_a_handler_that_asks_for_a_result_there_cannot_be_hears_why(run: Bench, kind: str, asked: str, said: str):
    pipeline = Pipeline("p")
    stage(pipeline, kind, lambda item, ctx: ctx.result(asked), name="first", max_attempts=1)
    stage(pipeline, kind, lambda item, ctx: None, name="later", after="first")
    ran = run(pipeline, ["page"])
    assert ran.state("page", "first") == "exhausted"
    assert said in ran.stage("page", "first")["error"]


@pytest.mark.fault(57)
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_the_next_stage_sees_the_same_value_at_once_and_after_a_resume(run: Bench, kind: str):
    """Straight on in the same worker, or in another worker that read it from the database: the same value and types."""
    value = {
        "int": 2**63, "big": 10**400, "negative": -(2**64), "float": 1.0, "small": 5e-324, "list": [[], {}, [None]],
        "text": "a\u0301\u2028\U0001f600", "": "an empty key", "numbers": {"1": 1}, "bool": [True, False, 1, 0],
    }  # fmt: skip
    pipeline = Pipeline("p")
    stage(pipeline, kind, lambda item, ctx: value, name="first")
    stage(pipeline, kind, lambda item, ctx: repr(ctx.result("first")), name="second", after="first")
    ran = run(pipeline, ["at once"])
    app = run.app(pipeline, ["resumed"])
    with run.serving(pipeline, stages=("first",)):
        wait_for(lambda: ran.state("resumed", "first") == "done")
    assert ran.state("resumed", "second") == "pending"
    assert app.run().bad == 0
    assert ran.result("at once", "second") == ran.result("resumed", "second") == repr(value)


@pytest.mark.req("D1")
@pytest.mark.parametrize("kind", KINDS)
def test_progress_travels_with_the_heartbeat_and_shows_in_why(run: Bench, kind: str, tmp_path):
    gate = tmp_path / "gate"
    pipeline = Pipeline("p")

    def work(item: Item, ctx: Context) -> None:
        ctx.progress(3, 12, "pages")
        while not gate.exists():
            time.sleep(0.01)

    stage(pipeline, kind, work, name="work")
    with run.serving(pipeline, ["page"], lease_seconds=0.3) as (_, ran):
        note = wait_for(lambda: ran.app.why("page").get("progress"))
        assert note == {"item": "page", "stage": "work", "done": 3, "total": 12, "note": "pages"}
        assert "is working on it, attempt 1 of 5" in ran.app.why("page")["text"]
        gate.touch()
        wait_for(lambda: ran.state("page", "work") == "done")
        wait_for(lambda: ran.app.workers()[0]["progress"] == [])


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
        started.wait(10)
    assert ran.state("page", "work") == "retry_later"
    assert ran.stage("page", "work")["attempts"] == 0


def test_the_log_of_a_context_names_item_stage_and_attempt(run: Bench, caplog: pytest.LogCaptureFixture):
    pipeline = Pipeline("p")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None:
        ctx.log.warning("look at %s", "this")

    run(pipeline, ["page"])
    assert "[page work #1] look at this" in caplog.messages


# Order and choice of stages -------------------------------------------------------------------------------------------


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
        assert ran.app.why("page-0")["reason"] == "no_worker"
        with run.serving(pipeline, stages=("second",)):
            wait_for(lambda: ran.states("third") == {"done": 5})


def test_a_stage_that_nobody_knows_cannot_be_offered(run: Bench):
    pipeline = Pipeline("p")
    stage(pipeline, "thread", lambda item, ctx: None, name="first")
    with pytest.raises(UsageError, match="frist"), run.serving(pipeline, stages=("frist",)):
        pass


@pytest.mark.parametrize("kind", ["thread", "loop", "process"])
def test_items_finish_early_instead_of_all_advancing_in_step(run: Bench, kind: str, tmp_path):
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


# Workers beside each other --------------------------------------------------------------------------------------------


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
        begun.wait(10)
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
        gate.wait(20)

    with run.serving(pipeline, concurrency=4), run.serving(pipeline, concurrency=4) as (_, ran):
        wait_for(lambda: len(ran.app.workers()) == 2)
        ran.app.add("p", keys(8))
        try:
            wait_for(lambda: len(started) == 8, 5)
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


# Heartbeats -----------------------------------------------------------------------------------------------------------


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
            first = ran.app.show("page-0")["stages"]
            wait_for(lambda: ran.app.workers()[0]["beat_at"] > worker["beat_at"] + 600_000)
            assert len(ran.app.workers()) == 1
            assert ran.app.show("page-0")["stages"] == first
            assert ran.app.workers()[0]["alive"]
        finally:
            gate.set()
        wait_for(lambda: ran.states("work") == {"done": 50})
    assert ran.app.workers() == []
    assert ran.events("worker_died") == []
