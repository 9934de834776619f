"""ctx.once: a named sub-step is called once, whatever happens to the attempts around it."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

from holdfast import BatchContext, CallAgain, Context, Holdfast, Item, LeaseLost, Pipeline, UsageError
from holdfast.engine.memos import MemoWrite, idempotency_key, remember
from holdfast.model.money import micros
from tests.support.bench import QUICK, Bench, Ran
from tests.support.harness import App
from tests.support.money import charged
from tests.support.processes import wait_for
from tests.support.steps import Trouble, write
from tests.support.together import held_at

KINDS = ("thread", "loop", "process")


@pytest.fixture
def app(store: Any, clock: Any) -> App:
    return App(store, clock)


def one_stage(handler: Callable[..., Any], **settings: Any) -> Pipeline:
    pipeline = Pipeline("p", resources={"gemini": {}})
    pipeline.stage(**{"name": "work", "max_attempts": 2, "backoff": QUICK, **settings})(handler)
    return pipeline


class Provider:
    """Somebody who is paid for each call, and may break down in the middle of some."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.breaks = 0

    def __call__(self, *args: Any) -> Any:
        self.calls.append(args)
        if self.breaks:
            self.breaks -= 1
            raise ConnectionError("the line went dead")
        return {"said": list(args), "n": len(self.calls)}

    async def wait(self, *args: Any) -> Any:
        await asyncio.sleep(0)
        return self(*args)


@pytest.fixture
def provider() -> Provider:
    return Provider()


# Once -----------------------------------------------------------------------------------------------------------------


@pytest.mark.req("V4")
@pytest.mark.parametrize("price", [{}, {"cost": 0.4}], ids=["free", "paid"])
def test_a_result_is_recorded_before_it_is_handed_over(run: Bench, provider: Provider, price: dict[str, Any]):
    seen: list[Any] = []

    def work(item: Item, ctx: Context) -> Any:
        value = ctx.once("call", provider, "a", **price)
        seen.extend((memo.name, memo.state, memo.value) for memo in outside.memos(item.key))
        return value

    outside = run.app(one_stage(work))
    ran = run(one_stage(work), ["page-1"])

    assert seen == [("call", "done", {"said": ["a"], "n": 1})]
    assert ran.result("page-1", "work") == {"said": ["a"], "n": 1}


@pytest.mark.req("V4", "D4")
@pytest.mark.parametrize("how", ["thread", "loop", "batch"])
def test_a_later_attempt_gets_the_recorded_value_and_calls_nobody(run: Bench, provider: Provider, how: str):
    def work(item: Item, ctx: Context) -> Any:
        return finish(ctx, ctx.once("call", provider, item.key, cost=1))

    async def on_the_loop(item: Item, ctx: Context) -> Any:
        return finish(ctx, await ctx.once("call", provider.wait, item.key, cost=1))

    def in_a_batch(items: list[Item], ctx: BatchContext) -> list[Any]:
        return [finish(ctx.of(item), ctx.of(item).once("call", provider, item.key, cost=1)) for item in items]

    def finish(ctx: Context, value: Any) -> Any:
        got.append(value)
        if ctx.attempt < 3:
            raise RuntimeError("after the call")
        return value

    got: list[Any] = []
    handler: Any = {"loop": on_the_loop, "batch": in_a_batch}.get(how, work)
    ran = run(one_stage(handler, max_attempts=3, batch=1 if how == "batch" else None), ["page-1"])

    assert provider.calls == [("page-1",)]
    assert got == [{"said": ["page-1"], "n": 1}] * 3
    assert ran.stage("page-1", "work").attempts == 3
    assert ran.events("in_doubt") == ()
    assert charged(ran.app, ["item"]) == [{"item": "page-1", "amount": 1_000_000, "payments": 1}]


@pytest.mark.req("V4")
def test_a_stage_in_a_process_of_its_own_pays_once_too(run: Bench, tmp_path: Any):
    def call(key: str) -> dict[str, Any]:
        with (tmp_path / "calls").open("a") as file:
            file.write(f"{key}\n")
        return {"pid": os.getpid()}

    def work(item: Item, ctx: Context) -> Any:
        value = ctx.once("call", call, item.key, cost=0.25)
        if ctx.attempt == 1:
            raise RuntimeError("after the call")
        if ctx.attempt == 2:
            os.abort()
        return value

    ran = run(one_stage(work, isolate="process", max_attempts=3), ["page-1", "page-2"])

    assert sorted((tmp_path / "calls").read_text().split()) == ["page-1", "page-2"]
    assert ran.states("work") == {"done": 2}
    assert ran.result("page-1", "work")["pid"] != os.getpid()
    assert charged(ran.app, ["pipeline"]) == [{"pipeline": "p", "amount": 500_000, "payments": 2}]


