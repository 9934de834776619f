"""Recorded answers that are no good: validated, rejected, forgotten, taken back, and bought again as often as is allowed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, Item, Pipeline, Rejected, UsageError, points
from holdfast.model.money import micros
from tests.support.bench import QUICK, Bench, Ran
from tests.support.money import charged
from tests.support.processes import wait_for
from tests.support.together import listening

pytestmark = pytest.mark.req("P1")

PRICE = 400_000


class Answers:
    """A provider whose answers are given in turn; the last one is given for good."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.calls = 0
        self.keys: list[str] = []

    def __call__(self, key: str = "") -> Any:
        self.calls += 1
        self.keys.append(key)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def one_stage(handler: Callable[..., Any], **settings: Any) -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.stage(**{"name": "work", "max_attempts": 5, "backoff": QUICK, **settings})(handler)
    return pipeline


def validated(provider: Any, validate: Callable[[Any], Any], **more: Any) -> Pipeline:
    def work(item: Item, ctx: Context) -> Any:
        return ctx.once("call", provider, ctx.idempotency_key("call"), cost=0.40, validate=validate, **more)

    return one_stage(work)


def ledger(ran: Ran, key: str = "page-1") -> list[tuple[str, str, int]]:
    return [(call.name, call.state, micros(call.amount)) for call in ran.app.calls(key)]


def refuses(text: str) -> Any:
    raise Rejected("no such language")


SAYS_NO: dict[str, Callable[[Any], Any]] = {
    "False": lambda text: text == "{}",
    "Rejected": lambda text: text == "{}" or refuses(text),
    "ValueError": json.loads,
}


@pytest.mark.parametrize("how", SAYS_NO)
def test_a_rejected_answer_fails_the_attempt_and_the_next_one_calls_again(run: Bench, how: str):
    provider = Answers("{torn", "{}")
    ran = run(validated(provider, SAYS_NO[how]), ["page-1"])

    assert (ran.result("page-1", "work"), ran.stage("page-1", "work").attempts) == ("{}", 2)
    assert provider.calls == 2
    assert provider.keys[0] != provider.keys[1], "a provider would answer the same key with the same answer"
    assert ledger(ran) == [("call", "rejected", PRICE), ("call", "done", PRICE)]
    assert charged(ran.app, ["item"]) == [{"item": "page-1", "amount": 2 * PRICE, "payments": 2}]
    [first, _] = ran.app.calls("page-1")
    assert first.value == "{torn" and first.reason
    [failed] = ran.events("attempt_failed")
    assert "the answer was rejected" in failed.data["error"]
    assert ran.events("in_doubt") == ()


def test_a_recorded_answer_is_validated_by_a_later_attempt_too(run: Bench):
    """The check may be newer than the answer."""
    provider = Answers("old", "new")
    checks: list[bool] = []

    def work(item: Item, ctx: Context) -> Any:
        validate = (lambda text: text == "new") if checks else None
        answer = ctx.once("call", provider, cost=0.40, validate=validate)
        if not checks:
            checks.append(True)
            raise RuntimeError("after the call")
        return answer

    ran = run(one_stage(work), ["page-1"])
    assert (ran.result("page-1", "work"), provider.calls) == ("new", 2)


def test_a_mistake_in_validate_leaves_the_record(run: Bench):
    provider = Answers("good")
    mistakes = iter([True])

    def validate(text: str) -> None:
        if next(mistakes, False):
            raise KeyError("a typo in the check")

    ran = run(validated(provider, validate), ["page-1"])
    assert (ran.result("page-1", "work"), provider.calls) == ("good", 1)
    assert ledger(ran) == [("call", "done", PRICE)]


@pytest.mark.parametrize(("given", "most"), [({}, 3), ({"rejections": 2}, 2)])
def test_buying_again_is_bounded(run: Bench, given: dict[str, int], most: int):
    provider = Answers("bad")
    ran = run(validated(provider, lambda text: False, **given), ["page-1"])

    assert (ran.state("page-1", "work"), provider.calls) == ("failed", most)
    assert f"its answer was rejected {most} times" in ran.stage("page-1", "work").error
    ran.app.retry()
    run(validated(provider, lambda text: False, **given))
    assert provider.calls == 2 * most, "whoever retries it allows for as many again"


def test_rejections_of_several_items_in_a_row_open_the_breaker(run: Bench):
    provider = Answers("bad")
    pipeline = Pipeline("p", resources={"api": {"breaker": {"failures": 4, "probe_after": "1h"}, "concurrency": 1}})

    @pipeline.stage(name="work", resource="api", backoff=QUICK)
    def work(item: Item, ctx: Context) -> Any:
        return ctx.once("call", provider, cost=0.40, validate=lambda text: False, rejections=1)

    with Holdfast(run.url, [pipeline.spec], resources=pipeline.resources) as app:
        app.add("p", [f"page-{n}" for n in range(20)])
    with run.serving(pipeline) as (_, ran):
        wait_for(lambda: ran.events("breaker_opened"))
        assert provider.calls <= 5


