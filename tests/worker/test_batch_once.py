"""ctx.once of a batch: one call for many items, recorded for each, paid once, its price shared."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import BatchContext, CallAgain, Item, Permanent, Pipeline, Rejected, UsageError
from holdfast.answers import ResourceLimit
from holdfast.model.money import micros
from tests.support.bench import QUICK, Bench, Ran
from tests.support.money import charged
from tests.support.processes import wait_for
from tests.support.steps import ask

pytestmark = pytest.mark.req("V4")

KEYS = [f"page-{n}" for n in range(5)]
KINDS = ("thread", "loop", "process")
#: Of one call, however many items it is for: three do not share it evenly.
PRICE = 1_000_000


class Provider:
    """Embeds lists of texts, and notes in a file which: it may be called in a child process."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self.answers: Callable[[list[str]], Any] = lambda keys: [f"vector of {key}" for key in keys]

    def __call__(self, items: Sequence[Item], *args: Any) -> Any:
        keys = [item.key for item in items]
        with self._notes.open("a") as file:
            file.write(json.dumps(keys) + "\n")
        return self.answers(keys)

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self._notes.read_text().splitlines()] if self._notes.exists() else []


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return Provider(tmp_path / "calls")


def embedding(provider: Any, *, kind: str = "thread", then: Callable[..., Any] | None = None, **how: Any) -> Pipeline:
    """A stage that embeds its items in batches; `then` sees the answers before they are returned as verdicts."""
    settings = {name: how.pop(name) for name in ("max_attempts", "batch") if name in how}
    price = {"cost": 1, **how}

    def embed(items: list[Item], ctx: BatchContext) -> Any:
        answers = ctx.once("vector", provider, items, **price)
        return answers if then is None else then(items, ctx, answers)

    async def embed_async(items: list[Item], ctx: BatchContext) -> Any:
        answers = await ctx.once("vector", provider, items, **price)
        return answers if then is None else then(items, ctx, answers)

    pipeline = Pipeline("p", resources={"api": {}})
    pipeline.stage(
        **{
            "name": "embed",
            "batch": 5,
            "max_attempts": 5,
            "backoff": QUICK,
            "isolate": "process" if kind == "process" else None,
            **settings,
        }
    )(embed_async if kind == "loop" else embed)
    return pipeline


def shares(ran: Ran, state: str = "done") -> dict[str, int]:
    """What each item has paid, or may have paid."""
    return {key: sum(micros(call.amount) for call in ran.app.calls(key) if call.state == state) for key in KEYS}


@pytest.mark.parametrize("kind", KINDS)
def test_one_call_is_made_for_a_batch_and_its_price_is_shared_to_the_last_millionth(
    run: Bench, provider: Provider, kind: str
):
    tokens = {"tokens_in": 13, "tokens_out": 8, "tokens_cached": 7, "tokens_reasoning": 2}
    facts = {"model": "small", "region": "eu", **tokens}
    ran = run(embedding(provider, kind=kind, batch=3, facts=facts), KEYS[:3])

    assert provider.calls == [KEYS[:3]]
    assert {key: ran.result(key, "embed") for key in KEYS[:3]} == {key: f"vector of {key}" for key in KEYS[:3]}
    assert charged(ran.app) == [{"pipeline": "p", "stage": "embed", "amount": PRICE, "payments": 1}]
    by_item = {one.item: micros(one.costs) for one in ran.app.costs(["item"]).sums}
    assert sorted(by_item.values()) == [333_333, 333_333, 333_334]
    [by_model] = ran.app.costs(["model"]).sums
    assert {name: getattr(by_model, name) for name in tokens} == tokens
    [view] = ran.app.store.read(
        lambda tx: ask(tx, f"SELECT {', '.join(f'SUM({n})' for n in tokens)} FROM holdfast_costs")
    )
    assert [*map(int, view)] == [*tokens.values()]
    assert sorted(ran.app.calls(key)[0].facts["tokens_in"] for key in KEYS[:3]) == [4, 4, 5]
    assert ran.events("in_doubt") == ran.events("money_in_doubt") == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_that_groups_the_items_anew_calls_only_for_those_without_a_record(
    run: Bench, provider: Provider, kind: str
):
    def then(items: list[Item], ctx: BatchContext, answers: list[Any]) -> list[Any]:
        if any(ctx.of(item).attempt == 1 for item in items):
            raise RuntimeError("after the call")
        return answers

    pipeline = embedding(provider, kind=kind, then=then)
    ran = run(pipeline, KEYS)
    assert provider.calls == [KEYS]
    assert ran.states("embed") == {"done": 5}
    assert charged(ran.app, ["pipeline"]) == [{"pipeline": "p", "amount": PRICE, "payments": 1}]