def test_each_name_is_a_sub_step_of_its_own_whatever_the_order(run: Bench, provider: Provider):
    def work(item: Item, ctx: Context) -> Any:
        names = ["a", "b", "c"] if ctx.attempt == 1 else ["c", "new", "b", "a"]
        values = {name: ctx.once(name, provider, name) for name in names}
        if ctx.attempt == 1:
            raise RuntimeError("once more")
        return values

    ran = run(one_stage(work), ["page-1"])

    assert provider.calls == [("a",), ("b",), ("c",), ("new",)]
    assert {name: value["said"] for name, value in ran.result("page-1", "work").items()} == {
        name: [name] for name in ("a", "b", "c", "new")
    }


def test_the_same_name_in_another_stage_or_item_is_another_sub_step(run: Bench, provider: Provider):
    pipeline = Pipeline("p")
    for name, after in (("first", ()), ("second", "first")):
        pipeline.stage(name=name, after=after)(lambda item, ctx: ctx.once("call", provider, item.key))
    ran = run(pipeline, ["page-1", "page-2"])

    assert Counter(provider.calls) == {("page-1",): 2, ("page-2",): 2}
    assert ran.states("second") == {"done": 2}


def test_memos_go_when_their_stage_has_passed_and_stay_when_it_failed(run: Bench, provider: Provider):
    def work(item: Item, ctx: Context) -> Any:
        ctx.once("call", provider, item.key, cost=1)
        if item.key == "bad":
            raise RuntimeError("after the call")

    ran = run(one_stage(work), ["good", "bad"])

    assert ran.app.memos("good") == ()
    assert [(memo.stage, memo.name, memo.state) for memo in ran.app.memos("bad")] == [("work", "call", "done")]


@pytest.mark.req("V4", "D4")
def test_a_person_who_retries_an_exhausted_item_does_not_pay_again(run: Bench, provider: Provider):
    works = threading.Event()

    def work(item: Item, ctx: Context) -> Any:
        value = ctx.once("call", provider, item.key, cost=1)
        assert works.is_set(), "the next step is broken"
        return value

    pipeline = one_stage(work)
    ran = run(pipeline, ["page-1"])
    assert ran.state("page-1", "work") == "exhausted"
    works.set()
    ran.app.retry()
    ran = run(pipeline)

    assert ran.state("page-1", "work") == "done"
    assert provider.calls == [("page-1",)]


def test_what_a_sub_step_returned_is_the_handlers_own_copy(run: Bench):
    """A value is the same on the fast path and after a resume, and changing it changes nothing else."""
    kept = {"list": [1, 2]}

    def work(item: Item, ctx: Context) -> Any:
        value = ctx.once("call", lambda: kept)
        value["list"].append(3)
        assert kept == {"list": [1, 2]}
        if ctx.attempt == 1:
            raise RuntimeError("once more")
        return value

    assert run(one_stage(work), ["page-1"]).result("page-1", "work") == {"list": [1, 2, 3]}


# At the same time -----------------------------------------------------------------------------------------------------


@pytest.mark.fault(72)
@pytest.mark.req("V4")
@pytest.mark.parametrize("seed", range(3))
def test_sub_steps_that_run_together_each_get_their_own_value(run: Bench, seed: int):
    """Steps end in any order, and half of them are cut off when the attempt fails: the right value to the right step."""
    rng = random.Random(seed)
    calls: Counter[str] = Counter()

    async def step(name: str) -> dict[str, str]:
        calls[name] += 1
        await asyncio.sleep(rng.random() * 0.02)
        return {"for": name}

    async def work(item: Item, ctx: Context) -> Any:
        names = [f"step-{number}" for number in range(8)]
        rng.shuffle(names)
        steps = [asyncio.ensure_future(ctx.once(name, step, f"{item.key} {name}")) for name in names]
        if ctx.attempt < 4:
            await asyncio.wait(steps[:4])
            for one in steps[4:]:
                one.cancel()
            await asyncio.gather(*steps, return_exceptions=True)
            raise RuntimeError("half of them")
        return dict(zip(names, await asyncio.gather(*steps), strict=True))

    keys = [f"page-{number}" for number in range(6)]
    ran = run(one_stage(work, max_attempts=4), keys)

    for key in keys:
        values = ran.result(key, "work")
        assert values == {name: {"for": f"{key} {name}"} for name in values}
        assert len(values) == 8
    # What was cut off may have been called before; what had ended was not called again.
    assert all(count <= 4 for count in calls.values())
    assert len(calls) == 48