def test_a_handler_forgets_an_answer_and_calls_again(run: Bench):
    provider = Answers("bad", "good")
    seen: list[Any] = []

    def work(item: Item, ctx: Context) -> Any:
        answer = ctx.once("call", provider, cost=0.40)
        seen.append(answer)
        if answer == "bad":
            assert ctx.forget("call", "not a word of it")
            answer = ctx.once("call", provider, cost=0.40)
        assert not ctx.forget("another")
        return answer

    ran = run(one_stage(work), ["page-1"])
    assert (ran.result("page-1", "work"), seen, provider.calls) == ("good", ["bad"], 2)
    assert [(call.state, call.reason) for call in ran.app.calls("page-1")] == [
        ("rejected", "not a word of it"),
        ("done", None),
    ]


def test_an_async_handler_forgets_too(run: Bench):
    provider = Answers("bad", "good")

    async def work(item: Item, ctx: Context) -> Any:
        await ctx.once("call", provider, cost=0.40)
        assert await ctx.forget("call")
        return await ctx.once("call", provider, cost=0.40)

    ran = run(one_stage(work), ["page-1"])
    assert (ran.result("page-1", "work"), provider.calls) == ("good", 2)


def test_a_handler_that_forgets_and_calls_for_ever_is_stopped(run: Bench):
    provider = Answers("bad")

    def work(item: Item, ctx: Context) -> Any:
        while ctx.once("call", provider, cost=0.40) == "bad":
            ctx.forget("call")

    ran = run(one_stage(work), ["page-1"])
    assert (ran.state("page-1", "work"), provider.calls) == ("failed", 3)


@pytest.fixture
def exhausted(run: Bench) -> tuple[Ran, Pipeline, Answers]:
    """A malformed answer that every attempt reads again."""
    provider = Answers("{torn", "{torn", "{}")
    pipeline = one_stage(lambda item, ctx: json.loads(ctx.once("call", provider, cost=0.40)), max_attempts=2)
    return run(pipeline, ["page-1", "page-2"]), pipeline, provider


def test_why_of_an_exhausted_stage_says_that_its_answers_are_used_again(exhausted: Any):
    ran, _, provider = exhausted
    answer = ran.app.why("page-1")
    assert (answer.reason, provider.calls) == ("exhausted", 2)
    assert "a retry uses the recorded answer of 'call' again" in answer.text
    assert "holdfast retry --forget" in answer.do


def test_a_person_forgets_an_answer_and_the_next_attempt_calls_again(exhausted: Any, run: Bench):
    ran, pipeline, provider = exhausted
    assert ran.app.forget(key="page-1", dry_run=True) == {"p/work": 1}
    assert ran.app.forget(key="page-1", by="me", reason="torn") == {"p/work": 1}
    assert ran.app.forget(key="page-1") == {}, "it is forgotten already"
    [event] = ran.events("answer_rejected")
    assert (event.item, event.data["by"], event.data["reason"]) == ("page-1", "me", "torn")
    ran.app.retry(key="page-1")
    ran = run(pipeline)
    assert (ran.result("page-1", "work"), provider.calls) == ({}, 3)
    assert ran.state("page-2", "work") == "exhausted"
    assert ledger(ran) == [("call", "rejected", PRICE), ("call", "done", PRICE)]


def test_answers_are_forgotten_by_the_error_that_they_led_to(exhausted: Any):
    ran, _, _ = exhausted
    assert ran.app.forget(error="no such error") == {}
    assert ran.app.forget(memo="another") == {}
    assert ran.app.forget(error="JSONDecodeError") == {"p/work": 2}


def test_a_forgotten_answer_can_be_taken_back(exhausted: Any, run: Bench):
    ran, pipeline, provider = exhausted
    ran.app.forget(key="page-1")
    assert ran.app.forget(key="page-1", undo=True) == {"p/work": 1}
    assert [(memo.state, memo.value, memo.rejections) for memo in ran.app.memos("page-1")] == [("done", "{torn", 0)]
    assert ledger(ran) == [("call", "done", PRICE)]
    ran.app.retry(key="page-1")
    run(pipeline)
    assert provider.calls == 2, "the recorded answer is used again"


def test_the_answer_of_work_in_progress_is_not_forgotten(run: Bench):
    provider = Answers("good")
    gate: list[bool] = []

    def work(item: Item, ctx: Context) -> Any:
        answer = ctx.once("call", provider, cost=0.40)
        wait_for(lambda: gate)
        return answer

    with run.serving(one_stage(work), ["page-1"]) as (_, ran):
        wait_for(lambda: ledger(ran) == [("call", "done", PRICE)])
        assert ran.app.forget(key="page-1") == {}
        gate.append(True)
        wait_for(lambda: ran.state("page-1", "work") == "done")


