"""Whatever a handler does, its attempt ends, the others go on, and the worker stays whole."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pytest

from holdfast import Backoff, BatchContext, Context, HoldfastError, Item, Pipeline, RetryLater, Skip, UsageError
from holdfast.model.states import FINISHED
from tests.support.bench import QUICK, Bench, Ran
from tests.support.processes import wait_for

QUIET_EXITS: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit(0),
    "interrupt": KeyboardInterrupt,
    "cancelled": asyncio.CancelledError,
    "generator": GeneratorExit,
    "base": lambda: BaseException("bare"),
}


def the_bad_one(bad: Callable[[Item, Context], Any], **settings: Any) -> Pipeline:
    """A pipeline whose sync handler does `bad` for the item `bad`, and nothing for the others."""
    pipeline = Pipeline("p")

    @pipeline.stage(max_attempts=2, backoff=QUICK, **settings)
    def work(item: Item, ctx: Context) -> Any:
        return bad(item, ctx) if item.key == "bad" else {"ok": True}

    return pipeline


def the_bad_async_one(bad: Callable[[Item, Context], Any], **settings: Any) -> Pipeline:
    """The same with an async handler; `bad` may return something to await."""
    pipeline = Pipeline("p")

    @pipeline.stage(max_attempts=2, backoff=QUICK, **settings)
    async def work(item: Item, ctx: Context) -> Any:
        if item.key != "bad":
            await asyncio.sleep(0)
            return {"ok": True}
        answer = bad(item, ctx)
        return await answer if asyncio.iscoroutine(answer) or asyncio.isfuture(answer) else answer

    return pipeline


ITEMS = ["bad", *(f"good-{number}" for number in range(20))]
GOOD = ITEMS[1:]


def many_bad_ones(acts: Mapping[str, Callable[[Context], Any]], kind: str) -> Pipeline:
    """A pipeline whose handler does, for each item, the act of that name."""
    pipeline = Pipeline("p")

    def act(item: Item, ctx: Context) -> Any:
        return acts[item.key](ctx) if item.key in acts else {"ok": True}

    async def act_on_the_loop(item: Item, ctx: Context) -> Any:
        await asyncio.sleep(0)
        return act(item, ctx)

    handler = act_on_the_loop if kind == "loop" else act
    isolate = "process" if kind == "process" else None
    pipeline.stage(name="work", max_attempts=2, backoff=QUICK, isolate=isolate)(handler)
    return pipeline


def raising(error: Callable[[], BaseException]) -> Callable[[Context], Any]:
    def act(ctx: Context) -> Any:
        raise error()

    return act


@pytest.mark.fault(12)
@pytest.mark.parametrize("kind", ["thread", "loop", "process"])
def test_a_handler_that_tries_to_end_the_process_has_failed_like_any_other(run: Bench, kind: str):
    """SystemExit, KeyboardInterrupt and their kind are an attempt that failed; the worker stays up."""
    acts = {name: raising(error) for name, error in QUIET_EXITS.items()}
    ran = run(many_bad_ones(acts, kind), [*acts, *GOOD], concurrency=2)
    for name, error in QUIET_EXITS.items():
        spoilt = ran.stage(name, "work")
        assert (spoilt.state, spoilt.attempts) == ("exhausted", 2), name
        assert spoilt.error.startswith(type(error()).__name__), name
    assert ran.states("work") == {"done": 20, "exhausted": len(acts)}


@pytest.mark.fault(12)
def test_an_async_handler_that_cancels_its_own_task_has_failed_and_holds_nobody_up(run: Bench):
    """Libraries cancel the task they run in; that is no request to the worker."""

    async def cancel_myself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    ran = run(the_bad_async_one(lambda item, ctx: cancel_myself()), ITEMS, concurrency=1)
    assert ran.states("work") == {"done": 20, "exhausted": 1}


@pytest.mark.fault(12)
def test_a_task_left_behind_that_raises_keyboard_interrupt_does_not_stop_the_loop(run: Bench):
    async def leave_a_task_behind() -> None:
        async def interrupt() -> None:
            raise KeyboardInterrupt

        asyncio.get_running_loop().create_task(interrupt())
        await asyncio.sleep(0.01)

    ran = run(the_bad_async_one(lambda item, ctx: leave_a_task_behind()), ITEMS)
    assert ran.states("work") == {"done": 21}


@pytest.mark.fault(13)
@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_running_out_of_memory_is_an_ordinary_failure(run: Bench, kind: str):
    ran = run(many_bad_ones({"bad": lambda ctx: bytearray(1 << 60)}, kind), ITEMS)
    assert ran.stage("bad", "work").error == "MemoryError"
    assert ran.states("work") == {"done": 20, "exhausted": 1}


# Hanging --------------------------------------------------------------------------------------------------------------


@pytest.mark.fault(14)
def test_a_thread_that_hangs_is_given_up_and_the_others_go_on(run: Bench):
    """A thread cannot be ended: it is left to itself, another takes its place, and what it says later is too late."""
    let_go = threading.Event()
    ended = threading.Event()

    def bad(item: Item, ctx: Context) -> Any:
        let_go.wait(30)
        ended.set()
        return {"too": "late"}

    with run.serving(the_bad_one(bad, timeout=0.2), ITEMS, concurrency=1) as (_, ran):
        wait_for(lambda: ran.states("work") == {"done": 20, "exhausted": 1})
        let_go.set()
        wait_for(ended.is_set)
        assert ran.stage("bad", "work").error == "StageTimeout: ran longer than 0.2 s"
    assert ran.states("work") == {"done": 20, "exhausted": 1}
    assert ran.app.check() == []


@pytest.mark.fault(14)
def test_a_thread_that_spins_is_given_up_and_the_others_go_on(run: Bench):
    stop = threading.Event()

    def bad(item: Item, ctx: Context) -> Any:
        while not stop.is_set():
            pass

    try:
        ran = run(the_bad_one(bad, timeout=0.2), ITEMS, concurrency=2)
    finally:
        stop.set()
    assert ran.states("work") == {"done": 20, "exhausted": 1}


@pytest.mark.fault(14)
def test_an_async_handler_that_hangs_is_cancelled(run: Bench):
    cancelled = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    ran = run(the_bad_async_one(lambda item, ctx: hang(), timeout=0.2), ITEMS, concurrency=1)
    assert ran.stage("bad", "work").error == "StageTimeout: ran longer than 0.2 s"
    assert ran.states("work") == {"done": 20, "exhausted": 1}
    assert cancelled == [True, True]


@pytest.mark.fault(14)
def test_an_async_handler_that_refuses_to_be_cancelled_is_given_up(run: Bench):
    stop, left = threading.Event(), []

    async def stay() -> None:
        while not stop.is_set():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                pass
        left.append(True)

    pipeline = the_bad_async_one(lambda item, ctx: stay(), timeout=0.2)
    with run.serving(pipeline, ITEMS, concurrency=2) as (_, ran):
        try:
            wait_for(lambda: ran.states("work") == {"done": 20, "exhausted": 1})
        finally:
            stop.set()
        wait_for(lambda: len(left) == 2)
    assert ran.states("work") == {"done": 20, "exhausted": 1}


@pytest.mark.fault(14, 15)
def test_an_async_handler_that_blocks_the_loop_for_ever_is_given_up_and_the_others_go_on(run: Bench):
    """The loop is lost with it; the items that waited for the loop are not."""
    stop, left = threading.Event(), []

    def bad(item: Item, ctx: Context) -> Any:
        stop.wait(60)
        left.append(True)

    with run.serving(the_bad_async_one(bad, timeout=0.2), ITEMS, concurrency=2) as (_, ran):
        try:
            wait_for(lambda: ran.states("work") == {"done": 20, "exhausted": 1})
        finally:
            stop.set()
        wait_for(lambda: len(left) == 2)
    assert ran.states("work") == {"done": 20, "exhausted": 1}


@pytest.mark.fault(14)
def test_an_isolated_child_that_hangs_is_killed(run: Bench):
    pipeline = the_bad_one(lambda item, ctx: threading.Event().wait(), timeout=0.3, isolate="process")
    ran = run(pipeline, ITEMS, concurrency=2)
    assert ran.stage("bad", "work").error == "StageTimeout: ran longer than 0.3 s"
    assert ran.states("work") == {"done": 20, "exhausted": 1}


@pytest.mark.fault(14)
def test_a_batch_that_hangs_is_given_up_and_tried_again_item_by_item(run: Bench):
    stop = threading.Event()
    pipeline = Pipeline("p")

    @pipeline.stage(batch=8, timeout=0.2, max_attempts=2, backoff=QUICK)
    def work(items: list[Item], ctx: BatchContext) -> list[str]:
        if any(item.key == "bad" for item in items):
            stop.wait(30)
        return [item.key for item in items]

    try:
        ran = run(pipeline, ITEMS, concurrency=1)
    finally:
        stop.set()
    assert ran.state("bad", "work") == "exhausted"
    assert ran.states("work") == {"done": 20, "exhausted": 1}


@pytest.mark.fault(14)
def test_a_worker_with_too_many_hanging_threads_steps_down_and_hands_back_the_rest(run: Bench):
    """Threads cannot be ended. A process full of lost ones is of no use: it says so, and another must take over."""
    stop = threading.Event()
    pipeline = Pipeline("p")

    @pipeline.stage(timeout=0.1, backoff=Backoff(first_seconds=60))
    def work(item: Item, ctx: Context) -> None:
        stop.wait(60)

    try:
        with pytest.raises(HoldfastError, match="a new one must take over"):
            run(pipeline, ITEMS, concurrency=1)
    finally:
        stop.set()
    ran = Ran(run.app(pipeline))
    assert set(ran.states("work")) == {"pending", "retry_later"}
    assert ran.app.check() == []


# Things left behind ---------------------------------------------------------------------------------------------------


@pytest.mark.fault(21)
def test_a_thread_left_behind_cannot_use_the_context_of_an_attempt_that_is_over(run: Bench):
    pipeline = Pipeline("p")
    over = threading.Event()
    said: list[object] = []

    def stray(ctx: Context) -> None:
        over.wait(60)
        for use in (lambda: ctx.result("first"), lambda: ctx.progress(1, 2, "still here")):
            try:
                said.append(use())
            except UsageError as error:
                said.append(str(error))

    @pipeline.stage()
    def first(item: Item, ctx: Context) -> int:
        return 1

    @pipeline.stage(after="first")
    def second(item: Item, ctx: Context) -> int:
        threads.append(threading.Thread(target=stray, args=(ctx,)))
        threads[-1].start()
        return ctx.result("first") + 1

    threads: list[threading.Thread] = []
    with run.serving(pipeline, ["a"]) as (worker, ran):
        wait_for(lambda: ran.state("a", "second") == "done")
        over.set()
        threads[0].join()
        assert len(said) == 2
        assert all("item 'a', stage 'second': attempt 1 is over" in str(one) for one in said)
        assert worker._progress == {}
    assert ran.result("a", "second") == 2


@pytest.mark.fault(14, 21)
def test_a_thread_that_was_given_up_cannot_use_its_context_any_more(run: Bench):
    """Its next attempt may be running: a late word of progress would be taken for the new one's."""
    given_up = threading.Event()
    said: list[str] = []

    def bad(item: Item, ctx: Context) -> Any:
        if ctx.attempt == 1:
            given_up.wait(60)
            try:
                ctx.progress(1, 2, "from the past")
                said.append("accepted")
            except UsageError:
                said.append("refused")

    with run.serving(the_bad_one(bad, timeout=0.2), ["bad"], concurrency=1) as (worker, ran):
        wait_for(lambda: ran.state("bad", "work") == "done")
        given_up.set()
        wait_for(lambda: said)
        assert worker._progress == {}
    assert said == ["refused"]