@pytest.mark.req("V4")
@pytest.mark.parametrize("how", ["thread", "process"])
def test_sub_steps_may_be_called_from_many_threads(run: Bench, how: str):
    def work(item: Item, ctx: Context) -> Any:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda n: ctx.once(f"step-{n}", lambda: {"n": n}, cost=0.01)["n"], range(24)))

    ran = run(one_stage(work, isolate="process" if how == "process" else None), ["page-1", "page-2"])

    assert ran.result("page-1", "work") == ran.result("page-2", "work") == list(range(24))
    assert charged(ran.app, ["item"]) == [
        {"item": key, "amount": 240_000, "payments": 24} for key in ("page-1", "page-2")
    ]


@pytest.mark.parametrize("how", ["after each other", "from two threads"])
def test_the_same_name_twice_in_one_attempt_is_an_error(run: Bench, provider: Provider, how: str):
    def work(item: Item, ctx: Context) -> Any:
        if how == "after each other":
            ctx.once("call", provider)
            ctx.once("call", provider)
        with ThreadPoolExecutor(2) as pool:
            both = threading.Barrier(2)
            ended = [pool.submit(lambda: (both.wait(20), ctx.once("call", provider))) for _ in range(2)]
        errors = [one.exception() for one in ended]
        assert errors.count(None) == 1
        raise next(error for error in errors if error is not None)

    ran = run(one_stage(work, max_attempts=1), ["page-1"])

    error = ran.stage("page-1", "work").error
    assert error.startswith("UsageError: item 'page-1', stage 'work', once('call'): this name was used before")
    assert len(provider.calls) == 1


@pytest.mark.req("V7")
def test_a_handler_that_stops_waiting_does_not_keep_others_from_their_values(run: Bench, provider: Provider):
    """Two memos are in one commit; one handler is cut off by its own time limit meanwhile. Its value is recorded too."""
    gone = threading.Event()

    async def work(item: Item, ctx: Context) -> Any:
        step = ctx.once("call", provider.wait, item.key)
        if item.key == "patient" or ctx.attempt > 1:
            return await step
        try:
            await asyncio.wait_for(step, 0.3)
        except TimeoutError:
            gone.set()
            raise

    with held_at("store.save_memos", until=gone.is_set):
        ran = run(one_stage(work, max_attempts=3), ["hasty", "patient"])

    assert ran.states("work") == {"done": 2}
    assert sorted(provider.calls) == [("hasty",), ("patient",)]


def test_a_plain_function_in_an_async_handler_does_not_hold_up_the_others(run: Bench):
    other_ran = threading.Event()

    async def work(item: Item, ctx: Context) -> Any:
        if item.key == "other":
            other_ran.set()
            return None
        return await ctx.once("call", other_ran.wait, 20)

    assert run(one_stage(work), ["first", "other"]).result("first", "work") is True


def test_whatever_an_async_handler_can_await_may_be_the_sub_step(run: Bench, provider: Provider):
    class Client:
        async def __call__(self, word: str) -> Any:
            return await provider.wait(word)

        async def method(self, word: str) -> Any:
            return await provider.wait(word)

    async def work(item: Item, ctx: Context) -> Any:
        return [
            (await ctx.once("object", Client(), "a"))["said"],
            (await ctx.once("method", Client().method, "b"))["said"],
            (await ctx.once("lambda", lambda: provider.wait("c")))["said"],
        ]

    assert run(one_stage(work), ["page-1"]).result("page-1", "work") == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("how", ["function", "lambda", "object", "on_doubt"])
def test_an_async_function_in_a_sync_handler_is_refused(run: Bench, provider: Provider, how: str):
    class Client:
        async def __call__(self) -> None: ...

    def work(item: Item, ctx: Context) -> Any:
        function: Any = {"function": provider.wait, "lambda": lambda: provider.wait(), "object": Client()}.get(
            how, dict
        )
        return ctx.once("call", function, on_doubt=provider.wait if how == "on_doubt" else "retry")

    ran = run(one_stage(work, max_attempts=1), ["page-1"])

    error = ran.stage("page-1", "work").error
    assert error.startswith("UsageError: item 'page-1', stage 'work', once('call'): ")
    assert error.endswith("is async: call it from an async handler")
    assert provider.calls == []


# Money ----------------------------------------------------------------------------------------------------------------


