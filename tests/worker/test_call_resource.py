"""Which resource a call is about: the one that it names, else the first of its stage. Its money, its pauses and its refused
keys all go there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from holdfast import BatchContext, Context, CredentialRefused, Item, OutOfCredit, Pipeline, RateLimited, Skip
from holdfast.engine import resource_state
from holdfast.model.money import micros
from holdfast.providers.headers import report
from tests.support.bench import QUICK, Bench, Ran
from tests.support.processes import wait_for

#: What the stage uses; each of these calls names the resource "other".
STAGES = pytest.mark.parametrize("uses", [(), "api", ["api", "other"]], ids=["no resource", "api", "api and other"])
#: How the handler makes its call, in a stage that uses "api"; and each of the stages.
WAYS = pytest.mark.parametrize(
    ("way", "uses"),
    [
        *((way, "api") for way in ("call", "once", "unpaid once", "batch", "batch once", "loop", "process")),
        ("call", ()),
        ("call", ["api", "other"]),
    ],
)


def one_stage(handler: Callable[..., Any], uses: Any = "api", **settings: Any) -> Pipeline:
    limits = settings.pop("limits", {})
    pipeline = Pipeline("p", resources={"api": {}, "other": {}, "third": {}, **limits})
    pipeline.stage(**{"name": "work", "max_attempts": 3, "backoff": QUICK, "resource": uses, **settings})(handler)
    return pipeline


def naming(ask: Callable[[], Any], way: str = "call", uses: Any = "api", name: str = "other") -> Pipeline:
    """A pipeline whose calls name a resource."""

    def of_items(items: list[Item]) -> list[Any]:
        return [ask() for _ in items]

    async def ask_async() -> Any:
        return ask()

    def work(item: Item, ctx: Context) -> Any:
        if "once" in way:
            price = {} if "unpaid" in way else {"cost": "0.10"}
            return ctx.once("ask", ask, resource=name, **price)
        return ctx.options(resource=name, cost="0.10").call("ask", ask)

    def on_batch(items: list[Item], ctx: BatchContext) -> Any:
        if "once" in way:
            return ctx.once("ask", of_items, items, resource=name, cost="0.10")
        return ctx.options(resource=name, cost="0.10").call("ask", of_items, items)

    async def on_the_loop(item: Item, ctx: Context) -> Any:
        return await ctx.options(resource=name, cost="0.10").call("ask", ask_async)

    if "batch" in way:
        return one_stage(on_batch, uses, batch=2)
    if way == "process":
        return one_stage(work, uses, isolate="process")
    return one_stage(on_the_loop if way == "loop" else work, uses)


def refused(status: int, words: str = "no", **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/")
    response = httpx.Response(status, headers=headers, text=words, request=request)
    return httpx.HTTPStatusError(f"{status}: {words}", request=request, response=response)


def raising(error: BaseException) -> Callable[[], Any]:
    def ask() -> Any:
        raise error

    return ask


def limit(ran: Ran, name: str) -> Any:
    return next(one for one in ran.app.limits() if one.name == name)


def is_untouched(ran: Ran, *names: str) -> bool:
    """Whether none of these resources is paused, and neither is the stage."""
    stands = [limit(ran, name) for name in names]
    stage_was_paused = any(event.resource is None for event in ran.events("paused"))
    return not stage_was_paused and all(one.cool_until is None and not one.paused for one in stands)


# What is about the resource that the call names ------------------------------------------------------------------------


@pytest.mark.req("P11")
@WAYS
def test_a_pause_is_for_the_resource_that_the_call_names(run: Bench, way: str, uses: Any):
    pipeline = naming(raising(refused(429, "slow down", **{"retry-after": "7200"})), way, uses)
    with run.serving(pipeline, ["page"]) as (_, ran):
        wait_for(lambda: limit(ran, "other").cool_until)
        [cooled] = ran.events("cooled_down")
        assert (limit(ran, "other").cool_until - cooled.at).total_seconds() == pytest.approx(7200, abs=1)
        assert is_untouched(ran, "api", "third")
        assert ran.stage("page", "work").attempts == 0


@pytest.mark.req("P11")
@STAGES
def test_a_provider_that_wants_money_pauses_the_resource_that_the_call_names(run: Bench, uses: Any):
    pipeline = naming(raising(refused(402, "pay")), "call", uses)
    with run.serving(pipeline, ["page"]) as (_, ran):
        wait_for(lambda: limit(ran, "other").paused)
        assert limit(ran, "other").reason.startswith("out of credit: ")
        assert is_untouched(ran, "api", "third")
        assert ran.stage("page", "work").attempts == 0


@pytest.mark.req("P11")
@STAGES
def test_the_money_of_a_call_and_what_its_headers_ask_for_go_to_one_resource(run: Bench, uses: Any):
    def ask() -> str:
        report({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "600"})
        return "good"

    ran = run(naming(ask, "call", uses), ["page"])
    assert limit(ran, "other").cool_until is not None
    assert is_untouched(ran, "api", "third")
    assert [(one.resource, micros(one.costs)) for one in ran.app.costs(["resource"]).sums] == [("other", 100_000)]


@pytest.mark.req("P11")
@STAGES
def test_a_key_that_is_refused_three_times_pauses_the_resource_that_the_call_names(run: Bench, uses: Any):
    """Answers of another provider in between do not make up for it."""
    refused_once: set[str] = set()

    def ask(key: str) -> str:
        if key.startswith("bad"):
            refused_once.add(key)
            raise refused(401, "wrong key")
        return "good"

    def work(item: Item, ctx: Context) -> Any:
        if item.key in refused_once:
            return Skip()
        name = "other" if item.key.startswith("bad") else "third"
        return ctx.options(resource=name, cost="0.10").call("ask", ask, item.key)

    pipeline = one_stage(work, ["third", *([uses] if isinstance(uses, str) else uses)])
    with run.serving(pipeline, concurrency=1) as (_, ran):
        for key in ("good-0", "bad-0", "good-1", "bad-1", "good-2"):
            assert not limit(ran, "other").paused
            ran.app.add("p", [key])
            wait_for(lambda key=key: ran.state(key, "work") in ("done", "skipped"))
        ran.app.add("p", ["bad-2"])
        wait_for(lambda: limit(ran, "other").paused)
        assert "wrong key" in limit(ran, "other").reason
        assert not limit(ran, "third").paused and not limit(ran, "api").paused


def test_an_answer_ends_the_refusals_in_a_row_of_its_resource(run: Bench):
    """Two refused keys, an answer, and two more."""
    replies = iter(["no", "no", "good", "no", "no", "good"])

    def ask() -> str:
        if next(replies) == "no":
            raise refused(401, "wrong key")
        return "good"

    ran = run(naming(ask), ["one", "two"], concurrency=1)
    assert ran.states("work") == {"done": 2}
    assert ran.events("paused") == ()


# Nobody calls while it is paused ---------------------------------------------------------------------------------------


@pytest.mark.req("P11")
@WAYS
def test_a_call_is_not_made_while_the_resource_that_it_names_is_paused(
    run: Bench, way: str, uses: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    """Also where the stage does not use the resource, so that its attempts begin."""

    def says_why() -> bool:
        return "no more today" in f"{ran.stage('page', 'work').error} {ran.app.why('page').text}"

    monkeypatch.setattr(resource_state, "COOL_SECONDS", 0.05)
    made = tmp_path / "made"

    def ask() -> str:
        made.touch()
        return "good"

    pipeline = naming(ask, way, uses)
    app = run.app(pipeline, ["page"])
    app.pause("other", resource=True, reason="no more today")
    with run.serving(pipeline) as (_, ran):
        wait_for(says_why)
        assert not made.exists()
        ran.app.resume("other", resource=True)
        wait_for(lambda: ran.state("page", "work") == "done")
        assert ran.stage("page", "work").attempts == 1
    assert made.exists()


@pytest.mark.req("P11")
def test_a_pause_that_one_item_hears_of_keeps_the_others_from_calling(run: Bench):
    calls: list[str] = []

    def ask() -> Any:
        calls.append("call")
        raise refused(429, "slow down", **{"retry-after": "7200"})

    with run.serving(naming(ask), ["one"], concurrency=1) as (_, ran):
        wait_for(lambda: ran.states("work") == {"retry_later": 1})
        # Others hear of it once it is committed.
        ran.app.add("p", ["two"])
        wait_for(lambda: ran.states("work") == {"retry_later": 2})
        assert len(calls) == 1
        assert len(ran.events("cooled_down")) == 1


def test_a_recorded_answer_is_returned_while_the_resource_is_paused(run: Bench):
    def work(item: Item, ctx: Context) -> Any:
        value = ctx.options(resource="other", cost="0.10").call("ask", lambda: "good")
        if ctx.attempt == 1:
            ran_app.pause("other", resource=True, reason="no more today")
            raise RuntimeError("after the call")
        return value

    pipeline = one_stage(work)
    ran_app = run.app(pipeline)
    ran = run(pipeline, ["page"])
    assert ran.result("page", "work") == "good"


# Names that no resource has --------------------------------------------------------------------------------------------


@pytest.mark.req("P11")
@WAYS
def test_a_name_that_no_resource_has_is_an_error_before_anything_is_sent(
    run: Bench, way: str, uses: Any, tmp_path: Any
):
    name = "@p" if way == "once" else "othr"  # limits of a pipeline have such a name
    made = tmp_path / "made"
    ran = run(naming(made.touch, way, uses, name), ["page"])
    stage = ran.stage("page", "work")
    assert stage.state == "exhausted" and not made.exists()
    assert stage.error is not None and f"there is no resource '{name}', and nothing was sent" in stage.error
    assert "api, other, third" in stage.error and "'page'" in stage.error
    assert ran.app.costs().sums == ()


# Budgets ---------------------------------------------------------------------------------------------------------------


@pytest.mark.req("P11")
@pytest.mark.parametrize(
    ("limited", "named", "is_made"),
    [("other", "other", False), ("api", "other", True), ("api", None, False), ("other", None, True)],
)
def test_a_call_without_a_price_needs_an_estimate_if_the_resource_that_pays_for_it_has_a_budget(
    run: Bench, limited: str, named: str | None, is_made: bool
):
    calls: list[str] = []

    def work(item: Item, ctx: Context) -> Any:
        return ctx.options(resource=named).call("ask", lambda: calls.append("call"))

    ran = run(one_stage(work, limits={limited: {"budget": "10.00"}}), ["page"])
    assert bool(calls) == is_made
    assert ran.state("page", "work") == ("done" if is_made else "exhausted")


# Without a call: the first resource is meant ---------------------------------------------------------------------------


@pytest.mark.req("P11")
@pytest.mark.parametrize(
    "make",
    [
        lambda: RateLimited(retry_after=7200),
        lambda: refused(429, "slow down", **{"retry-after": "7200"}),
        lambda: OutOfCredit("pay"),
        lambda: CredentialRefused("wrong key"),
    ],
    ids=["RateLimited", "client", "OutOfCredit", "CredentialRefused"],
)
@pytest.mark.parametrize("inside", [False, True], ids=["of the handler", "within a call"])
def test_what_a_handler_raises_is_about_the_first_resource_and_what_a_call_raises_about_its_own(
    run: Bench, make: Callable[[], Exception], inside: bool
):
    def work(item: Item, ctx: Context) -> Any:
        if inside:
            return ctx.options(resource="other", cost="0.10").call("ask", raising(make()))
        raise make()

    def is_stopped(name: str) -> bool:
        return limit(ran, name).cool_until is not None or limit(ran, name).paused

    meant, free = ("other", "api") if inside else ("api", "other")
    with run.serving(one_stage(work, ["api", "other"]), ["page"]) as (_, ran):
        wait_for(lambda: is_stopped(meant))
        assert is_untouched(ran, free)
        assert not is_stopped(free)
        assert ran.stage("page", "work").attempts == 0
