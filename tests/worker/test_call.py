"""ctx.call: a paid call through a client library, with its price, its errors and its headers understood."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pydantic
import pytest

from holdfast import BatchContext, Context, Item, Pipeline, Rejected
from holdfast.providers import prepare
from holdfast.providers import verdict as provider_verdict
from holdfast.providers.headers import report
from holdfast.worker import provider_call
from tests.support.bench import QUICK, Bench, Ran
from tests.support.processes import wait_for

PRICES = {"small": {"in": "1.00", "out": "4.00", "cached": "0.10"}}
LIMITS: dict[str, Any] = {"api": {}}


class Answer(pydantic.BaseModel):
    """As client libraries return it."""

    id: str
    model: str
    text: str
    usage: dict[str, Any]


def answer(text: str = "good", tokens_in: int = 1000, tokens_out: int = 500, **usage: Any) -> Answer:
    counts = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, **usage}
    return Answer(id="a1", model="small-2026-01-01", text=text, usage=counts)


class Client:
    """A client that counts its calls, also those in other processes, and answers as it is told."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.reply: Callable[[str], Any] = lambda prompt: answer(prompt)

    def create(self, *, model: str, prompt: str, **more: Any) -> Any:
        with self._file.open("a") as file:
            file.write(json.dumps({"model": model, "prompt": prompt, **more}) + "\n")
        return self.reply(prompt)

    async def create_async(self, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return self.create(**kwargs)

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []

    @property
    def prompts(self) -> list[str]:
        return [call["prompt"] for call in self.calls]


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "calls.jsonl")


def one_stage(handler: Callable[..., Any], limits: dict[str, Any] | None = None, **settings: Any) -> Pipeline:
    pipeline = Pipeline("p", resources={"api": {}, **(limits or {})}, prices=PRICES)
    usual = {"name": "work", "max_attempts": 3, "backoff": QUICK, "resource": "api"}
    pipeline.stage(**{**usual, **settings})(handler)
    return pipeline


def asking(client: Client, **options: Any) -> Callable[[Item, Context], Any]:
    def work(item: Item, ctx: Context) -> Any:
        return ctx.options(**options).call("ask", client.create, model="small", prompt=item.key)

    return work


def refuse(status: int, body: str = "no", **headers: str) -> Callable[[str], Any]:
    """The exception of a plain HTTP client for this reply."""

    def reply(prompt: str) -> Any:
        request = httpx.Request("POST", "http://127.0.0.1/")
        response = httpx.Response(status, headers=headers, text=body, request=request)
        raise httpx.HTTPStatusError(f"{status}: {body}", request=request, response=response)

    return reply


def limit(ran: Ran, name: str = "api") -> Any:
    return next(one for one in ran.app.limits() if one.name == name)


# The answer -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("P13")
@pytest.mark.parametrize("kind", ["thread", "loop", "process", "sync function on the loop"])
def test_the_handler_gets_the_answer_in_its_json_form_the_first_time_and_from_the_record(
    run: Bench, client: Client, kind: str
):
    def finish(ctx: Context, value: Any) -> Any:
        if ctx.attempt == 1:
            assert value == answer("page").model_dump(), "the first time"
            raise RuntimeError("after the call")
        return value

    def work(item: Item, ctx: Context) -> Any:
        return finish(ctx, ctx.call("ask", client.create, model="small", prompt=item.key, temperature=0.5))

    async def on_the_loop(item: Item, ctx: Context) -> Any:
        function = client.create if "sync" in kind else client.create_async
        return finish(ctx, await ctx.call("ask", function, model="small", prompt=item.key, temperature=0.5))

    handler: Any = on_the_loop if "loop" in kind else work
    ran = run(one_stage(handler, isolate="process" if kind == "process" else None), ["page"])

    assert client.calls == [{"model": "small", "prompt": "page", "temperature": 0.5}]
    assert ran.result("page", "work") == answer("page").model_dump()