@pytest.mark.req("V4")
def test_a_paid_call_leaves_its_intent_before_it_is_made(run: Bench):
    seen: list[Any] = []

    def call() -> str:
        seen.extend((memo.name, memo.state, memo.cost) for memo in outside.memos("page-1"))
        return "done"

    def work(item: Item, ctx: Context) -> Any:
        ctx.once("free", call)
        ctx.once("fixed", call, cost="0.40")
        ctx.once("metered", call, cost=lambda text: Decimal(len(text)) / 10, estimate=1)
        ctx.once("guessed", call, estimate=2)
        raise RuntimeError("to see the memos")

    outside = run.app(one_stage(work))
    ran = run(one_stage(work, max_attempts=1), ["page-1"])

    assert [one for one in seen if one[1] == "intended"] == [
        ("fixed", "intended", None),
        ("metered", "intended", None),
        ("guessed", "intended", None),
    ]
    assert {memo.name: memo.cost and micros(memo.cost) for memo in ran.app.memos("page-1")} == {
        "free": None,
        "fixed": 400_000,
        "metered": 400_000,
        "guessed": None,
    }
    assert charged(ran.app) == [{"pipeline": "p", "stage": "work", "amount": 800_000, "payments": 2}]


def test_a_cost_names_its_resource_and_its_memo(run: Bench, provider: Provider):
    pipeline = one_stage(lambda item, ctx: ctx.once("call", provider, cost=0.1, resource="gemini"))
    with Holdfast(run.url, [pipeline.spec], resources={"gemini": {}}) as app:
        app.register()
    ran = run(pipeline, ["page-1"])

    [cost] = ran.app.calls("page-1")
    assert (micros(cost.amount), cost.resource, cost.name, cost.state) == (100_000, "gemini", "call", "done")
    assert charged(ran.app, ["resource"]) == [{"resource": "gemini", "amount": 100_000, "payments": 1}]


@pytest.mark.req("V4")
@pytest.mark.parametrize("price", [lambda value: value["no such"], lambda value: -1, lambda value: "much"])
def test_a_call_whose_cost_cannot_be_told_is_not_made_again(run: Bench, provider: Provider, price: Any):
    """It was made and paid for: its result is kept, and a person hears of it."""
    pipeline = one_stage(lambda item, ctx: ctx.once("call", provider, cost=price, estimate=0.5), max_attempts=5)
    ran = run(pipeline, ["page-1"])

    assert ran.state("page-1", "work") == "failed"
    assert "once('call'): the result is recorded, but its cost cannot be told" in ran.stage("page-1", "work").error
    assert charged(ran.app, ["item"]) == [{"item": "page-1", "amount": 500_000, "payments": 1}], "the estimate stands"
    ran.app.retry()
    ran = run(pipeline)
    assert ran.state("page-1", "work") == "done"
    assert len(provider.calls) == 1


# In doubt -------------------------------------------------------------------------------------------------------------


@pytest.mark.req("V4")
@pytest.mark.parametrize("how", ["thread", "loop"])
def test_a_paid_call_that_was_begun_and_not_recorded_is_made_again_and_said_to_be_in_doubt(
    run: Bench, provider: Provider, how: str
):
    keys: list[str] = []
    provider.breaks = 1

    def work(item: Item, ctx: Context) -> Any:
        keys.append(ctx.idempotency_key("call"))
        return ctx.once("call", provider, cost=1)

    async def on_the_loop(item: Item, ctx: Context) -> Any:
        keys.append(ctx.idempotency_key("call"))
        return await ctx.once("call", provider.wait, cost=1)

    ran = run(one_stage(on_the_loop if how == "loop" else work), ["page-1"])

    [doubt] = ran.events("in_doubt")
    assert doubt.data == {"memo": "call", "decided": "called again", "idempotency_key": keys[0]}
    assert keys[0] == keys[1]
    assert len(provider.calls) == 2
    assert ran.state("page-1", "work") == "done"


def test_a_call_without_a_price_is_made_again_without_a_word(run: Bench, provider: Provider):
    provider.breaks = 1
    ran = run(one_stage(lambda item, ctx: ctx.once("call", provider)), ["page-1"])

    assert len(provider.calls) == 2
    assert ran.events("in_doubt") == ()


def hold(provider: Provider) -> Pipeline:
    return one_stage(lambda item, ctx: ctx.once("call", provider, cost=1, on_doubt="hold"), max_attempts=5)


@pytest.fixture
def held(run: Bench, provider: Provider) -> Ran:
    provider.breaks = 1
    return run(hold(provider), ["page-1"])


@pytest.mark.req("V4")
def test_a_call_in_doubt_waits_for_a_person_if_it_shall_be_held(held: Ran, provider: Provider):
    stage = held.stage("page-1", "work")
    assert (stage.state, stage.attempts) == ("on_hold", 1), "only the attempt that made the call counts"
    assert "item 'page-1', stage 'work', once('call')" in stage.error
    assert "holdfast why page-1" in stage.error
    assert len(provider.calls) == 1
    assert [memo.state for memo in held.app.memos("page-1")] == ["intended"]