# Answers and errors that bite -----------------------------------------------------------------------------------------


class Biting:
    """Looks harmless until somebody looks."""

    def __str__(self) -> str:
        raise ValueError("no text for you")

    __repr__ = __str__


class BitingText(str):
    def __len__(self) -> int:
        raise ValueError("no length for you")


class BitingDict(dict[str, Any]):
    def items(self) -> Any:
        raise ValueError("no items for you")

    def __eq__(self, other: object) -> bool:
        raise ValueError("equal to nothing")

    __hash__ = None  # type: ignore[assignment]


class BitingError(Exception):
    def __str__(self) -> str:
        raise RecursionError("no text")

    __repr__ = __str__


class RudeError(Exception):
    def __str__(self) -> str:
        raise SystemExit(7)


ANSWERS: dict[str, Callable[[], Any]] = {
    "a skip whose reason has no text": lambda: Skip(Biting()),  # type: ignore[arg-type]
    "a text without a length": lambda: BitingText("x"),
    "an object without items": lambda: BitingDict(a=object()),
    "an error without a text": BitingError,
}


@pytest.mark.fault(58)
@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_an_answer_that_bites_ends_the_attempt_and_not_the_worker(run: Bench, kind: str):
    """Whatever looking at an answer raises is the answer's fault: the item fails, and everyone else goes on."""
    acts = {name: lambda ctx, make=make: make() for name, make in ANSWERS.items()}
    snoozes = [RetryLater(0.01, Biting())] * 3  # type: ignore[arg-type]
    acts["a retry whose reason has no text"] = lambda ctx: snoozes.pop() if snoozes else "at last"
    ran = run(many_bad_ones(acts, kind), [*acts, *GOOD], concurrency=1)
    assert not snoozes
    assert {name: ran.state(name, "work") in FINISHED for name in acts} == dict.fromkeys(acts, True)
    assert {ran.state(name, "work") for name in GOOD} == {"done"}