@pytest.mark.req("P12")
def test_the_usage_in_the_answer_is_priced_and_counted_by_model(run: Bench, client: Client):
    client.reply = lambda prompt: answer(prompt, prompt_tokens_details={"cached_tokens": 400})
    ran = run(one_stage(asking(client)), ["a", "b"])

    [by_model] = ran.app.costs(["model"]).sums
    # 600 new and 400 cached tokens read, 500 written.
    assert by_model.costs == 2 * Decimal("0.00264")
    assert (by_model.model, by_model.tokens_in, by_model.tokens_out) == ("small-2026-01-01", 2000, 1000)
    assert (by_model.tokens_cached, by_model.tokens_reasoning) == (800, 0)
    [call] = ran.app.show("a").calls
    assert call.facts["tokens_cached"] == call.tokens_cached == 400


@pytest.mark.req("P12")
def test_a_model_without_a_price_counts_its_tokens_and_its_estimate(run: Bench, client: Client, caplog: Any):
    client.reply = lambda prompt: answer(prompt).model_copy(update={"model": "unheard-of"})

    def work(item: Item, ctx: Context) -> Any:
        return ctx.options(estimate="0.03").call("ask", client.create, model="unheard-of", prompt=item.key)

    provider_call._warned.clear()
    ran = run(one_stage(work), ["a", "b"])
    [by_model] = ran.app.costs(["model"]).sums
    assert (by_model.model, by_model.costs, by_model.tokens_in) == ("unheard-of", Decimal("0.06"), 2000)
    assert caplog.text.count("no price is known for unheard-of") == 1


@pytest.mark.req("P12", "V11")
@pytest.mark.parametrize("budget", [{"budget": "5"}, {"budget_per_day": "5"}], ids=str)
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_where_there_is_a_budget_nothing_is_called_that_has_neither_price_nor_estimate(
    run: Bench, client: Client, budget: dict[str, str], kind: str
):
    def work(item: Item, ctx: Context) -> Any:
        options = ctx.options(estimate="0.01") if item.key == "estimated" else ctx.options()
        model = "small" if item.key == "priced" else "unheard-of"
        return options.call("ask", client.create, model=model, prompt=item.key)["text"]

    pipeline = one_stage(work, {"api": budget}, max_attempts=1, isolate="process" if kind == "process" else None)
    ran = run(pipeline, ["unknown", "estimated", "priced"])
    assert sorted(client.prompts) == ["estimated", "priced"]
    assert "there is a budget" in str(ran.stage("unknown", "work").error)


@pytest.mark.req("P12", "V11")
def test_a_price_that_only_the_answer_tells_does_not_stand_for_an_estimate(run: Bench, client: Client):
    def work(item: Item, ctx: Context) -> Any:
        options = ctx.options(cost=lambda answer: "0.01", estimate="0.01" if item.key == "estimated" else None)
        return options.call("ask", client.create, model="unheard-of", prompt=item.key)["text"]

    ran = run(one_stage(work, {"api": {"budget": "5"}}, max_attempts=1), ["unknown", "estimated"])
    assert client.prompts == ["estimated"]
    assert "there is a budget" in str(ran.stage("unknown", "work").error)


@pytest.mark.req("P12", "V13")
@pytest.mark.parametrize(
    ("limit", "estimate", "expected"),
    [
        ({"max_tokens": 1000}, "0.01", "0.004"),  # its price, at the longest
        ({"config": {"max_output_tokens": 60_000}}, "0.01", "0.24"),
        ({"inferenceConfig": {"maxTokens": 1000}}, "0.01", "0.004"),
        ({}, "0.01", "0.016384"),  # an answer of 4,096 tokens
        ({}, "0.50", "0.50"),  # what the stage expects
        ({}, None, "0.016384"),
    ],
)
def test_a_lost_reply_counts_with_what_the_longest_answer_may_have_cost(
    run: Bench, client: Client, limit: dict[str, Any], estimate: str | None, expected: str
):
    def work(item: Item, ctx: Context) -> Any:
        return ctx.call("ask", client.create, model="small", prompt=item.key, **limit)

    def reply(prompt: str) -> Any:
        raise httpx.ReadTimeout("too slow")

    client.reply = reply
    ran = run(one_stage(work, {"api": {"budget": "5"}}, estimate=estimate, max_attempts=1), ["page"])
    total = ran.app.costs(["stage"]).total
    assert total.doubts == 1
    # What is sent costs a little, too.
    assert Decimal(expected) <= total.in_doubt < Decimal(expected) + Decimal("0.0001")