@pytest.mark.req("V4")
def test_a_person_gives_a_held_call_its_result(held: Ran, run: Bench, provider: Provider):
    assert held.app.resolve("page-1", "call", value={"from": "the provider's page"}, by="me", reason="seen") == "work"
    ran = run(hold(provider))

    assert ran.result("page-1", "work") == {"from": "the provider's page"}
    assert len(provider.calls) == 1
    [resolved] = ran.events("resolved")
    assert resolved.data["by"] == "me"


def test_a_person_has_a_held_call_made_again(held: Ran, run: Bench, provider: Provider):
    held.app.resolve("page-1", "call", charged=0)
    ran = run(hold(provider))

    assert ran.state("page-1", "work") == "done"
    assert len(provider.calls) == 2


def test_only_a_call_in_doubt_can_be_resolved(run: Bench, provider: Provider):
    def work(item: Item, ctx: Context) -> Any:
        ctx.once("call", provider)
        raise RuntimeError("after the call")

    app = run(one_stage(work), ["page-1"]).app
    with pytest.raises(UsageError, match="'page-1' has no memo 'other'"):
        app.resolve("page-1", "other", charged=0)
    with pytest.raises(UsageError, match="the memo 'call' is not in doubt"):
        app.resolve("page-1", "call", value=1)


@pytest.mark.req("V4")
@pytest.mark.parametrize("how", ["thread", "loop", "async question"])
def test_a_function_asks_the_provider_what_became_of_a_call_in_doubt(run: Bench, provider: Provider, how: str):
    asked: list[str] = []
    keys: list[str] = []
    provider.breaks = 1

    def ask(key: str) -> Any:
        asked.append(key)
        return {"found": key}

    async def ask_slowly(key: str) -> Any:
        await asyncio.sleep(0)
        return ask(key)

    def work(item: Item, ctx: Context) -> Any:
        keys.append(ctx.idempotency_key("call"))
        return ctx.once("call", provider, cost=1, on_doubt=ask)

    async def on_the_loop(item: Item, ctx: Context) -> Any:
        keys.append(ctx.idempotency_key("call"))
        return await ctx.once("call", provider, cost=1, on_doubt=ask if how == "loop" else ask_slowly)

    ran = run(one_stage(work if how == "thread" else on_the_loop), ["page-1"])

    assert asked == keys[:1]
    assert ran.result("page-1", "work") == {"found": keys[0]}
    assert len(provider.calls) == 1
    [doubt] = ran.events("in_doubt")
    assert doubt.data["decided"] == "the provider was asked"
    assert charged(ran.app, ["item"]) == [{"item": "page-1", "amount": 1_000_000, "payments": 1}]


def _raise_call_again(key: str) -> Any:
    raise CallAgain


@pytest.mark.parametrize(
    "ask", [_raise_call_again, lambda key: CallAgain(), lambda key: CallAgain], ids=["raised", "returned", "class"]
)
@pytest.mark.parametrize("how", ["thread", "loop"])
def test_a_provider_that_knows_nothing_of_a_call_is_called_again(run: Bench, provider: Provider, ask: Any, how: str):
    provider.breaks = 1

    async def on_the_loop(item: Item, ctx: Context) -> Any:
        return await ctx.once("call", provider, cost=1, on_doubt=ask)

    def work(item: Item, ctx: Context) -> Any:
        return ctx.once("call", provider, cost=1, on_doubt=ask)

    ran = run(one_stage(on_the_loop if how == "loop" else work), ["page-1"])

    assert ran.state("page-1", "work") == "done"
    assert len(provider.calls) == 2
    [doubt] = ran.events("in_doubt")
    assert doubt.data["decided"] == "the provider knew nothing, called again"


def test_a_question_that_fails_is_asked_again_and_the_call_is_not_made(run: Bench, provider: Provider):
    provider.breaks = 1
    answers: Iterator[Any] = iter([ConnectionError("no answer"), ConnectionError("no answer"), {"found": 1}])

    def ask(key: str) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    ran = run(one_stage(lambda item, ctx: ctx.once("call", provider, cost=1, on_doubt=ask), max_attempts=5), ["page-1"])

    assert ran.result("page-1", "work") == {"found": 1}
    assert len(provider.calls) == 1


# Keys and versions ----------------------------------------------------------------------------------------------------