@pytest.mark.parametrize("how", ["returns them", "raises the first"])
def test_a_call_in_doubt_that_is_held_holds_its_own_items_and_no_others(run: Bench, provider: Provider, how: str):
    def then(items: list[Item], ctx: BatchContext, answers: list[Any]) -> list[Any]:
        if how != "returns them" and (wrong := [one for one in answers if isinstance(one, BaseException)]):
            raise wrong[0]
        return answers

    def breaks(keys: list[str]) -> Any:
        raise RuntimeError("nobody knows whether it was made")

    works, provider.answers = provider.answers, breaks
    pipeline = embedding(provider, then=then, on_doubt="hold")
    assert run(pipeline, KEYS[:2]).states("embed") == {"on_hold": 2}
    provider.answers = works
    ran = run(pipeline, KEYS[2:])
    assert ran.states("embed") == {"on_hold": 2, "done": 3}
    ran.app.resolve(KEYS[0], "vector", charged=0)
    ran = run(pipeline)
    assert ran.states("embed") == {"done": 5}
    assert [sorted(call) for call in provider.calls[:2]] == [KEYS[:2], KEYS[2:]]
    assert sorted(key for call in provider.calls[2:] for key in call) == KEYS[:2]


def test_items_with_and_without_a_record_may_share_a_batch(run: Bench, provider: Provider):
    broken = {"now": True}

    def then(items: list[Item], ctx: BatchContext, answers: list[Any]) -> list[Any]:
        return [RuntimeError("after the call") if broken["now"] else answer for answer in answers]

    pipeline = embedding(provider, then=then, max_attempts=1)
    ran = run(pipeline, KEYS[:2])
    assert ran.states("embed") == {"exhausted": 2}
    broken["now"] = False
    ran.app.add("p", KEYS[2:])
    ran.app.retry()
    ran = run(pipeline)
    assert sorted(key for call in provider.calls for key in call) == KEYS
    assert {key: ran.result(key, "embed") for key in KEYS} == {key: f"vector of {key}" for key in KEYS}