@pytest.mark.req("P3")
def test_a_paid_answer_that_cannot_be_kept_is_kept_as_text_and_stops_the_stage(run: Bench):
    """One wrong answer is paid for, not two hundred."""
    calls: list[str] = []

    def call(key: str) -> Any:
        calls.append(key)
        return b"not JSON"

    def work(item: Item, ctx: Context) -> Any:
        return ctx.once("call", call, item.key, cost=0.40)

    with run.serving(one_stage(work), [f"page-{n}" for n in range(200)], concurrency=1) as (_, ran):
        wait_for(lambda: ran.events("paused"))
        wait_for(lambda: not ran.states("work").get("in_progress"))
        [event] = ran.events("paused")
        assert event.stage == "work" and "the answer is paid for and cannot be kept" in event.data["reason"]
    assert len(calls) == 1
    assert ran.state(calls[0], "work") == "failed"
    [paid] = ran.app.calls(calls[0])
    assert (paid.state, micros(paid.amount), paid.value) == ("rejected", PRICE, "not JSON")
    assert charged(ran.app, ["stage"])[0]["amount"] == len(calls) * PRICE
    answer = ran.app.why("page-199")
    assert (answer.reason, "holdfast resume p/work" in answer.do) == ("paused", True)


@pytest.mark.req("P3", "V4")
def test_the_text_of_an_answer_that_cannot_be_kept_is_at_no_moment_recorded_as_an_answer(run: Bench):
    """A worker that dies in between would leave it to the next attempt."""
    states: list[str] = []

    def listener(point: str) -> None:
        if point == "store.save_memos":
            states.extend(row[3] for row in points.about()[0])

    with listening(listener):
        ran = run(one_stage(lambda item, ctx: ctx.once("call", lambda: b"not JSON", cost=0.40)), ["page-1"])
    assert states == ["intended", "rejected"]
    [memo] = ran.app.memos("page-1")
    assert (memo.state, micros(memo.cost), memo.rejections) == ("rejected", PRICE, 1)
    assert charged(ran.app, ["item"]) == [{"item": "page-1", "amount": PRICE, "payments": 1}]


@pytest.mark.req("P3")
def test_a_forgotten_await_is_free_and_named(run: Bench):
    async def call() -> str:
        return "never"

    ran = run(one_stage(lambda item, ctx: ctx.once("call", lambda: call(), cost=0.40), max_attempts=1), ["page-1"])
    assert "is async: call it from an async handler" in ran.stage("page-1", "work").error
    assert ledger(ran) == [("call", "not_charged", 0)]


@pytest.mark.req("P12")
def test_facts_of_calls_are_summed_by_model(run: Bench):
    def work(item: Item, ctx: Context) -> Any:
        usage = {"text": "…", "tokens": [800, 12]}
        ctx.once(
            "call",
            lambda: usage,
            cost=0.40,
            facts=lambda answer: {
                "model": "large",
                "tokens_in": answer["tokens"][0],
                "tokens_out": answer["tokens"][1],
            },
        )
        ctx.cost(0.1, facts={"model": "small", "tokens_in": 5, "region": "eu"})

    ran = run(one_stage(work), ["page-1", "page-2"])
    told = {one.model: (micros(one.costs), one.tokens_in, one.tokens_out) for one in ran.app.costs(["model"]).sums}
    assert told == {"large": (800_000, 1600, 24), "small": (200_000, 10, 0)}


def test_a_stage_caps_what_one_item_may_cost(run: Bench):
    made: list[str] = []

    def work(item: Item, ctx: Context) -> Any:
        for n in range(5):
            ctx.once(f"page {n}", lambda n=n: made.append(f"{item.key} {n}"), cost=0.40)

    ran = run(one_stage(work, max_cost=1), ["book"])
    assert made == ["book 0", "book 1"]
    assert ran.state("book", "work") == "failed"
    assert "may cost 1.00 per item: 0.80 are spent, and 0.40 more would be too much" in ran.stage("book", "work").error
    assert charged(ran.app, ["item"]) == [{"item": "book", "amount": 800_000, "payments": 2}]


def test_doubts_are_resolved_by_filter(run: Bench):
    def work(item: Item, ctx: Context) -> Any:
        def call() -> None:
            raise TimeoutError("no answer")

        ctx.once("call", call, cost=0.40)

    ran = run(one_stage(work, max_attempts=1), [f"page-{n}" for n in range(5)])
    [total] = ran.app.costs(["pipeline"]).sums
    assert (micros(total.spent), micros(total.costs), micros(total.in_doubt), total.doubts) == (
        5 * PRICE,
        0,
        5 * PRICE,
        5,
    )
    assert ran.app.resolve_many(charged=0, key="page-0", dry_run=True) == {"p/work": 1}
    assert ran.app.resolve_many(charged=0, key="page-0", by="me") == {"p/work": 1}
    assert ran.app.resolve_many(charged="0.38") == {"p/work": 4}
    [total] = ran.app.costs(["pipeline"]).sums
    assert (micros(total.spent), micros(total.costs), micros(total.in_doubt)) == (4 * 380_000, 4 * 380_000, 0)
    assert ran.app.memos("page-1") == (), "the next attempt calls again, without a doubt"
    with pytest.raises(UsageError, match="negative"):
        ran.app.resolve_many(charged=-1)