def test_an_idempotency_key_belongs_to_one_item_one_stage_and_one_name(run: Bench):
    pipeline = Pipeline("p")

    def work(item: Item, ctx: Context) -> Any:
        first = {name: ctx.idempotency_key(name) for name in ("a", "b")}
        assert first == {name: ctx.idempotency_key(name) for name in ("a", "b")}
        return first

    pipeline.stage(name="first")(work)
    pipeline.stage(name="second", after="first")(work)
    ran = run(pipeline, ["page-1", "page-2"])

    keys = [
        ran.result(key, stage)[name] for key in ("page-1", "page-2") for stage in ("first", "second") for name in "ab"
    ]
    assert len(set(keys)) == 8


@pytest.mark.req("V4", "J13")
def test_an_idempotency_key_outlives_attempts_and_ends_with_a_reprocess(run: Bench):
    """A provider that knows the key would answer a second life with what it said in the first."""
    keys: list[str] = []

    def work(item: Item, ctx: Context) -> Any:
        keys.append(ctx.idempotency_key("call"))
        ctx.once("call", lambda: ctx.idempotency_key("call"), cost=1)
        if len(keys) % 3:
            raise RuntimeError("once more")

    pipeline = one_stage(work, max_attempts=3)
    ran = run(pipeline, ["page-1"])
    ran.app.reprocess("p", stale_only=False)
    ran = run(pipeline)

    assert ran.state("page-1", "work") == "done"
    assert len(keys) == 6
    assert len(set(keys[:3])) == len(set(keys[3:])) == 1
    assert keys[0] != keys[3]


@pytest.mark.req("V4", "J13")
@pytest.mark.parametrize(("compatible", "calls"), [((), 2), (("1",), 1)], ids=["another", "compatible"])
def test_a_memo_of_an_old_version_is_used_only_if_its_results_still_stand(
    run: Bench, provider: Provider, compatible: tuple[str, ...], calls: int
):
    keys: list[str] = []

    def work(item: Item, ctx: Context) -> Any:
        keys.append(ctx.idempotency_key("call"))
        value = ctx.once("call", provider, item.key, cost=1)
        if len(keys) == 1:
            raise RuntimeError("the old code is broken")
        return value

    run(one_stage(work, max_attempts=1), ["page-1"]).app.retry()
    ran = run(one_stage(work, version="2", compatible_from=compatible))

    assert ran.state("page-1", "work") == "done"
    assert len(provider.calls) == calls
    assert (keys[0] == keys[1]) is (calls == 1), "another call has another key"
    assert ran.events("in_doubt") == (), "what was recorded was never in doubt"


@pytest.mark.req("V4")
def test_a_call_in_doubt_is_in_doubt_for_the_next_version_too(run: Bench, provider: Provider):
    provider.breaks = 1
    asked: list[str] = []
    run(one_stage(lambda item, ctx: ctx.once("call", provider, cost=1), max_attempts=1), ["page-1"]).app.retry()
    second = one_stage(lambda item, ctx: ctx.once("call", provider, cost=1, on_doubt=asked.append), version="2")
    ran = run(second)

    [doubt] = ran.events("in_doubt")
    assert doubt.data["decided"] == "called again by version 2"
    assert asked == [], "what the provider knows is an answer to the old version"
    assert len(provider.calls) == 2
    assert ran.state("page-1", "work") == "done"


# The fence ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("V3", "V4")
def test_a_late_workers_memo_is_refused(app: App):
    app.pipeline({"a": []})
    app.add(["page-1"])
    [slow] = app.claim(worker="slow")
    app.clock.advance(31)
    app.reap()
    [fast] = app.claim(worker="fast")
    late = MemoWrite(slow, "call", "done", "1", "key", cost=1_000_000, value='"old"')
    app.store.write(lambda tx: remember(tx, [late]))

    assert late.lost
    assert (
        app.query("SELECT * FROM holdfast_memos")
        == app.query("SELECT * FROM holdfast_events WHERE event = 'cost'")
        == []
    )
    mine = MemoWrite(fast, "call", "done", "1", "key", cost=1_000_000, value='"new"')
    app.store.write(lambda tx: remember(tx, [late, mine]))
    assert (late.lost, mine.lost) == (True, False)
    assert app.query("SELECT value FROM holdfast_memos") == [('"new"',)]