def test_an_answer_that_says_nothing_of_its_tokens_is_named_as_the_reason_why_its_estimate_counts(
    run: Bench, client: Client, caplog: Any
):
    provider_call._warned.clear()
    client.reply = lambda prompt: {"text": prompt}
    ran = run(one_stage(asking(client, estimate="0.25")), ["page"])
    assert ran.app.costs(["stage"]).total.costs == Decimal("0.25")
    assert "say nothing of the tokens they took" in caplog.text
    assert "no price is known" not in caplog.text


@pytest.mark.req("P12", "V11")
@pytest.mark.parametrize("estimate", [Decimal("0.40"), lambda item: "0.40"], ids=["amount", "function"])
def test_where_no_price_is_known_a_call_costs_what_its_stage_expects(run: Bench, client: Client, estimate: Any):
    def work(item: Item, ctx: Context) -> Any:
        return ctx.call("ask", client.create, model="unheard-of", prompt=item.key)["text"]

    client.reply = lambda prompt: answer(prompt).model_copy(update={"model": "unheard-of"})
    pipeline = one_stage(work, {"api": {"budget": "1.00"}}, estimate=estimate)
    with run.serving(pipeline, [f"page-{n}" for n in range(5)], concurrency=1) as (_, ran):
        wait_for(lambda: ran.states("work").get("done") == 2 and limit(ran).paused)
        assert len(client.prompts) == 2
        assert ran.app.costs(["stage"]).total.costs == Decimal("0.80")


class Text(msgspec.Struct):
    text: str


@pytest.mark.req("P13")
@pytest.mark.parametrize(
    "parse", [Answer, Text, lambda told: Text(told["text"])], ids=["pydantic", "struct", "function"]
)
def test_parse_makes_a_value_of_the_answer_each_time(run: Bench, client: Client, parse: Any):
    seen: list[str] = []

    def work(item: Item, ctx: Context) -> Any:
        value = ctx.options(parse=parse).call("ask", client.create, model="small", prompt=item.key)
        seen.append(value.text)
        if ctx.attempt == 1:
            raise RuntimeError("after the call")

    run(one_stage(work), ["page"])
    assert seen == ["page", "page"] and client.prompts == ["page"]


@pytest.mark.req("P13")
@pytest.mark.parametrize("option", ["parse", "validate", "cost", "facts"])
def test_an_async_function_about_the_answer_is_refused_before_the_call(run: Bench, client: Client, option: str):
    async def about(told: Any) -> Any: ...

    async def work(item: Item, ctx: Context) -> Any:
        options: Any = {option: about}
        return await ctx.options(**options).call("ask", client.create, model="small", prompt=item.key)

    ran = run(one_stage(work, max_attempts=1), ["page"])
    assert ran.stage("page", "work").error.endswith(f"{option}: {about.__qualname__} is async; give a plain function")
    assert client.prompts == []


@pytest.mark.req("V13", "P1")
def test_an_answer_that_cannot_be_parsed_is_not_bought_again_unless_parse_rejects_it(run: Bench, client: Client):
    def broken(told: Any) -> Any:
        raise ValueError("a mistake in the program")

    def rejecting(told: Any) -> Any:
        if len(client.prompts) < 3:
            raise Rejected("not yet")
        return told["text"]

    def work(item: Item, ctx: Context) -> Any:
        parse = broken if item.key == "broken" else rejecting
        return ctx.options(parse=parse).call("ask", client.create, model="small", prompt=item.key)

    ran = run(one_stage(work), ["broken"])
    assert client.prompts == ["broken"]
    assert ran.state("broken", "work") == "exhausted"
    ran = run(one_stage(work), ["rejecting"])
    assert client.prompts == ["broken", "rejecting", "rejecting"]
    assert ran.result("rejecting", "work") == "rejecting"


