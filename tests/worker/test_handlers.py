"""What a handler may be and what it may answer, alone and for a batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast import Backoff, BatchContext, Context, Item, Permanent, Pipeline, RetryLater, Skip
from tests.support.bench import QUICK, Bench
from tests.support.kinds import KINDS, Handler, every_kind, keys
from tests.support.waiting import wait_for

# Kinds of handlers -----------------------------------------------------------------------------------------------------


def test_a_handler_gets_item_and_context_and_its_answer_is_kept(run: Bench):
    pipeline = Pipeline("p")
    every_kind(pipeline, "work", lambda kind: lambda item, ctx: [item.data, item.key, ctx.attempt, kind])
    ran = run(pipeline, [{"key": key, "n": len(key)} for key in keys(12)])
    for kind in KINDS:
        for key in keys(12):
            assert ran.result(key, f"work.{kind}") == [{"n": len(key)}, key, 1, kind]


@pytest.mark.req("J3")
def test_a_handler_that_raises_is_tried_again_until_its_attempts_are_spent(run: Bench):
    """The error of the last attempt stands, with all attempts counted."""

    def work(item: Item, ctx: Context) -> str:
        if item.key == "page-0" or ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}")
        return "at last"

    pipeline = Pipeline("p")
    every_kind(pipeline, "work", lambda kind: work, max_attempts=3)
    ran = run(pipeline, keys(4))
    for kind in KINDS:
        spoilt = ran.stage("page-0", f"work.{kind}")
        assert (spoilt.state, spoilt.attempts, spoilt.error) == ("exhausted", 3, "ValueError: attempt 3")
        assert {(ran.stage(key, f"work.{kind}").attempts, ran.result(key, f"work.{kind}")) for key in keys(4)[1:]} == {
            (3, "at last")
        }
    assert all("in work" in event.data["traceback"] for event in ran.events("exhausted", "page-0"))


@pytest.mark.parametrize("way", ["returned", "raised"])
def test_skip_ends_the_stage_as_if_it_were_done(run: Bench, way: str):
    def first(item: Item, ctx: Context) -> Any:
        answer = Skip("nothing to do")
        if way == "raised":
            raise answer
        return answer

    pipeline = Pipeline("p")
    every_kind(pipeline, "first", lambda kind: first)
    every_kind(pipeline, "second", lambda kind: lambda item, ctx: [ctx.result(f"first.{kind}")], after="first")
    ran = run(pipeline, keys(2))
    for kind in KINDS:
        skipped = ran.stage("page-0", f"first.{kind}")
        assert (skipped.state, skipped.error, skipped.attempts) == ("skipped", "nothing to do", 1)
        assert ran.result("page-1", f"second.{kind}") == [None]


@pytest.mark.req("J16")
@pytest.mark.parametrize("way", ["returned", "raised"])
def test_retry_later_waits_as_told_and_spends_no_attempt(run: Bench, way: str, tmp_path: Path):
    """Three times later with two attempts in all; and never sooner than asked for."""

    def make(kind: str) -> Handler:
        times = tmp_path / kind

        def work(item: Item, ctx: Context) -> Any:
            with times.open("a") as file:
                file.write(f"{time.monotonic()} {ctx.attempt}\n")
            if len(times.read_text().splitlines()) <= 3:
                answer = RetryLater(after=0.15, reason="the library is closed")
                if way == "raised":
                    raise answer
                return answer
            return "open"

        return work

    pipeline = Pipeline("p")
    every_kind(pipeline, "work", make, max_attempts=2)
    ran = run(pipeline, ["page"])
    for kind in KINDS:
        assert (ran.state("page", f"work.{kind}"), ran.stage("page", f"work.{kind}").attempts) == ("done", 1)
        at = [line.split() for line in (tmp_path / kind).read_text().splitlines()]
        assert [attempt for _, attempt in at] == ["1"] * 4
        assert min(float(later[0]) - float(earlier[0]) for earlier, later in pairwise(at)) >= 0.149
    assert {event.data["error"] for event in ran.events("snoozed", "page")} == {"the library is closed"}


def test_permanent_ends_the_stage_at_once_and_what_follows_never_begins(run: Bench):
    def first(item: Item, ctx: Context) -> Any:
        raise Permanent("no such book")

    pipeline = Pipeline("p")
    every_kind(pipeline, "first", lambda kind: first)
    every_kind(pipeline, "second", lambda kind: lambda item, ctx: None, after="first")
    ran = run(pipeline, ["page"])
    for kind in KINDS:
        failed = ran.stage("page", f"first.{kind}")
        assert (failed.state, failed.attempts, failed.error) == ("failed", 1, "Permanent: no such book")
        assert ran.state("page", f"second.{kind}") is None


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
    due = [(event.data["due_at"] - event.at).total_seconds() for event in ran.events("attempt_failed", "page")]
    assert [wait <= ceiling for wait, ceiling in zip(due, (0.1, 0.2, 0.3), strict=True)] == [True] * 3
    for (earlier, later), wait in zip(pairwise(times), due, strict=True):
        assert later - earlier >= wait - 0.005


# Batches ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolate", [None, "process"])
def test_a_batch_gets_a_list_and_answers_with_one_verdict_each(run: Bench, isolate: Any):
    pipeline = Pipeline("p")

    @pipeline.stage(batch=8, max_attempts=2, backoff=QUICK, isolate=isolate)
    def work(items: list[Item], ctx: BatchContext) -> list[Any]:
        verdicts: dict[str, Any] = {
            "skipped": Skip("known"),
            "failed": Permanent("never"),
            "raised": ValueError("not today"),
            "refused": {1, 2},
            "done": {"size": len(items)},
        }
        return [
            RetryLater(after=0.01)
            if item.key == "later" and ctx.of(item).attempt == 1 and len(items) > 1
            else verdicts.get(item.key, "again")
            for item in items
        ]

    ran = run(pipeline, ["skipped", "failed", "raised", "refused", "later", "done"], concurrency=1)
    assert {key: ran.state(key, "work") for key in ("skipped", "failed", "raised", "refused", "later", "done")} == {
        "skipped": "skipped",
        "failed": "failed",
        "raised": "exhausted",
        "refused": "failed",
        "later": "done",
        "done": "done",
    }
    assert ran.result("done", "work") == {"size": 6}
    assert ran.stage("later", "work").attempts == 1
    assert ran.stage("raised", "work").error == "ValueError: not today"
    assert "'refused'" in ran.stage("refused", "work").error and "set" in ran.stage("refused", "work").error


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda items: items[1:], "3 verdicts"),
        (lambda items: [*items, *items], "8 verdicts"),
        (lambda items: None, "a NoneType"),
        (lambda items: dict.fromkeys(item.key for item in items), "a dict"),
    ],
)
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
        assert f"the handler returned {said}" in ran.stage(key, "work").error


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


@pytest.mark.parametrize("isolate", [None, "process"])
def test_a_worker_that_has_ended_leaves_no_thread_behind(run: Bench, isolate: Any):
    """A program may run one pipeline after another, for months."""
    pipeline = Pipeline("p")
    pipeline.stage(name="work", isolate=isolate)(lambda item, ctx: time.sleep(0.02))
    before = set(threading.enumerate())
    run(pipeline, [f"page-{n}" for n in range(6)])
    wait_for(lambda: set(threading.enumerate()) <= before)