def _cyclic() -> BaseException:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    one.__context__, other.__context__ = other, one
    return one


def _deep_cause() -> BaseException:
    error: BaseException = ValueError("innermost")
    for number in range(5_000):
        outer = ValueError(f"level {number}")
        outer.__cause__ = error
        error = outer
    return error


def _wide_group() -> BaseException:
    group: Exception = ExceptionGroup("inner", [ValueError(str(number)) for number in range(2_000)])
    for _ in range(200):
        group = ExceptionGroup("outer", [group, ValueError("beside")])
    return group


def _ten_thousand_frames() -> BaseException:
    def fall(depth: int) -> None:
        if depth == 0:
            raise ValueError("the bottom")
        fall(depth - 1)

    old = sys.getrecursionlimit()
    sys.setrecursionlimit(12_000)
    try:
        fall(10_000)
    except ValueError as error:
        return error
    finally:
        sys.setrecursionlimit(old)
    raise AssertionError


def _noted() -> BaseException:
    error = ValueError("noted")
    error.__notes__ = [Biting(), "a note"]  # type: ignore[list-item]
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "no text": BitingError,
    "a text that ends the process": RudeError,
    "a cyclic cause": _cyclic,
    "five thousand causes": _deep_cause,
    "a wide and deep group": _wide_group,
    "ten thousand frames": _ten_thousand_frames,
    "a note without a text": _noted,
    "NUL and a lone surrogate": lambda: ValueError("a\0b\ud800c"),
    "fifty megabytes": lambda: ValueError("x" * (50 << 20)),
    "arguments without a text": lambda: ValueError(Biting(), Biting()),
    "markup": lambda: ValueError("<script>alert(1)</script>\x1b[31m"),
}