@pytest.mark.req("P11")
@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_a_stream_is_read_to_its_end_and_what_is_kept_is_the_whole_answer(run: Bench, client: Client, kind: str):
    def chunks(prompt: str) -> Iterator[dict[str, Any]]:
        head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "small"}
        for piece in ("good ", prompt):
            yield {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": piece}}]}
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        yield {**head, "choices": [], "usage": {"prompt_tokens": 1000, "completion_tokens": 500}}

    def work(item: Item, ctx: Context) -> Any:
        told = ctx.call("ask", client.create, model="small", prompt=item.key, stream=True)
        return told["choices"][0]["message"]["content"]

    async def on_the_loop(item: Item, ctx: Context) -> Any:
        told = await ctx.call("ask", client.create_async, model="small", prompt=item.key, stream=True)
        return told["choices"][0]["message"]["content"]

    client.reply = chunks
    ran = run(one_stage(on_the_loop if kind == "loop" else work), ["page"])
    assert ran.result("page", "work") == "good page"
    assert ran.app.costs(["model"]).total.costs == Decimal("0.003")


@pytest.mark.req("P12")
def test_the_embeddings_of_a_batch_are_taken_apart_and_its_items_share_the_price(run: Bench, client: Client):
    def embed(items: list[Item], model: str) -> dict[str, Any]:
        client.create(model=model, prompt=" ".join(item.key for item in items))
        vectors = [{"object": "embedding", "index": n, "embedding": [n, 0.5]} for n in range(len(items))]
        used = {"prompt_tokens": 3000, "prompt_tokens_details": {"cached_tokens": 30}}
        return {"object": "list", "model": model, "data": vectors[::-1], "usage": used}

    def work(items: list[Item], ctx: BatchContext) -> list[Any]:
        options = ctx.options(parse=lambda told: told["embedding"])
        return list(options.call("vector", embed, items, model="small"))

    ran = run(one_stage(work, batch=3), ["a", "b", "c"])
    assert [ran.result(key, "work") for key in "abc"] == [[0, 0.5], [1, 0.5], [2, 0.5]]
    assert client.prompts == ["a b c"]
    sums = {one.item: (one.costs, one.tokens_in, one.tokens_cached) for one in ran.app.costs(["item"]).sums}
    # 990 new tokens for each, and 10 cached ones at a tenth of the price.
    assert sums == dict.fromkeys("abc", (Decimal("0.000991"), 1000, 10))


# What errors mean -----------------------------------------------------------------------------------------------------


@pytest.mark.req("P11", "P2")
@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, '{"error": {"code": "context_length_exceeded"}}', "InputTooLong"),
        (413, "payload", "InputTooLong"),
        (400, '{"error": {"code": "content_filter"}}', "ContentFiltered"),
        (400, "no such parameter", "BadRequest"),
        (404, "no such model", "BadRequest"),
    ],
)
def test_a_request_that_the_provider_refuses_for_good_fails_the_item_at_once_and_is_free(
    run: Bench, client: Client, status: int, body: str, kind: str
):
    client.reply = refuse(status, body)
    ran = run(one_stage(asking(client)), ["page"])
    stage = ran.stage("page", "work")
    assert (stage.state, stage.attempts) == ("failed", 1)
    assert stage.error is not None and stage.error.startswith(f"{kind}: ") and body in stage.error
    assert [group.error for group in ran.app.errors() if group.hint] == [kind]
    assert ran.app.costs(["stage"]).sums == ()


@pytest.mark.req("P11")
@pytest.mark.parametrize("named", [None, "other"])
def test_a_pause_is_as_long_as_asked_for_the_resource_of_the_call_and_spends_no_attempt(
    run: Bench, client: Client, named: str | None
):
    client.reply = refuse(429, "slow down", **{"retry-after": "7200"})
    pipeline = one_stage(asking(client, resource=named), {"other": {}}, resource=["api", "other"])
    with run.serving(pipeline, ["page"]) as (_, ran):
        paused, free = ("api", "other") if named is None else ("other", "api")
        wait_for(lambda: limit(ran, paused).cool_until)
        [cooled] = ran.events("cooled_down")
        assert (limit(ran, paused).cool_until - cooled.at).total_seconds() == pytest.approx(7200, abs=1)
        assert limit(ran, free).cool_until is None
        assert ran.stage("page", "work").attempts == 0
        assert "slow down" in str(ran.stage("page", "work").error)