def test_answers_may_come_by_key_and_one_that_is_missing_is_rejected_for_its_item_alone(run: Bench, provider: Provider):
    provider.answers = lambda keys: {key: key.upper() for key in reversed(keys) if key != "page-1" or len(keys) == 1}
    ran = run(embedding(provider), KEYS)

    assert provider.calls == [KEYS, ["page-1"]]
    assert {key: ran.result(key, "embed") for key in KEYS} == {key: key.upper() for key in KEYS}
    assert [ran.stage(key, "embed").attempts for key in KEYS] == [1, 2, 1, 1, 1]
    assert charged(ran.app) == [{"pipeline": "p", "stage": "embed", "amount": 2 * PRICE, "payments": 2}]
    assert [(call.state, micros(call.amount), call.reason) for call in ran.app.calls("page-1")] == [
        ("rejected", 200_000, "the call returned no answer for this item"),
        ("done", PRICE, None),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_is_rejected_is_rejected_for_its_item_alone(run: Bench, provider: Provider, kind: str):
    provider.answers = lambda keys: ["torn" if key == "page-3" and len(keys) > 1 else "good" for key in keys]
    ran = run(embedding(provider, kind=kind, validate=lambda text: text != "torn"), KEYS)

    assert provider.calls == [KEYS, ["page-3"]]
    assert ran.states("embed") == {"done": 5}
    assert [ran.stage(key, "embed").attempts for key in KEYS] == [1, 1, 1, 2, 1]
    [first, second] = ran.app.calls("page-3")
    assert (first.state, micros(first.amount), first.value) == ("rejected", 200_000, "torn")
    assert (second.state, micros(second.amount)) == ("done", PRICE)
    assert charged(ran.app) == [{"pipeline": "p", "stage": "embed", "amount": 2 * PRICE, "payments": 2}]


def test_rejections_are_bounded_also_if_the_handler_cannot_cope_with_an_exception_in_the_list(
    run: Bench, provider: Provider
):
    """Alone in its batch the item gets the exception itself."""
    provider.answers = lambda keys: [{"torn": key == "page-3"} for key in keys]
    pipeline = embedding(
        provider,
        validate=lambda answer: not answer["torn"],
        max_attempts=20,
        then=lambda items, ctx, answers: [answer["torn"] for answer in answers],
    )
    ran = run(pipeline, KEYS)
    assert ran.states("embed") == {"done": 4, "failed": 1}
    assert "its answer was rejected 3 times" in ran.stage("page-3", "embed").error
    assert provider.calls == [KEYS, ["page-3"], ["page-3"]]


WRONG: dict[str, tuple[Callable[[list[str]], Any], str]] = {
    "too few": (lambda keys: keys[1:], "4 answers for 5 items"),
    "too many": (lambda keys: [*keys, "more"], "6 answers for 5 items"),
    "a text": (lambda keys: "-----", "a str for 5 items"),
    "a set": (lambda keys: {*keys}, "a set for 5 items"),
    "nothing": (lambda keys: None, "a NoneType for 5 items"),
    "another key": (lambda keys: {"page-9": 1}, "an answer for 'page-9'"),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_number_of_answers_is_paid_kept_as_text_and_stops_the_stage(run: Bench, provider: Provider, how: str):
    provider.answers, said = WRONG[how]
    ran = run(embedding(provider), KEYS)

    assert provider.calls == [KEYS]
    assert ran.states("embed") == {"failed": 5}
    assert f"once('vector'): Provider returned {said}; what it" in _plain(ran.stage("page-2", "embed").error, provider)
    assert [(event.stage, event.data["by"]) for event in ran.events("paused")] == [("embed", "holdfast")]
    assert shares(ran, "rejected") == dict.fromkeys(KEYS, 200_000)
    assert charged(ran.app) == [{"pipeline": "p", "stage": "embed", "amount": PRICE, "payments": 1}]
    kept = [call.value for key in KEYS for call in ran.app.calls(key)]
    assert [value is None for value in kept] == [False, True, True, True, True]

    provider.answers = lambda keys: keys
    ran.app.resume("p/embed")
    ran.app.retry()
    assert run(embedding(provider)).states("embed") == {"done": 5}


def _plain(error: str, provider: Provider) -> str:
    return error.replace(repr(provider), "Provider")


def test_an_unpaid_call_with_a_wrong_number_of_answers_fails_its_items_and_records_nothing(
    run: Bench, provider: Provider
):
    provider.answers = lambda keys: keys[1:]
    ran = run(embedding(provider, cost=None), KEYS)
    assert ran.states("embed") == {"failed": 5}
    assert [ran.app.memos(key) for key in KEYS] == [()] * 5
    assert ran.events("paused") == ()


def test_an_answer_that_cannot_be_kept_is_kept_as_text_and_the_others_are_recorded(run: Bench, provider: Provider):
    provider.answers = lambda keys: [b"x" if key == "page-0" else key for key in keys]
    ran = run(embedding(provider), KEYS)
    assert ran.states("embed") == {"failed": 5}
    assert {key: [memo.state for memo in ran.app.memos(key)] for key in KEYS} == {
        key: ["rejected" if key == "page-0" else "done"] for key in KEYS
    }
    provider.answers = lambda keys: keys
    ran.app.resume("p/embed")
    ran.app.retry()
    ran = run(embedding(provider))
    assert (ran.states("embed"), provider.calls) == ({"done": 5}, [KEYS, ["page-0"]])


def test_a_call_that_the_provider_refused_is_free_for_all_items(run: Bench, provider: Provider):
    refusals = iter([True])

    def answers(keys: list[str]) -> list[str]:
        if next(refusals, False):
            raise ConnectionRefusedError("nobody listens")
        return keys

    provider.answers = answers
    ran = run(embedding(provider), KEYS)
    assert ran.states("embed") == {"done": 5}
    assert {call.state for key in KEYS for call in ran.app.calls(key)} == {"not_charged", "done"}
    assert ran.events("in_doubt") == ran.events("money_in_doubt") == ()


# In doubt -------------------------------------------------------------------------------------------------------------


def doubtful(run: Bench, provider: Provider, **how: Any) -> tuple[Ran, Pipeline]:
    """A batch whose call broke off, so that nobody knows whether it was charged."""
    breaks = iter([True])

    def answers(keys: list[str]) -> list[str]:
        if next(breaks, False):
            raise TimeoutError("no reply")
        return [f"vector of {key}" for key in keys]

    provider.answers = answers
    pipeline = embedding(provider, **how)
    return run(pipeline, KEYS), pipeline


def test_a_call_in_doubt_is_one_doubt_and_each_item_says_what_was_decided(run: Bench, provider: Provider):
    ran, _ = doubtful(run, provider)

    assert ran.states("embed") == {"done": 5}
    assert sorted(provider.calls[1:]) == [[key] for key in KEYS], "who broke off a batch is tried alone"
    [told] = ran.app.costs().sums
    assert (told.doubts, micros(told.in_doubt), told.payments, micros(told.costs)) == (1, PRICE, 5, 5 * PRICE)
    assert told.spent == told.costs + told.in_doubt
    assert ran.app.costs(since=datetime(2020, 1, 1, tzinfo=UTC)).sums == (told,), (
        "the ledger itself adds up to the sums"
    )
    assert shares(ran, "doubtful") == dict.fromkeys(KEYS, 200_000)
    assert {event.item for event in ran.events("in_doubt")} == {*KEYS}


def test_the_one_doubt_is_resolved_for_all_its_items(run: Bench, provider: Provider):
    ran, pipeline = doubtful(run, provider, on_doubt="hold")
    assert ran.states("embed") == {"on_hold": 5}
    assert provider.calls == [KEYS]
    assert ran.app.resolve_many(charged="0.7", key="page-2", dry_run=True) == {"p/embed": 1}
    assert ran.app.resolve_many(charged="0.7", dry_run=True) == {"p/embed": 1}

    assert ran.app.resolve("page-2", "vector", charged="0.7", by="me") == "embed"
    assert [ran.app.memos(key) for key in KEYS] == [()] * 5
    assert shares(ran) == dict.fromkeys(KEYS, 140_000)
    assert charged(ran.app) == [{"pipeline": "p", "stage": "embed", "amount": 700_000, "payments": 1}]
    assert {event.item for event in ran.events("resolved")} == {*KEYS}
    assert ran.app.resolve_many(charged=0) == {}
    assert run(pipeline).states("embed") == {"done": 5}


@pytest.mark.parametrize("which", [{}, {"key": "page-4"}], ids=["all", "by one of its items"])
def test_a_filter_settles_the_whole_call_once(run: Bench, provider: Provider, which: dict[str, str]):
    ran, _ = doubtful(run, provider, on_doubt="hold")
    assert ran.app.resolve_many(charged=0, **which) == {"p/embed": 1}
    assert {call.state for key in KEYS for call in ran.app.calls(key)} == {"not_charged"}
    assert [ran.app.memos(key) for key in KEYS] == [()] * 5
    assert charged(ran.app) == []


def test_an_answer_that_a_person_gives_is_that_of_one_item(run: Bench, provider: Provider):
    ran, pipeline = doubtful(run, provider, on_doubt="hold")
    ran.app.resolve("page-2", "vector", value="from the log", charged=1)
    assert charged(ran.app) == [{"pipeline": "p", "stage": "embed", "amount": PRICE, "payments": 1}]
    ran.app.resolve("page-3", "vector", value="from the log, too")
    assert charged(ran.app) == [{"pipeline": "p", "stage": "embed", "amount": PRICE, "payments": 1}]
    ran.app.resolve("page-4", "vector", charged=0)
    assert {key: [memo.state for memo in ran.app.memos(key)] for key in KEYS} == {
        "page-0": [],
        "page-1": [],
        "page-2": ["done"],
        "page-3": ["done"],
        "page-4": [],
    }
    ran.app.retry()
    ran = run(pipeline)
    assert (ran.result("page-2", "embed"), ran.result("page-3", "embed")) == ("from the log", "from the log, too")
    assert ran.result("page-4", "embed") == "vector of page-4"


@pytest.mark.parametrize("knows", [True, False], ids=["it knows", "it knows nothing"])
def test_the_provider_is_asked_about_the_call_and_told_which_of_its_items_are_here(
    run: Bench, provider: Provider, knows: bool
):
    asked: list[tuple[str, list[str]]] = []

    def ask(key: str, items: list[Item]) -> Any:
        asked.append((key, [item.key for item in items]))
        return [f"found {item.key}" for item in items] if knows else CallAgain()

    ran, _ = doubtful(run, provider, on_doubt=ask)
    assert len({key for key, _ in asked}) == 1, "one call, one key"
    assert sorted(keys for _, keys in asked) == [[key] for key in KEYS]
    assert ran.states("embed") == {"done": 5}
    assert ran.result("page-1", "embed") == ("found page-1" if knows else "vector of page-1")
    payments = (PRICE, 1) if knows else (5 * PRICE, 5)
    assert charged(ran.app) == [{"pipeline": "p", "stage": "embed", "amount": payments[0], "payments": payments[1]}]
    assert len(provider.calls) == (1 if knows else 6)


# Leases and limits ----------------------------------------------------------------------------------------------------


@pytest.mark.req("V3", "V13")
@pytest.mark.parametrize("kind", KINDS)
def test_an_item_whose_lease_was_lost_during_the_call_is_not_recorded_but_its_money_is(
    run: Bench, provider: Provider, tmp_path: Path, kind: str
):
    gate = tmp_path / "gate"

    def answers(keys: list[str]) -> list[str]:
        wait_for(gate.exists)
        return keys

    provider.answers = answers
    seen = tmp_path / "seen"

    def then(items: list[Item], ctx: BatchContext, answers: list[Any]) -> list[Any]:
        seen.write_text(json.dumps([type(answer).__name__ for answer in answers]))
        return answers

    with run.serving(embedding(provider, kind=kind, then=then), KEYS) as (_, ran):
        wait_for(lambda: provider.calls)
        assert ran.app.cancel(key="page-0") == {"in_progress": 1}
        [told] = ran.app.costs().sums
        assert (micros(told.in_doubt), micros(told.costs)) == (200_000, 0)
        with pytest.raises(UsageError, match="the call 'vector' may be under way"):
            ran.app.resolve("page-0", "vector", charged=0)
        assert ran.app.resolve_many(charged=0) == {}
        gate.touch()
        wait_for(lambda: ran.states("embed").get("done") == 4)

    assert json.loads(seen.read_text()) == ["LeaseLost", "str", "str", "str", "str"]
    assert ran.state("page-0", "embed") == "cancelled"
    assert [memo.state for memo in ran.app.memos("page-0")] == ["intended"]
    assert shares(ran) == dict.fromkeys(KEYS, 200_000)
    assert charged(ran.app) == [{"pipeline": "p", "stage": "embed", "amount": PRICE, "payments": 1}]


@pytest.mark.req("V13")
def test_an_item_that_is_deleted_during_the_call_leaves_its_share_and_nothing_else(run: Bench, provider: Provider):
    gate = threading.Event()

    def answers(keys: list[str]) -> list[str]:
        assert gate.wait(20)
        return keys

    provider.answers = answers
    with run.serving(embedding(provider, facts={"model": "small", "secret": "x"}), KEYS) as (_, ran):
        wait_for(lambda: provider.calls)
        assert ran.app.delete(key="page-0") == {"p": 1}
        gate.set()
        wait_for(lambda: ran.states("embed").get("done") == 4)
    assert charged(ran.app) == [{"pipeline": "p", "stage": "embed", "amount": PRICE, "payments": 1}]
    by_item = {one.item: micros(one.costs) for one in ran.app.costs(["item"]).sums}
    assert by_item == {None: 200_000, **dict.fromkeys(KEYS[1:], 200_000)}


@pytest.mark.req("V11", "V13")
def test_what_was_set_aside_for_the_items_is_settled_with_the_price_of_the_one_call(run: Bench, provider: Provider):
    seen: list[ResourceLimit] = []
    pipeline = Pipeline("p", resources={"api": {"budget": 10}})

    @pipeline.stage(name="embed", batch=5, resource="api", estimate=0.5)
    def embed(items: list[Item], ctx: BatchContext) -> Any:
        answers = ctx.once("vector", provider, items, cost=lambda answers: len(answers) / 10, estimate=1)
        seen.extend(one for one in asking.limits() if one.name == "api")
        return answers

    asking = run.app(pipeline)
    ran = run(pipeline, KEYS)
    assert ran.states("embed") == {"done": 5}
    assert [(micros(one.spent), micros(one.set_aside)) for one in seen] == [(500_000, 2_000_000)]
    [after] = [one for one in ran.app.limits() if one.name == "api"]
    assert (micros(after.spent), micros(after.costs), micros(after.in_doubt), micros(after.set_aside)) == (
        500_000,
        500_000,
        0,
        0,
    )


def test_an_item_that_may_not_cost_its_share_is_left_out_of_the_call(run: Bench, provider: Provider):
    def embed(items: list[Item], ctx: BatchContext) -> Any:
        for item in items:
            if item.key == "page-1":
                ctx.of(item).cost("0.25")
        return ctx.once("vector", provider, items, cost=1)

    pipeline = Pipeline("p")
    pipeline.stage(name="embed", batch=5, backoff=QUICK, max_cost="0.40")(embed)
    ran = run(pipeline, KEYS)
    assert provider.calls == [[key for key in KEYS if key != "page-1"]]
    assert ran.states("embed") == {"done": 4, "failed": 1}
    assert "the stage may cost 0.40 per item: 0.25 are spent" in ran.stage("page-1", "embed").error


# Keys, and what makes no sense ----------------------------------------------------------------------------------------


def test_the_idempotency_key_belongs_to_these_items_in_this_order(run: Bench):
    seen: list[str] = []

    def embed(items: list[Item], ctx: BatchContext) -> Any:
        before = ctx.idempotency_key("vector", items)
        others = [items[:2], items[1:2], items[::-1]]
        assert (
            len({before, ctx.idempotency_key("other", items), *(ctx.idempotency_key("vector", one) for one in others)})
            == 5
        )

        def call(some: list[Item]) -> Any:
            seen.append(ctx.idempotency_key("vector", some))
            assert [memo.idempotency_key for memo in asking.memos(some[0].key)] == seen[-1:] == [before]
            if len(seen) == 1:
                raise Permanent("the line went dead")
            return [1] * len(some)

        return ctx.once("vector", call, items, cost=1)

    pipeline = Pipeline("p")
    pipeline.stage(name="embed", batch=5)(embed)
    asking = run.app(pipeline)
    run(pipeline, KEYS).app.retry()
    ran = run(pipeline)
    assert ran.states("embed") == {"done": 5}
    assert len(seen) == 2
    assert seen[0] == seen[1], "the provider sees that it is the same call"


BAD: dict[str, tuple[Callable[[list[Item], BatchContext], Any], str]] = {
    "an item that is not here": (
        lambda items, ctx: ctx.once("a", list, [Item("p", "x", {})]),
        "item 'x' is not in this batch",
    ),
    "a key": (lambda items, ctx: ctx.once("a", list, ["page-0"]), "give a list of items of this batch"),
    "one item": (lambda items, ctx: ctx.once("a", list, items[0]), "give a list of items of this batch"),
    "an item twice": (
        lambda items, ctx: ctx.once("a", list, [*items, items[0]]),
        "this name was used before in this attempt",
    ),
    "no name": (lambda items, ctx: ctx.once("", list, items), "a name is a text of 1 to 200 characters"),
    "no items for a key": (lambda items, ctx: ctx.idempotency_key("a", []), "give at least one item"),
    "an async function": (lambda items, ctx: ctx.once("a", asyncio.sleep, items), "call it from an async handler"),
}


@pytest.mark.parametrize("how", BAD)
def test_what_makes_no_sense_is_refused_before_anything_is_called(run: Bench, how: str):
    wrong, said = BAD[how]
    pipeline = Pipeline("p")
    pipeline.stage(name="embed", batch=5, max_attempts=1, backoff=QUICK)(wrong)
    ran = run(pipeline, ["page-0"])
    assert ran.stage("page-0", "embed").error.startswith("UsageError: ")
    assert said in ran.stage("page-0", "embed").error


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_no_items_need_no_call(run: Bench, provider: Provider, kind: str):
    async def embed_async(items: list[Item], ctx: BatchContext) -> Any:
        return [len(await ctx.once("vector", provider, [], cost=1))]

    pipeline = Pipeline("p")
    pipeline.stage(name="embed", batch=5)(
        embed_async if kind == "loop" else lambda items, ctx: [len(ctx.once("vector", provider, [], cost=1))]
    )
    assert run(pipeline, ["page-0"]).result("page-0", "embed") == 0
    assert provider.calls == []


def test_an_answer_that_the_handler_forgets_is_bought_again_for_its_item_alone(run: Bench, provider: Provider):
    def embed(items: list[Item], ctx: BatchContext) -> Any:
        answers = ctx.once("vector", provider, items, cost=1)
        assert ctx.of(items[1]).forget("vector", "no good")
        answers[1:2] = ctx.once("vector", provider, items[1:2], cost=1)
        return answers

    pipeline = Pipeline("p")
    pipeline.stage(name="embed", batch=5)(embed)
    ran = run(pipeline, KEYS)
    assert provider.calls == [KEYS, ["page-1"]]
    assert [call.state for call in ran.app.calls("page-1")] == ["rejected", "done"]


def test_a_handler_of_one_item_finds_what_a_batch_has_recorded(run: Bench, provider: Provider):
    """Records belong to items, not to batches."""
    broken = {"now": True}

    def embed(items: list[Item], ctx: BatchContext) -> Any:
        if broken["now"]:
            ctx.once("vector", provider, items, cost=1)
            return [Rejected("not yet")] * len(items)
        return [ctx.of(item).once("vector", os.abort, cost=1) for item in items]

    pipeline = Pipeline("p")
    pipeline.stage(name="embed", batch=5, max_attempts=1, backoff=QUICK)(embed)
    run(pipeline, KEYS).app.retry()
    broken["now"] = False
    ran = run(pipeline)
    assert {key: ran.result(key, "embed") for key in KEYS} == {key: f"vector of {key}" for key in KEYS}