@pytest.mark.req("V3")
@pytest.mark.parametrize("how", KINDS)
def test_a_handler_that_lost_its_lease_hears_of_it_from_once(run: Bench, tmp_path: Any, how: str):
    said, gate = tmp_path / "said", tmp_path / "gate"

    def work(item: Item, ctx: Context) -> Any:
        said.with_name("started").touch()
        wait_for(gate.exists)
        try:
            ctx.once("call", dict, cost=1)
        except LeaseLost as error:
            said.write_text(str(error))
            raise

    async def on_the_loop(item: Item, ctx: Context) -> Any:
        said.with_name("started").touch()
        await asyncio.to_thread(wait_for, gate.exists)
        try:
            await ctx.once("call", dict, cost=1)
        except LeaseLost as error:
            said.write_text(str(error))
            raise

    pipeline = one_stage(on_the_loop if how == "loop" else work, isolate="process" if how == "process" else None)
    with run.serving(pipeline, ["page-1"]) as (_, ran):
        wait_for(said.with_name("started").exists)
        assert ran.app.cancel(key="page-1") == {"in_progress": 1}
        gate.touch()
        wait_for(lambda: ran.events("lease_lost"))

    assert said.read_text().startswith("item 'page-1': the lease of attempt 1 has ended; 'call' is not recorded")
    assert ran.state("page-1", "work") == "cancelled"
    assert ran.app.memos("page-1") == ()


@pytest.mark.fault(26)
@pytest.mark.req("V4")
@pytest.mark.parametrize("kind", Trouble.KINDS)
def test_a_memo_and_its_cost_are_written_once_though_the_transaction_ran_twice(app: App, kind: str):
    app.pipeline({"a": []})
    app.add(["page-1"])
    [lease] = app.claim()
    trouble = Trouble(kind, 2)
    memo = MemoWrite(
        lease, "call", "done", "1", idempotency_key(lease, "call", "1"), cost=5, value="1", doubt="called again"
    )
    write(app.store, lambda tx: remember(tx, [memo]), trouble=trouble)

    assert trouble.fired
    assert not memo.lost
    assert app.query("SELECT name, state, cost, value FROM holdfast_memos") == [("call", "done", 5, "1")]
    assert app.history("page-1") == ["in_doubt"]
    assert app.query("SELECT name, state, amount FROM holdfast_calls") == [("call", "done", 5)]
    assert app.query("SELECT SUM(payments), SUM(amount) FROM holdfast_money") == [(1, 5)]