@pytest.mark.req("P11")
@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (429, '{"error": {"code": "insufficient_quota"}}', {}),
        (402, "pay", {}),
        (429, "wait", {"retry-after": "100000"}),
    ],
    ids=["quota", "402", "more than a day"],
)
def test_out_of_credit_pauses_the_resource_with_the_words_of_the_provider_until_a_person_resumes_it(
    run: Bench, client: Client, status: int, body: str, headers: dict[str, str]
):
    client.reply = refuse(status, body, **headers)
    with run.serving(one_stage(asking(client)), ["page"]) as (_, ran):
        wait_for(lambda: limit(ran).paused)
        assert limit(ran).reason.startswith("out of credit: ") and body in limit(ran).reason
        assert limit(ran).paused_until is None
        assert ran.stage("page", "work").attempts == 0
        client.reply = answer
        ran.app.resume("api", resource=True)
        wait_for(lambda: ran.state("page", "work") == "done")


@pytest.mark.req("P11")
def test_without_a_resource_the_stage_is_paused_for_as_long_as_the_provider_asks(run: Bench, client: Client):
    client.reply = refuse(429, "slow down", **{"retry-after": "600"})
    with run.serving(one_stage(asking(client), resource=()), ["page", "other"], concurrency=1) as (_, ran):
        wait_for(lambda: ran.app.status().pipeline("p").stage("work").held)
        held = ran.app.status().pipeline("p").stage("work").held
        assert "slow down" in held.text and held.until is not None
        assert len(client.prompts) == 1
        assert ran.app.why("other").reason == "paused"


@pytest.mark.req("P2", "V13")
def test_a_call_that_was_not_sent_is_free_and_one_whose_reply_is_lost_is_in_doubt(run: Bench, client: Client):
    def reply(prompt: str) -> Any:
        raise httpx.ConnectError("nobody there") if prompt == "unsent" else httpx.ReadTimeout("too slow")

    client.reply = reply
    pipeline = one_stage(asking(client, estimate="0.25"), max_attempts=1)
    ran = run(pipeline, ["unsent", "lost"])
    assert str(ran.stage("unsent", "work").error).startswith("NotSent: ")
    assert str(ran.stage("lost", "work").error).startswith("InDoubt: ")
    total = ran.app.costs(["stage"]).total
    assert (total.costs, total.in_doubt, total.doubts) == (0, Decimal("0.25"), 1)


@pytest.mark.req("V1", "V7")
def test_an_overload_that_only_one_item_meets_counts_as_its_failure(run: Bench, client: Client):
    """A provider that is down costs nobody an attempt; an input that makes it fail must not be tried without end."""
    client.reply = lambda prompt: refuse(500, "oops")(prompt) if prompt == "poison" else answer(prompt)
    pipeline = one_stage(asking(client), {"api": {"cool": "0.02s"}}, max_attempts=2)
    with run.serving(pipeline, ["poison"], concurrency=1) as (_, ran):
        wait_for(lambda: len(client.prompts) > 12)
        assert ran.state("poison", "work") != "exhausted", "as long as nobody passes, the provider is down"
        for n in range(20):
            ran.app.add("p", [f"good-{n}"])
            wait_for(lambda n=n: ran.state(f"good-{n}", "work") == "done")
            if ran.state("poison", "work") == "exhausted":
                break
        wait_for(lambda: ran.state("poison", "work") == "exhausted")
        [group] = ran.app.errors()
        assert (group.error, group.place) == ("Overloaded", "test_call.py: work")
        assert group.message.startswith("HTTPStatusError") and "oops" in group.message
        assert group.hint and group.items == 1
        assert str(ran.stage("poison", "work").error).startswith("Overloaded: ")