@pytest.mark.fault(55, 56, 58)
@pytest.mark.parametrize("kind", ["thread", "loop", "process"])
def test_an_error_that_bites_is_recorded_with_a_text_of_bounded_length(run: Bench, kind: str):
    """The attempt is counted, its text is cut, and nothing is stuck."""
    acts = {name: raising(error) for name, error in ERRORS.items()}
    ran = run(many_bad_ones(acts, kind), [*acts, *GOOD], concurrency=2)
    for name, error in ERRORS.items():
        spoilt = ran.stage(name, "work")
        assert (spoilt.state, spoilt.attempts) == ("exhausted", 2), name
        assert spoilt.error.startswith(type(error()).__name__), name
        assert len(spoilt.error) < 2_200, name
        [event] = ran.events("exhausted", name)
        assert len(event.data["traceback"]) < 16_200, name
    assert ran.states("work") == {"done": 20, "exhausted": len(ERRORS)}


NOTES: dict[str, tuple[Any, ...]] = {
    "a lone surrogate": (1, 2, "\ud800"),
    "NUL": (1, 2, "a\0b"),
    "not a number": (float("nan"), float("inf"), ""),
    "an object": (object(), None, ""),
    "a huge number": (10**400, 1, ""),
}


@pytest.mark.req("D1")
@pytest.mark.fault(55)
def test_a_word_of_progress_that_cannot_be_stored_does_not_stop_the_heart(run: Bench):
    """It travels with the heartbeat; a heartbeat that fails would cost the worker all its leases."""
    let_go = threading.Event()

    def act(ctx: Context) -> None:
        try:
            ctx.progress(*NOTES[ctx.item.key])
        finally:
            let_go.wait(20)

    pipeline = many_bad_ones(dict.fromkeys(NOTES, act), "thread")
    with run.serving(pipeline, NOTES, lease_seconds=0.3, concurrency=len(NOTES)) as (_, ran):
        seen: set[datetime] = set()

        def beats() -> bool:
            seen.update(one.heartbeat_at for one in ran.app.workers())
            return len(seen) >= 4

        try:
            wait_for(lambda: ran.states("work") == {"in_progress": len(NOTES)})
            wait_for(beats, 15)
        finally:
            let_go.set()