@pytest.mark.fault(22)
@pytest.mark.req("V3")
def test_a_process_forked_in_a_handler_cannot_use_the_context(run: Bench, provider: Provider):
    def work(item: Item, ctx: Context) -> Any:
        read, wrote = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                ctx.once("call", provider)
            except UsageError as error:
                os.write(wrote, str(error).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(wrote)
        with os.fdopen(read) as said:
            return {"child": said.read(), "parent": ctx.once("call", provider)}

    result = run(one_stage(work), ["page-1"]).result("page-1", "work")

    assert "item 'page-1', stage 'work': a forked process cannot use the context" in result["child"]
    assert result["parent"]["n"] == 1


# Bad input ------------------------------------------------------------------------------------------------------------


BAD_CALLS: dict[str, tuple[Callable[[Context], Any], str]] = {
    "a number as name": (lambda ctx: ctx.once(3, dict), "once(3): a name is a text of 1 to 200 characters"),
    "no name": (lambda ctx: ctx.once("", dict), "once(''): a name is a text"),
    "a name too long": (lambda ctx: ctx.once("x" * 201, dict), "a name is a text of 1 to 200"),
    "a name with NUL": (lambda ctx: ctx.once("a\0b", dict), "a name is a text"),
    "half a character": (lambda ctx: ctx.once("a\ud800", dict), "a name is a text"),
    "no function": (lambda ctx: ctx.once("call", "dict"), "once('call'): 'dict' is not a function"),
    "negative cost": (lambda ctx: ctx.once("call", dict, cost=-1), "once('call'): cost: -1 is negative"),
    "cost in words": (lambda ctx: ctx.once("call", dict, cost="much"), "cost: 'much' is not an amount"),
    "cost of None kind": (lambda ctx: ctx.once("call", dict, cost=[1]), "cost: [1] is not an amount"),
    "true cost": (lambda ctx: ctx.once("call", dict, cost=True), "cost: True is not an amount"),
    "infinite cost": (lambda ctx: ctx.once("call", dict, cost=float("inf")), "cost: inf is not an amount"),
    "no number": (lambda ctx: ctx.once("call", dict, cost=float("nan")), "cost: nan is not an amount"),
    "negative estimate": (lambda ctx: ctx.once("call", dict, estimate=-0.1), "estimate: -0.1 is negative"),
    "unknown policy": (lambda ctx: ctx.once("call", dict, on_doubt="shrug"), "on_doubt='shrug': it is \"retry\""),
    "a resource that is no name": (lambda ctx: ctx.once("call", dict, resource=3), "resource 3 is not a name"),
    "no key name": (lambda ctx: ctx.idempotency_key(None), "idempotency_key(None): a name is a text"),
    "cost() of nothing": (lambda ctx: ctx.cost(None), "cost: None is not an amount"),
    "negative cost()": (lambda ctx: ctx.cost("-0.01"), "cost: '-0.01' is negative"),
    "cost() of a number": (lambda ctx: ctx.cost(1, resource=7), "cost: resource 7 is not a name"),
    "a fact JSON has not": (lambda ctx: ctx.cost(1, facts={"n": {1, 2}}), "cost: facts: a value of type set at n"),
    "facts that are none": (lambda ctx: ctx.cost(1, facts=["x"]), "cost: facts ['x'] are not a mapping"),
    "a model that is no text": (lambda ctx: ctx.cost(1, facts={"model": 4}), "facts: model '4' is not a text"),
    "half a token": (
        lambda ctx: ctx.once("call", dict, facts={"tokens_in": 0.5}),
        "tokens_in 0.5 is not a whole number",
    ),
    "no rejections": (lambda ctx: ctx.once("call", dict, rejections=0), "rejections=0 is not a whole number of 1"),
    "validate is no function": (lambda ctx: ctx.once("call", dict, validate="yes"), "validate='yes' is not a function"),
}


@pytest.mark.req("V12")
def test_what_makes_no_sense_is_refused_with_item_stage_and_argument(run: Bench, provider: Provider):
    """Each fails its own item and nothing else; nothing of it is written."""

    def work(item: Item, ctx: Context) -> Any:
        if item.key in BAD_CALLS:
            BAD_CALLS[item.key][0](ctx)
        return ctx.once("call", provider, item.key)

    ran = run(one_stage(work, max_attempts=1), [*BAD_CALLS, "good"])

    for key, (_, said) in BAD_CALLS.items():
        stage = ran.stage(key, "work")
        assert stage.state == "exhausted", key
        assert stage.error.startswith(f"UsageError: item {key!r}, stage 'work'"), stage.error
        assert said in stage.error, key
        assert ran.app.memos(key) == ()
    assert ran.state("good", "work") == "done"
    assert provider.calls == [("good",)]
    assert charged(ran.app) == []


NO_JSON: dict[str, tuple[Any, str]] = {
    "set": ({1}, "a value of type set: give a list"),
    "number as key": ({1: "a"}, "an object key of type int"),
    "no number": ([Decimal("NaN")], "the value NaN at [0]"),
    "bytes": (b"x", "a value of type bytes"),
    "nan": (float("nan"), "the number nan"),
    "object": (object(), "a value of type object"),
    "NUL": ("a\0b", "a text with a NUL character"),
    "half a character": (["\ud800"], "a text with a lone surrogate"),
}


@pytest.mark.fault(57)
@pytest.mark.req("V12")
def test_a_value_that_has_no_json_form_is_refused_and_the_call_not_repeated(run: Bench):
    """Calling again would bring the same: the item fails at once."""
    calls: Counter[str] = Counter()

    def call(key: str) -> Any:
        calls[key] += 1
        return NO_JSON[key][0]

    pipeline = one_stage(lambda item, ctx: ctx.once("call", call, item.key), max_attempts=5)
    ran = run(pipeline, list(NO_JSON))

    for key, (_, said) in NO_JSON.items():
        stage = ran.stage(key, "work")
        assert (stage.state, stage.attempts) == ("failed", 1), stage
        assert f"item {key!r}, stage 'work', once('call'): the result cannot be kept: {said}" in stage.error
    assert set(calls.values()) == {1}


@pytest.mark.fault(57)
def test_a_value_is_the_same_at_once_and_after_a_resume(run: Bench):
    values = [None, True, 0, -1, 2**62, 2**80, 0.1, 1e300, "", "ä€😀", [], {}, [[1], {"a": None}], {"": {"b": [1.5]}}]
    seen: list[Any] = []

    def work(item: Item, ctx: Context) -> Any:
        got = [ctx.once(str(n), lambda value=value: value) for n, value in enumerate(values)]
        seen.append([(type(one), one) for one in got])
        if ctx.attempt == 1:
            raise RuntimeError("once more")

    run(one_stage(work), ["page-1"])
    assert seen[0] == seen[1] == [(type(value), value) for value in values]


@pytest.mark.fault(56)
@pytest.mark.req("V12")
@pytest.mark.parametrize("how", ["thread", "process"])
def test_a_huge_value_ends_the_item_with_a_limit_error(run: Bench, how: str):
    def work(item: Item, ctx: Context) -> Any:
        return ctx.once("call", lambda: {"text": "x" * 200_000_000})["text"][:10]

    ran = run(one_stage(work, isolate="process" if how == "process" else None), ["page-1"])

    stage = ran.stage("page-1", "work")
    assert (stage.state, stage.attempts) == ("failed", 1)
    assert "the result cannot be kept: over 200,000,000 bytes; the limit is" in stage.error