VERDICTS = {
    "BadRequest": lambda: refuse(400, "wrong")("x"),
    "CredentialRefused": lambda: refuse(401, "no")("x"),
    "NotSent": lambda: _raise(httpx.ConnectError("nobody there")),
    "InDoubt": lambda: _raise(httpx.ReadTimeout("too slow")),
    "OutOfCredit": lambda: refuse(402, "pay")("x"),
    "Overloaded": lambda: refuse(500, "oops")("x"),
    "RateLimited": lambda: refuse(429, "slow down")("x"),
}


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.req("P15")
@pytest.mark.parametrize("name", VERDICTS)
def test_each_verdict_that_ends_an_attempt_has_its_class_its_place_and_a_hint(run: Bench, name: str):
    """In a stage, and in an effect, where a pause would come too late."""

    def ask_in_effect(connection: Any) -> None:
        meant = provider_verdict(_caught(VERDICTS[name]))
        assert meant is not None
        raise meant

    def work(item: Item, ctx: Context) -> None:
        if name in {"BadRequest", "NotSent", "InDoubt"}:
            ctx.call("ask", VERDICTS[name])
        ctx.effect(ask_in_effect)

    ran = run(one_stage(work, max_attempts=1), ["page"])
    [group] = ran.app.errors()
    assert group.error == name and group.place.startswith("test_call.py: ") and group.hint


def _caught(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it was to raise")


# What headers ask for -------------------------------------------------------------------------------------------------


@pytest.mark.req("P11")
@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_an_answer_after_which_nothing_is_left_makes_everyone_wait(run: Bench, kind: str):
    def ask() -> str:
        report({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "600"})  # as a prepared client does
        return "good"

    def work(item: Item, ctx: Context) -> Any:
        return ctx.call("ask", ask)

    async def on_the_loop(item: Item, ctx: Context) -> Any:
        return await ctx.call("ask", ask)

    with run.serving(one_stage(on_the_loop if kind == "loop" else work), ["page"]) as (_, ran):
        wait_for(lambda: ran.state("page", "work") == "done")
        assert limit(ran).cool_until is not None


@pytest.mark.req("P11")
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_pause_that_an_answer_asks_for_begins_with_the_answer_and_not_with_the_end_of_the_attempt(
    run: Bench, kind: str, tmp_path: Path
):
    """For every resource that was named, while the handler goes on."""
    gate = tmp_path / "gate"

    def ask(resource: str) -> str:
        report({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "600" if resource == "api" else "900"})
        return "good"

    def work(item: Item, ctx: Context) -> Any:
        for resource in ("api", "other"):
            ctx.options(resource=resource, cost="0.01").call(f"ask {resource}", ask, resource)
        wait_for(gate.exists)

    pipeline = one_stage(
        work, {"api": {}, "other": {}}, resource=["api", "other"], isolate="process" if kind == "process" else None
    )
    with run.serving(pipeline, ["page"]) as (_, ran):
        wait_for(lambda: all(limit(ran, name).cool_until is not None for name in ("api", "other")))
        assert ran.state("page", "work") == "in_progress"
        until = {name: limit(ran, name).cool_until for name in ("api", "other")}
        assert timedelta(seconds=250) < until["other"] - until["api"] < timedelta(seconds=350)
        gate.touch()
        wait_for(lambda: ran.state("page", "work") == "done")
        assert {name: limit(ran, name).cool_until for name in until} == until


@pytest.mark.req("P11")
def test_a_pause_that_has_passed_when_the_attempt_ends_makes_nobody_wait(run: Bench):
    def work(item: Item, ctx: Context) -> Any:
        ctx.heed({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "0.05"})
        heard_at = time.monotonic()
        wait_for(lambda: time.monotonic() > heard_at + 0.06)

    ran = run(one_stage(work, {"api": {}}), ["page"])
    assert limit(ran).cool_until is None


def test_a_prepared_function_of_litellm_whose_headers_are_not_heard_is_warned_about_once(run: Bench, caplog: Any):
    """It does not retry by itself, and preparing it again would not help."""

    def completion(**asked: Any) -> Any:
        return answer(asked["prompt"])

    completion.__module__ = "litellm.main"
    function = prepare(completion)

    def work(item: Item, ctx: Context) -> Any:
        return ctx.call("ask", function, model="small", prompt=item.key)

    provider_call._warned.clear()
    run(one_stage(work), ["a", "b", "c"])
    assert caplog.text.count("litellm does not pass on the response headers of this model") == 1
    assert "may retry by itself" not in caplog.text


def test_a_bare_function_is_warned_about_once(run: Bench, client: Client, caplog: Any):
    provider_call._warned.clear()
    run(one_stage(asking(client)), ["a", "b", "c"])
    assert caplog.text.count("holdfast.providers.prepare(client)") == 1
