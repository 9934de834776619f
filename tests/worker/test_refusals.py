"""What a provider refuses costs nothing: real clients, in handlers of every kind, against a provider in any mood."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from holdfast import BatchContext, Context, CredentialRefused, Holdfast, InDoubt, Item, Pipeline
from holdfast.answers import ResourceLimit
from holdfast.errors import BadRequest, ContentFiltered, InputTooLong
from holdfast.model.money import micros
from holdfast.worker import handler_outcome
from holdfast.worker.handler_outcome import MOST_PAUSES
from tests.support.bench import QUICK, Ran
from tests.support.clients import CLIENTS, GROUP, SECONDS, STREAMING, load
from tests.support.kinds import keys
from tests.support.limited_bench import LimitedBench
from tests.support.moody_server import MoodyServer, nobody_listens
from tests.support.processes import wait_for
from tests.support.steps import ask

pytestmark = [pytest.mark.req("V11"), GROUP]

PRICE = 400_000
NOTHING = {"spent": 0, "costs": 0, "in_doubt": 0}


@pytest.fixture(scope="module", autouse=True)
def clients() -> None:
    """Loaded here, and not by every child process anew."""
    load()


@pytest.fixture
def run(url: str) -> Iterator[LimitedBench]:
    bench = LimitedBench(url)
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def provider() -> Iterator[MoodyServer]:
    with MoodyServer() as server:
        yield server


Ask = Callable[[str], Any]


def paying(
    ask: Ask,
    address: str | Callable[[Item], str],
    *,
    kind: str = "thread",
    uses: bool = True,
    limits: dict[str, Any] | None = None,
    **settings: Any,
) -> Pipeline:
    """One stage that asks the provider for 0.40 per item."""

    def where(item: Item) -> str:
        return address if isinstance(address, str) else address(item)

    def work(item: Item, ctx: Context) -> str:
        ctx.once("ask", ask, where(item), cost=0.40)
        return "done"

    async def on_the_loop(item: Item, ctx: Context) -> str:
        async def ask_async(address: str) -> Any:
            await asyncio.sleep(0)
            if ask is CLIENTS["httpx"]:
                async with httpx.AsyncClient(timeout=SECONDS, verify=False) as client:
                    return (await client.post(address, json={})).raise_for_status().json()
            return await asyncio.to_thread(ask, address)

        await ctx.once("ask", ask_async, where(item), cost=0.40)
        return "done"

    pipeline = Pipeline("p", resources={"api": limits or {}} if uses else {})
    pipeline.stage(
        **{
            "name": "work",
            "backoff": QUICK,
            "resource": "api" if uses else (),
            "estimate": 0.40 if uses else None,
            "isolate": "process" if kind == "process" else None,
            **settings,
        }
    )(on_the_loop if kind == "loop" else work)
    return pipeline


def limit(app: Holdfast) -> ResourceLimit:
    return next(one for one in app.limits() if one.name == "api")


def money(app: Holdfast) -> dict[str, int]:
    """What limits and costs say alike, once nothing runs."""
    told, summed = limit(app), app.costs(["resource"])
    assert told.set_aside == 0
    spent = {name: micros(getattr(told, name)) for name in NOTHING}
    assert spent == {name: micros(getattr(summed.total, name)) for name in NOTHING}
    return spent


def is_honest(app: Holdfast) -> bool:
    """At any moment, what is spent is what was charged and what may have been."""
    for one in [*app.limits(), *app.costs().sums, *app.costs(["item"]).sums, *app.costs(["resource", "day"]).sums]:
        assert one.spent == one.costs + one.in_doubt
    return True


def until(ran: Ran, **states: int) -> None:
    """Wait until the items are in these states; the money is right all the while."""
    wait_for(lambda: is_honest(ran.app) and ran.states("work") == states)


# A refusal is free ----------------------------------------------------------------------------------------------------


@pytest.mark.req("P2")
@pytest.mark.parametrize(
    ("kind", "client"), [("thread", "openai"), ("loop", "httpx"), ("process", "requests"), ("thread", "aiohttp")]
)
def test_five_429s_and_one_answer_cost_what_the_answer_costs(run: LimitedBench, provider: MoodyServer, kind, client):
    provider.next = [*["429"] * 5, "200"]
    pipeline = paying(CLIENTS[client], f"{provider.url}/next", kind=kind, max_attempts=1)
    with run.serving(pipeline, ["page-1"]) as (_, ran):
        until(ran, done=1)
        assert money(ran.app) == {"spent": PRICE, "costs": PRICE, "in_doubt": 0}
        assert ran.stage("page-1", "work").attempts == 1
        assert [call.state for call in ran.app.calls("page-1")] == ["not_charged"] * 5 + ["done"]


@pytest.mark.req("P2")
@pytest.mark.parametrize(("kind", "client"), [("thread", "httpx"), ("loop", "httpx"), ("process", "requests")])
def test_ten_overloads_of_the_provider_spend_no_attempt_and_leave_the_budget_untouched(
    run: LimitedBench, provider: MoodyServer, kind, client
):
    """The budget is enough for one call and a half."""
    provider.next = [*["500"] * 10, "200"]
    limits = {"budget": "0.60", "cool": "10ms", "cool_most": "20ms"}
    pipeline = paying(CLIENTS[client], f"{provider.url}/next", kind=kind, max_attempts=1, limits=limits)
    with run.serving(pipeline, ["page-1"]) as (_, ran):
        until(ran, done=1)
        assert money(ran.app) == {"spent": PRICE, "costs": PRICE, "in_doubt": 0}
        assert ran.stage("page-1", "work").attempts == 1
        assert [call.state for call in ran.app.calls("page-1")] == ["not_charged"] * 10 + ["done"]


@pytest.mark.req("P2")
@pytest.mark.parametrize("kind", ["thread", "loop", "process"])
def test_ten_calls_that_were_never_sent_leave_the_budget_untouched(run: LimitedBench, provider: MoodyServer, kind):
    nobody = nobody_listens()

    def address(item: Item) -> str:
        return f"{provider.url}/200" if item.key == "good" else nobody

    pipeline = paying(CLIENTS["httpx"], address, kind=kind, max_attempts=10, limits={"budget": "4.00"})
    ran = run(pipeline, ["bad"])
    assert ran.states("work") == {"exhausted": 1}
    assert money(ran.app) == NOTHING
    assert [call.state for call in ran.app.calls("bad")] == ["not_charged"] * 10
    ran.app.add("p", ["good"])
    ran = run(pipeline)
    assert ran.state("good", "work") == "done"
    assert money(ran.app) == {"spent": PRICE, "costs": PRICE, "in_doubt": 0}


@pytest.mark.req("P2", "P11")
@pytest.mark.parametrize(
    ("kind", "client", "mood", "means"),
    [
        ("thread", "httpx", "400", "BadRequest"),
        ("loop", "httpx", "404", "BadRequest"),
        ("process", "requests", "413", "InputTooLong"),
        ("thread", "aiohttp", "403-page", "BadRequest"),
        ("thread", "httpx", "403-page", "BadRequest"),
    ],
)
def test_a_paid_request_that_is_wrong_is_made_once_costs_nothing_and_ends_its_item(
    run: LimitedBench, provider: MoodyServer, kind, client, mood, means
):
    def address(item: Item) -> str:
        return f"{provider.url}/{'200' if item.key == 'good' else mood}"

    ran = run(paying(CLIENTS[client], address, kind=kind, max_attempts=5), [*keys(4), "good"])
    assert ran.states("work") == {"failed": 4, "done": 1}
    for key in keys(4):
        assert [call.state for call in ran.app.calls(key)] == ["not_charged"]
        assert str(ran.stage(key, "work").error).startswith(f"{means}: ")
    assert not limit(ran.app).paused
    assert money(ran.app) == {"spent": PRICE, "costs": PRICE, "in_doubt": 0}


@pytest.mark.req("P2")
@pytest.mark.parametrize(
    ("kind", "ask", "mood"),
    [
        ("thread", CLIENTS["openai"], "hang"),
        ("loop", CLIENTS["httpx"], "hang"),
        ("process", CLIENTS["requests"], "hang-up"),
        ("thread", CLIENTS["anthropic"], "502"),
        ("thread", STREAMING["openai"], "error-in-stream"),
    ],
)
def test_a_lost_reply_is_in_doubt_until_somebody_says_that_it_was_free(run: LimitedBench, provider, kind, ask, mood):
    pipeline = paying(ask, f"{provider.url}/{mood}", kind=kind, max_attempts=1, limits={"budget": "4.00"})
    with run.serving(pipeline, ["page-1"]) as (_, ran):
        until(ran, exhausted=1)
    assert money(ran.app) == {"spent": PRICE, "costs": 0, "in_doubt": PRICE}
    [told] = ran.app.costs().sums
    assert (micros(told.spent), micros(told.in_doubt), told.doubts) == (PRICE, PRICE, 1)
    assert [micros(event.data["counted"]) for event in ran.events("money_in_doubt")] == [PRICE]
    assert sum(ran.app.resolve_many(charged=0, pipeline="p", reason="not on the bill").values()) == 1
    assert is_honest(ran.app) and money(ran.app) == NOTHING


@pytest.mark.req("P2")
def test_many_doubts_are_resolved_as_charged_by_a_filter(run: LimitedBench, provider: MoodyServer):
    pipeline = paying(CLIENTS["httpx"], f"{provider.url}/504", max_attempts=2)
    ran = run(pipeline, keys(3))
    assert ran.states("work") == {"exhausted": 3}
    assert money(ran.app) == {"spent": 6 * PRICE, "costs": 0, "in_doubt": 6 * PRICE}
    ran.app.resolve_many(charged="0.25", key="page-0")
    assert is_honest(ran.app)
    assert money(ran.app) == {"spent": 4 * PRICE + 500_000, "costs": 500_000, "in_doubt": 4 * PRICE}
    ran.app.resolve_many(charged=0)
    assert money(ran.app) == {"spent": 500_000, "costs": 500_000, "in_doubt": 0}


@pytest.mark.req("P2")
@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_a_call_that_follows_a_lost_reply_is_judged_by_itself(run: LimitedBench, provider: MoodyServer, kind):
    """The refusal is raised while the handler deals with the time-out of another call."""
    causes: list[BaseException | None] = []

    def work(item: Item, ctx: Context) -> Any:
        try:
            return ctx.once("first", CLIENTS["httpx"], f"{provider.url}/hang-up", cost=0.40)
        except InDoubt as lost:
            causes.append(lost.__cause__)
            return ctx.once("second", CLIENTS["httpx"], f"{provider.url}/404", cost=0.10)

    async def ask(address: str) -> Any:
        async with httpx.AsyncClient(timeout=SECONDS, verify=False) as client:
            return (await client.post(address, json={})).raise_for_status().json()

    async def on_the_loop(item: Item, ctx: Context) -> Any:
        try:
            return await ctx.once("first", ask, f"{provider.url}/hang-up", cost=0.40)
        except InDoubt as lost:
            causes.append(lost.__cause__)
            return await ctx.once("second", ask, f"{provider.url}/404", cost=0.10)

    pipeline = Pipeline("p", resources={"api": {}})
    handler: Any = on_the_loop if kind == "loop" else work
    pipeline.stage(name="work", resource="api", max_attempts=1)(handler)
    ran = run(pipeline, ["page-1"])
    assert [type(cause) for cause in causes] == [httpx.RemoteProtocolError]
    assert ran.states("work") == {"failed": 1}
    assert {call.name: call.state for call in ran.app.calls("page-1")} == {
        "first": "doubtful",
        "second": "not_charged",
    }
    assert money(ran.app) == {"spent": PRICE, "costs": 0, "in_doubt": PRICE}


# A key that is refused ------------------------------------------------------------------------------------------------


@pytest.mark.req("P2", "V6")
@pytest.mark.parametrize(
    ("kind", "client", "mood"),
    [
        ("thread", "openai", "401-key"),
        ("loop", "httpx", "401-key"),
        ("process", "anthropic", "401-key"),
        ("thread", "openai", "403"),
        ("thread", "httpx", "403-key"),
    ],
)
def test_a_key_that_is_refused_pauses_the_resource_and_spends_no_attempt(run, provider, kind, client, mood):
    provider.next = [mood]
    pipeline = paying(CLIENTS[client], f"{provider.url}/next", kind=kind, max_attempts=1)
    asked = len(provider.calls)
    with run.serving(pipeline, keys(5), concurrency=1) as (_, ran):
        wait_for(lambda: is_honest(ran.app) and limit(ran.app).paused)
        wait_for(lambda: ran.states("work").get("in_progress", 0) == 0)
        told = limit(ran.app)
        assert "Incorrect API key" in told.reason or "invalid x-api-key" in told.reason or "moody 403" in told.reason
        assert told.paused_until is None
        assert money(ran.app) == NOTHING
        assert len(provider.calls) - asked <= 4
        assert [event.data["by"] for event in ran.events("paused")] == ["key refused"]
        assert {ran.stage(key, "work").attempts for key in keys(5)} <= {0, None}
        provider.next = ["200"]
        assert ran.app.resume("api", resource=True)
        until(ran, done=5)
        assert {ran.stage(key, "work").attempts for key in keys(5)} == {1}
        assert money(ran.app) == {"spent": 5 * PRICE, "costs": 5 * PRICE, "in_doubt": 0}


@pytest.mark.req("P2")
def test_a_success_in_between_begins_the_count_anew(run: LimitedBench, provider: MoodyServer):
    provider.next = ["401-key", "401-key", "200", "401-key", "401-key", "200", "200"]
    ran = run(paying(CLIENTS["httpx"], f"{provider.url}/next", max_attempts=1), keys(3), concurrency=1)
    assert ran.states("work") == {"done": 3}
    assert not limit(ran.app).paused and ran.events("paused") == ()


@pytest.mark.req("P2")
@pytest.mark.parametrize("uses", [True, False])
def test_a_key_that_is_refused_again_after_a_resumption_is_tried_three_times_more(run, provider: MoodyServer, uses):
    provider.next = ["401-key"]
    pipeline = paying(CLIENTS["httpx"], f"{provider.url}/next", uses=uses)
    name = "api" if uses else "p/work"
    asked = len(provider.calls)
    with run.serving(pipeline, keys(3), concurrency=1) as (_, ran):
        for times in (1, 2):
            wait_for(lambda times=times: len(ran.events("paused")) == times)
            wait_for(lambda: ran.states("work").get("in_progress", 0) == 0)
            assert len(provider.calls) - asked >= 3
            asked = len(provider.calls)
            if times == 2:
                provider.next = ["200"]
            assert ran.app.resume(name, resource=uses)
        until(ran, done=3)
        assert len(ran.events("paused")) == 2


@pytest.mark.req("P2")
def test_a_stage_without_a_resource_is_paused_itself_and_no_other(run: LimitedBench, provider: MoodyServer):
    provider.next = ["401-key"]
    pipeline = paying(CLIENTS["openai"], f"{provider.url}/next", uses=False, max_attempts=1)
    pipeline.stage(name="other")(lambda item, ctx: "done")
    with run.serving(pipeline, keys(3)) as (_, ran):
        wait_for(lambda: ran.events("paused"))
        wait_for(lambda: ran.states("other") == {"done": 3})
        # Until its short wait is over, the item names that.
        wait_for(lambda: ran.app.why("page-0").reason == "paused")
        assert "Incorrect API key" in ran.app.why("page-0").text
        provider.next = ["200"]
        assert ran.app.resume("p/work")
        until(ran, done=3)
        assert {ran.stage(key, "work").attempts for key in keys(3)} == {1}


@pytest.mark.req("P2")
def test_a_handler_may_say_itself_that_the_key_is_refused(run: LimitedBench):
    def ask(_: str) -> None:
        raise CredentialRefused("the token has expired")

    with run.serving(paying(ask, ""), ["page-1"]) as (_, ran):
        wait_for(lambda: limit(ran.app).paused)
        assert "the token has expired" in limit(ran.app).reason
        assert money(ran.app) == NOTHING


@pytest.mark.req("P2", "P11")
@pytest.mark.parametrize("client", ["httpx", "aiohttp"])
def test_a_page_that_forbids_a_scraper_is_the_own_failure_of_its_item(run: LimitedBench, provider: MoodyServer, client):
    """The handler pays for nothing: the page may be there at the next attempt."""
    asked: list[str] = []

    def work(item: Item, ctx: Context) -> str:
        asked.append(item.key)
        CLIENTS[client](f"{provider.url}/{'200' if item.key == 'open' else '403-page'}")
        return "done"

    pipeline = Pipeline("p", resources={"api": {}})
    pipeline.stage(name="work", resource="api", backoff=QUICK, max_attempts=2)(work)
    ran = run(pipeline, [*keys(4), "open"])
    assert ran.states("work") == {"exhausted": 4, "done": 1}
    assert Counter(asked) == {**dict.fromkeys(keys(4), 2), "open": 1}
    assert not limit(ran.app).paused and ran.events("paused") == ()


def unpaid(ask: Ask, address: str, **settings: Any) -> Pipeline:
    pipeline = Pipeline("p", resources={"api": settings.pop("limits")})
    pipeline.stage(name="work", resource="api", backoff=QUICK, **settings)(lambda item, ctx: ask(address))
    return pipeline


@pytest.mark.req("P2")
@pytest.mark.parametrize(
    ("mood", "pays", "ends"),
    [("400", True, "failed"), ("400", False, "exhausted"), ("504", True, ""), ("500", False, ""), ("nobody", True, "")],
)
def test_wrong_requests_do_not_open_the_breaker_and_a_failing_provider_does(run, provider, mood, pays, ends):
    limits = {"breaker": {"failures": 3, "probe_after": "1h"}}
    address = nobody_listens() if mood == "nobody" else f"{provider.url}/{mood}"
    pipeline = (paying if pays else unpaid)(CLIENTS["httpx"], address, max_attempts=2, limits=limits)
    with run.serving(pipeline, keys(4), concurrency=1) as (_, ran):
        if ends:
            until(ran, **{ends: 4})
        else:
            wait_for(lambda: ran.events("breaker_opened"))
        assert (limit(ran.app).breaker == "open") is not bool(ends)


@pytest.mark.req("P2", "P11")
def test_an_overload_cools_the_resource_and_does_not_open_its_breaker(run: LimitedBench, provider: MoodyServer):
    provider.next = ["500"]
    limits = {"breaker": {"failures": 3, "probe_after": "1h"}, "cool": "10ms", "cool_most": "20ms"}
    pipeline = paying(CLIENTS["httpx"], f"{provider.url}/next", max_attempts=1, limits=limits)
    asked = len(provider.calls)
    with run.serving(pipeline, keys(4), concurrency=1) as (_, ran):
        wait_for(lambda: is_honest(ran.app) and len(provider.calls) - asked > 8)
        assert ran.events("cooled_down")
        provider.next = ["200"]
        until(ran, done=4)
        assert limit(ran.app).breaker != "open" and ran.events("breaker_opened") == ()
        assert {ran.stage(key, "work").attempts for key in keys(4)} == {1}
        assert money(ran.app) == {"spent": 4 * PRICE, "costs": 4 * PRICE, "in_doubt": 0}


@pytest.mark.parametrize("table", ["resources", "stages"])
def test_a_count_of_refusals_that_somebody_else_has_spoilt_still_pauses(run: LimitedBench, table: str):
    """One more would have left its column, and no attempt could end."""
    pipeline = Pipeline("p", resources={"api": {}})

    @pipeline.stage(resource="api" if table == "resources" else ())
    def work(item: Item, ctx: Context) -> str:
        raise CredentialRefused("wrong key")

    with run.serving(pipeline, concurrency=1) as (_, ran):
        ran.app.store.write(lambda tx: ask(tx, f"UPDATE holdfast_{table} SET refusals = {2**31 - 1}"))
        ran.app.add("p", ["page"])
        wait_for(lambda: ran.events("paused"))


# Keys that are refused, and what one item alone meets -------------------------------------------------------------------


def test_one_refused_call_of_a_batch_is_one_refusal(run: LimitedBench):
    """Three in a row pause the resource: not one call for three items."""
    calls: list[int] = []

    def ask(items: list[Item]) -> list[str]:
        calls.append(len(items))
        if len(calls) == 2:
            raise CredentialRefused("wrong key")
        return [item.key for item in items]

    pipeline = Pipeline("p", resources={"api": {}})

    @pipeline.stage(batch=4, resource="api", backoff=QUICK)
    def work(items: list[Item], ctx: BatchContext) -> Any:
        return ctx.once("ask", ask, items, cost=0.40)

    ran = run(pipeline, keys(8), concurrency=1)
    assert ran.states("work") == {"done": 8} and ran.events("paused") == ()
    assert calls[1] == 4, "the refused call was for several items"


@pytest.mark.parametrize("uses", ["api", ()])
def test_refusals_in_a_row_end_with_a_success_of_a_handler_that_calls_the_client_itself(run: LimitedBench, uses: Any):
    refused: set[str] = set()
    pipeline = Pipeline("p", resources={"api": {}})

    @pipeline.stage(resource=uses, backoff=QUICK)
    def work(item: Item, ctx: Context) -> str:
        if item.key.startswith("bad") and item.key not in refused:
            refused.add(item.key)
            raise CredentialRefused("not now")
        return "done"

    with run.serving(pipeline, concurrency=1) as (_, ran):
        for n in range(6):
            ran.app.add("p", [f"bad-{n}"])
            wait_for(lambda n=n: ran.state(f"bad-{n}", "work") == "done")
        assert ran.events("paused") == ()


@pytest.mark.req("V1", "V7")
@pytest.mark.parametrize("is_paid", [True, False])
def test_a_key_that_is_refused_for_one_item_alone_counts_as_the_failure_of_this_item(
    run: LimitedBench, is_paid: bool, monkeypatch: pytest.MonkeyPatch
):
    """It may name what this key has no right to. It is not tried without end, and others are not stopped."""
    monkeypatch.setattr(handler_outcome, "AWAY_US", 1000)
    pipeline = Pipeline("p", resources={"api": {}})
    one_has_passed = threading.Semaphore(0)
    refusals: list[str] = []

    def ask(key: str) -> str:
        if key == "foreign":
            one_has_passed.acquire()
            refusals.append(key)
            raise CredentialRefused("not yours")
        return "yours"

    @pipeline.stage(resource="api", max_attempts=2, backoff=QUICK)
    def work(item: Item, ctx: Context) -> str:
        return ctx.once("ask", ask, item.key, cost=0.40) if is_paid else ask(item.key)

    with run.serving(pipeline, ["foreign"], concurrency=2) as (_, ran):
        # Refused again and again, the item's own, and once more after that.
        for n in range(2 * MOST_PAUSES):
            ran.app.add("p", [f"good-{n}"])
            wait_for(lambda n=n: ran.state(f"good-{n}", "work") == "done")
            one_has_passed.release()
            wait_for(lambda n=n: len(refusals) == n + 1)
        wait_for(lambda: ran.state("foreign", "work") == "exhausted")
        assert ran.events("paused") == ()
        assert str(ran.stage("foreign", "work").error).startswith("CredentialRefused: ")


@pytest.mark.req("V7")
@pytest.mark.parametrize("error", [InputTooLong, ContentFiltered, BadRequest])
def test_one_wrong_input_of_a_batch_fails_its_own_item_alone(run: LimitedBench, error: type[Exception]):
    pipeline = Pipeline("p", resources={"api": {}})
    alone: list[str] = []
    answered: list[int] = []

    def ask(items: list[Item]) -> list[str]:
        if any(item.key == "wrong" for item in items):
            if len(items) == 1:
                alone.append(items[0].key)
            raise error("no")
        answered.append(len(items))
        return [item.key for item in items]

    @pipeline.stage(batch=4, resource="api", max_attempts=3, backoff=QUICK)
    def work(items: list[Item], ctx: BatchContext) -> Any:
        return ctx.once("ask", ask, items, cost=0.40)

    ran = run(pipeline, [*keys(7), "wrong"])
    assert ran.states("work") == {"done": 7, "failed": 1}
    assert ran.state("wrong", "work") == "failed" and alone == ["wrong"], "alone it fails at once"
    assert sum(answered) == 7
    assert money(ran.app)["costs"] == len(answered) * PRICE
