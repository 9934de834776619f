"""Limits in real workers: what a provider says is heeded by all of them, and no bad item, guard or function stops the rest."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
import urllib.error
from collections.abc import Iterator
from email.message import Message
from typing import Any

import pytest

from holdfast import Context, Holdfast, Item, OutOfCredit, Pipeline, RateLimited, UsageError
from holdfast.answers import ResourceLimit
from holdfast.engine.claim import Lease
from holdfast.model.money import micros
from holdfast.model.stage import StageSpec
from holdfast.testing import ManualClock
from holdfast.worker.call import StageCall
from holdfast.worker.commit.prefetch import InHand
from holdfast.worker.worker import Worker
from tests.support.bench import Ran
from tests.support.effort import effort
from tests.support.harness import App
from tests.support.kinds import KINDS, keys, stage
from tests.support.limited_bench import LimitedBench, Starts
from tests.support.limits import STATEMENTS, over, statements
from tests.support.processes import wait_for
from tests.support.slowness import slowness
from tests.support.together import listening

pytestmark = pytest.mark.req("V11")


@pytest.fixture
def run(url: str) -> Iterator[LimitedBench]:
    bench = LimitedBench(url)
    yield bench
    bench.close()


def limit(app: Holdfast, name: str = "api") -> ResourceLimit:
    return next(one for one in app.limits() if one.name == name)


def is_done(ran: Ran, count: int, name: str = "work") -> bool:
    return ran.states(name) == {"done": count}


class Reply(Exception):
    """As an HTTP client raises it; a class of a module, so that a child process can raise it too."""

    def __init__(self, client: str, status: int, **headers: str) -> None:
        super().__init__(f"answered {status}")
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        if client == "aiohttp":
            self.status, self.headers = status, told
        else:
            self.response = type("Response", (), {"status_code": status, "headers": told})()


def reply(client: str, status: int, **headers: str) -> Exception:
    if client != "urllib":
        return Reply(client, status, **headers)
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return urllib.error.HTTPError("http://localhost", status, "no", message, None)


# What a person says is followed ----------------------------------------------------------------------------------------


@pytest.mark.req("J11")
def test_a_worker_that_was_idle_follows_a_pause_and_a_resumption_at_once(run: LimitedBench):
    """Not only when some service of its happens to look, half a lease later."""
    ran: list[str] = []
    pipeline = Pipeline("p")
    stage(pipeline, "thread", lambda item, ctx: ran.append(item.key), name="work")
    with run.serving(pipeline, ["first"], lease_seconds=600) as (worker, seen):
        wait_for(lambda: ran == ["first"] and worker._committer.idle)
        seen.app.pause("p", reason="wait")
        seen.app.add("p", ["second"])
        time.sleep(0.5)
        assert ran == ["first"]
        assert seen.app.why("second").reason == "paused"
        seen.app.resume("p")
        wait_for(lambda: ran == ["first", "second"])


@pytest.mark.req("J11")
def test_a_paused_stage_begins_nothing_while_the_other_stages_go_on(run: LimitedBench):
    pipeline = Pipeline("p")
    begun: list[str] = []

    @pipeline.stage()
    def first(item, ctx):
        return 1

    @pipeline.stage(after="first")
    def second(item, ctx):
        begun.append(item.key)

    with run.serving(pipeline) as (_, ran):
        ran.app.pause("p/second", reason="the prompt is wrong")
        ran.app.add("p", ["page-1", "page-2"])
        wait_for(lambda: ran.states("first").get("done") == 2)
        wait_for(lambda: ran.states("second").get("pending") == 2)
        assert begun == []
        answer = ran.app.why("page-1")
        assert (answer.reason, answer.do) == ("paused", "to let it go on: holdfast resume p/second")
        assert "the prompt is wrong" in answer.text
        assert ran.app.resume("p/second")
        wait_for(lambda: sorted(begun) == ["page-1", "page-2"])
        assert not ran.app.resume("p/second")


def test_a_paused_stage_with_a_time_goes_on_by_itself(run: LimitedBench):
    app = run.app(pipeline := one_quick_stage(), ["page-1"])
    app.pause("p/work", until=0.3)
    run(pipeline)
    assert app.status().pipelines[0].stages[0].states == {"done": 1}


def one_quick_stage() -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.stage(name="work")(lambda item, ctx: None)
    return pipeline


def test_a_stage_that_does_not_exist_cannot_be_paused(run: LimitedBench):
    app = run.app(one_quick_stage(), ["page-1"])
    with pytest.raises(UsageError, match="no stage 'wrok'; there are: work"):
        app.pause("p/wrok")


def test_a_pause_with_a_time_ends_in_running_workers_by_itself(run: LimitedBench):
    pipeline = Pipeline("p")
    stage(pipeline, "thread", lambda item, ctx: None, name="work")
    app = run.app(pipeline, keys(3))
    app.pause("p", until=0.5)
    begun = time.monotonic()
    with run.serving(pipeline, lease_seconds=600) as (_, ran):
        wait_for(lambda: is_done(ran, 3))
    assert time.monotonic() - begun >= 0.4
    assert not any(one.paused for one in app.status().pipelines)


@pytest.mark.req("J11", "J17")
@pytest.mark.parametrize("act", ["pause", "tune"])
def test_a_worker_that_is_about_to_claim_when_a_pause_or_a_limit_comes_claims_by_it(run: LimitedBench, act: str):
    """What was decided before the transaction began is not what holds within it."""
    starts = Starts()
    pipeline = Pipeline("p")

    def work(item: Item, ctx: Context) -> None:
        with starts.one(item.key):
            time.sleep(0.03)

    stage(pipeline, "thread", work, name="work")
    app = run.app(pipeline, keys(20))
    acted = threading.Event()

    def listener(point: str) -> None:
        if point == "claim.before" and not acted.is_set():
            acted.set()
            app.pause("p") if act == "pause" else app.tune("p", {"concurrency": 1})

    with listening(listener), run.serving(pipeline) as (_, ran):
        assert acted.wait(10)
        if act == "pause":
            time.sleep(0.5)
            assert len(starts) == 0
        else:
            wait_for(lambda: is_done(ran, 20))
            assert starts.most == 1


@pytest.mark.req("J17")
def test_slots_are_for_all_workers_together_and_follow_the_tuning(run: LimitedBench):
    starts = Starts()
    pipeline = Pipeline("p", resources={"api": {"concurrency": 2}})

    def work(item: Item, ctx: Context) -> None:
        with starts.one(item.key):
            time.sleep(0.02)

    stage(pipeline, "thread", work, name="work", resource="api")
    with run.crowd(pipeline, 2, keys(30), concurrency=4) as ran:
        wait_for(lambda: is_done(ran, 30))
        assert starts.most == 2
        ran.app.tune("p", {"api.concurrency": 5})
        ran.app.add("p", [f"more-{n}" for n in range(40)])
        wait_for(lambda: is_done(ran, 70))
        assert 3 <= starts.most <= 5


@pytest.mark.req("J17")
def test_many_changes_of_the_tuning_under_load_lose_nothing_and_the_last_is_in_force(run: LimitedBench):
    count, changes = effort(1000, 20_000), effort(100, 1000)
    starts = Starts()
    pipeline = Pipeline("p", resources={"api": {"rate": "100000/s"}}, tuning={"concurrency": 40})

    def work(item: Item, ctx: Context) -> None:
        with starts.one(item.key):
            if item.key.startswith("slow"):
                time.sleep(0.02)

    stage(pipeline, "thread", work, name="work", resource="api")
    app = run.app(pipeline, keys(count))
    with run.serving(pipeline, concurrency=64) as (_, ran):
        for number in range(changes):
            key, value = [
                ("concurrency", 20 + number % 30),
                ("api.rate", f"{20_000 + number}/s"),
                ("work.concurrency", 50),
                ("disk_free", number),
            ][number % 4]
            app.tune("p", {key: value})
            if number % 10 == 0:
                app.add("p", [f"more-{number}"])
        last = {"concurrency": 3, "api.rate": "2000/s", "work.concurrency": None, "disk_free": None}
        app.tune("p", last, reason="the last word")
        # Three at a time, as the last word says.
        wait_for(lambda: is_done(ran, count + changes // 10), timeout=effort(30, 300), every=0.1)
        starts.forget_most()
        app.add("p", [f"slow-{n}" for n in range(30)])
        wait_for(lambda: is_done(ran, count + changes // 10 + 30), every=0.1)
    assert len(starts) == len(set(starts.keys)) == count + changes // 10 + 30
    assert starts.most <= 3
    assert limit(app, "@p").allowed == {"concurrency": 3}
    assert limit(app).allowed == {"rate": "2000/s"}
    assert limit(app, "@p/work").allowed == {}
    assert len(app.events(event="tuned", most=2000)) == changes + 1
    assert app.check() == []


# What a provider says --------------------------------------------------------------------------------------------------


@pytest.mark.fault(63)
def test_three_rate_limits_never_open_the_breaker_spend_no_attempt_and_every_worker_waits(run: LimitedBench):
    starts = Starts()
    pipeline = Pipeline("p", resources={"api": {"breaker": {"failures": 1, "probe_after": "1h"}}})
    known = threading.Event()

    def work(item: Item, ctx: Context) -> int:
        with starts.one(item.key) as number:
            if number <= 3:
                raise RateLimited(retry_after=1.5)
            # Who has begun before the pause was known does not make room for others before it is.
            known.wait(20)
            return ctx.attempt

    stage(pipeline, "thread", work, name="work", resource="api")
    with run.crowd(pipeline, 3, keys(60), concurrency=3) as ran:
        wait_for(lambda: len(ran.events("snoozed")) == 3)
        known.set()
        wait_for(lambda: is_done(ran, 60))
        assert limit(ran.app).breaker == "closed"
        assert ran.events("breaker_opened") == ()
        assert {ran.result(key, "work") for key in keys(60)} == {1}
    # By the clock of the database: when the pause was asked for, and when work was claimed.
    told = min(event.at for event in ran.events("snoozed"))
    claimed = [(ran.stage(key, "work").started_at - told).total_seconds() for key in keys(60)]
    assert [after for after in claimed if 0.5 < after < 1.5] == [], (
        "somebody began though the provider had asked for a pause"
    )
    assert sum(after >= 1.5 for after in claimed) > 20
    for key in {starts.keys[n] for n in range(3)}:
        first, second = [moment for moment, one in zip(starts.moments, starts.keys, strict=True) if one == key]
        assert second - first >= 1.5


@pytest.mark.fault(63)
@pytest.mark.parametrize(
    ("kind", "client"),
    [*((kind, "httpx") for kind in KINDS), ("loop", "aiohttp"), ("thread", "urllib"), ("process", "urllib")],
)
def test_what_a_client_raises_for_429_cools_the_resource_down_wherever_the_handler_runs(
    run: LimitedBench, kind, client
):
    pipeline = Pipeline("p", resources={"api": {}})

    def work(item: Item, ctx: Context) -> None:
        raise reply(client, 429, Retry_After="600")

    stage(pipeline, kind, work, name="work", resource="api")
    with run.serving(pipeline, ["page"]) as (_, ran):
        wait_for(lambda: ran.states("work") == {"retry_later": 1})
        assert 500 < (limit(ran.app).cool_until.timestamp() - time.time()) <= 600
        assert ran.stage("page", "work").attempts == 0
        assert "429" in ran.stage("page", "work").error
        # Chance only adds, and not for long.
        later = ran.stage("page", "work").next_attempt_at - limit(ran.app).cool_until
        assert 0 <= later.total_seconds() <= 31


@pytest.mark.fault(63)
@pytest.mark.parametrize("kind", ["thread", "loop", "process"])
def test_a_page_that_names_a_time_in_the_far_future_is_left_alone_for_a_day(run: LimitedBench, kind):
    pipeline = Pipeline("p", resources={"api": {}})

    def work(item: Item, ctx: Context) -> None:
        raise reply("httpx", 503, Retry_After="Fri, 31 Dec 9999 23:59:59 GMT")

    stage(pipeline, kind, work, name="work", resource="api", max_attempts=1)
    with run.serving(pipeline, ["page"]) as (_, ran):
        wait_for(lambda: limit(ran.app).cool_until)
        assert limit(ran.app).cool_until.timestamp() - time.time() < 86_401
        assert ran.states("work") == {"retry_later": 1}
        later = ran.stage("page", "work").next_attempt_at - limit(ran.app).cool_until
        assert 0 <= later.total_seconds() <= 31, "as long as asked, however long that is"


@pytest.mark.fault(62, 63)
@pytest.mark.parametrize("resource", ["api", ()])
def test_a_provider_that_asks_for_no_pause_at_all_is_not_stormed(run: LimitedBench, resource):
    """429 with `Retry-After: 0`, again and again: no attempt is spent, so nothing else would ever end it."""
    starts = Starts()
    pipeline = Pipeline("p", resources={"api": {}})

    def work(item: Item, ctx: Context) -> None:
        with starts.one(item.key):
            raise reply("httpx", 429, Retry_After="0")

    stage(pipeline, "thread", work, name="work", resource=resource)
    with run.serving(pipeline, keys(20), concurrency=4) as (_, ran):
        wait_for(lambda: starts.moments)
        time.sleep(2)
        assert len(starts) <= 4 * 20 if resource == () else len(starts) <= 4 * 4
        assert not ran.states("work").get("exhausted")


def test_a_503_without_a_time_is_a_failure_that_counts(run: LimitedBench):
    pipeline = Pipeline("p", resources={"api": {"breaker": {"failures": 2, "probe_after": "1h"}}})

    def work(item: Item, ctx: Context) -> None:
        raise reply("httpx", 503)

    stage(pipeline, "thread", work, name="work", resource="api")
    with run.serving(pipeline, ["page"]) as (_, ran):
        wait_for(lambda: limit(ran.app).breaker == "open")
        assert limit(ran.app).cool_until is None
        assert ran.stage("page", "work").attempts == 2


@pytest.mark.parametrize(("kind", "told"), [("thread", "raised"), ("loop", "raised"), ("process", "402")])
def test_out_of_credit_pauses_at_once_and_goes_on_when_a_person_says_so(run: LimitedBench, kind, told):
    pipeline = Pipeline("p", resources={"api": {}})

    def work(item: Item, ctx: Context) -> int:
        if item.key == "page-0":
            if told == "raised":
                raise OutOfCredit("pay first")
            ctx.once("call", refuse, cost=1)
        return ctx.attempt

    def refuse() -> None:
        raise reply("aiohttp", 402)

    stage(pipeline, kind, work, name="work", resource="api")
    with run.serving(pipeline, ["page-0"], concurrency=1) as (_, ran):
        wait_for(lambda: limit(ran.app).paused)
        assert limit(ran.app).reason.startswith("out of credit: ")
        ran.app.add("p", ["page-1"])
        assert ran.app.why("page-1").reason == "paused"
        time.sleep(0.3)
        assert ran.state("page-1", "work") == "pending"
        ran.app.cancel(key="page-0")
        ran.app.resume("api", resource=True)
        wait_for(lambda: ran.state("page-1", "work") == "done")
        assert ran.result("page-1", "work") == 1


def test_a_plain_request_that_is_answered_402_is_an_ordinary_failure(run: LimitedBench):
    """A page behind a paywall says nothing about an account of ours."""
    pipeline = Pipeline("p", resources={"api": {}})

    def work(item: Item, ctx: Context) -> None:
        raise reply("aiohttp", 402)

    stage(pipeline, "thread", work, name="work", resource="api", max_attempts=1)
    ran = run(pipeline, ["page"])
    assert ran.states("work") == {"exhausted": 1}
    assert not limit(ran.app).paused


def test_out_of_credit_in_a_stage_without_a_resource_pauses_that_stage_and_no_other(run: LimitedBench):
    pipeline, beside = Pipeline("p"), Pipeline("q")

    def work(item: Item, ctx: Context) -> None:
        raise OutOfCredit("pay first")

    stage(pipeline, "thread", work, name="work")
    stage(beside, "thread", lambda item, ctx: None, name="free")
    run.others = [beside]
    with run.crowd(pipeline, 3, keys(12), concurrency=2) as ran:
        wait_for(lambda: ran.app.status().pipeline("p").stage("work").held)
        ran.app.add("q", keys(5))
        wait_for(lambda: is_done(ran, 5, "free"))
        assert ran.app.why("page-11", "p").reason in ("paused", "backoff")
        held = ran.app.status().pipeline("p").stage("work").held
        assert held is not None and "out of credit: pay first" in held.text
        assert not ran.states("work").get("exhausted")


def test_headers_that_say_that_nothing_is_left_are_heeded_by_everyone(run: LimitedBench):
    pipeline = Pipeline("p", resources={"api": {}})

    def work(item: Item, ctx: Context) -> None:
        ctx.heed({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "600"})

    stage(pipeline, "process", work, name="work", resource="api")
    with run.serving(pipeline, ["page"]) as (_, ran):
        wait_for(lambda: is_done(ran, 1))
        assert 500 < (limit(ran.app).cool_until.timestamp() - time.time()) <= 600


def test_an_adaptive_pace_is_halved_by_a_rate_limit(run: LimitedBench):
    pipeline = Pipeline("p", resources={"api": {"rate": "1000/s", "adaptive": True}})

    def work(item: Item, ctx: Context) -> None:
        if item.key == "page-0" and not said:
            said.append(item.key)
            raise RateLimited(retry_after=0.05)

    said: list[str] = []
    stage(pipeline, "thread", work, name="work", resource="api")
    with run.serving(pipeline, keys(3)) as (_, ran):
        wait_for(lambda: is_done(ran, 3))
        assert 0.5 <= limit(ran.app).pace < 0.6


@pytest.mark.req("J19")
@pytest.mark.fault(62)
def test_while_a_provider_is_down_it_is_asked_now_and_then_and_everything_goes_on_when_it_is_back(run: LimitedBench):
    starts, down = Starts(), threading.Event()
    down.set()
    pipeline = Pipeline("p", resources={"api": {"breaker": {"failures": 3, "probe_after": "0.2s"}}})

    def work(item: Item, ctx: Context) -> None:
        with starts.one(item.key):
            if down.is_set():
                raise ConnectionError("nobody is there")

    stage(pipeline, "thread", work, name="work", resource="api", max_attempts=100)
    with run.crowd(pipeline, 2, keys(40), concurrency=4) as ran:
        wait_for(lambda: len(ran.events("breaker_opened")) >= 4)
        tried = len(starts)
        # Both had their hands full when it opened; after that, one at a time.
        assert tried <= 8 + 3 + len(ran.events("breaker_opened"))
        down.clear()
        wait_for(lambda: is_done(ran, 40))
        assert limit(ran.app).breaker == "closed"


# What a handler tells of itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "many", None, True, 1e13, 2**60])
def test_a_number_of_units_that_is_none_fails_the_attempt_with_a_clear_line(run: LimitedBench, wrong):
    pipeline = Pipeline("p", resources={"api": {"units": {"tokens": "100000/min"}}})

    def work(item: Item, ctx: Context) -> None:
        if item.key == "page-0":
            ctx.used(tokens=wrong)

    stage(pipeline, "thread", work, name="work", resource="api", max_attempts=1, units={"tokens": lambda item: 1})
    ran = run(pipeline, keys(3))
    assert ran.states("work") == {"done": 2, "exhausted": 1}
    assert "used(tokens=" in ran.stage("page-0", "work").error


@pytest.mark.parametrize("kind", KINDS)
def test_units_that_were_really_used_are_settled_wherever_the_handler_runs(run: LimitedBench, kind):
    pipeline = Pipeline("p", resources={"api": {"units": {"tokens": "1000/hour"}}})

    def work(item: Item, ctx: Context) -> None:
        ctx.used(tokens=100)
        ctx.used(tokens=400)

    stage(pipeline, kind, work, name="work", resource="api", units={"tokens": lambda item: 1})
    with run.serving(pipeline, ["page"]) as (_, ran):
        wait_for(lambda: is_done(ran, 1))
        [(used_until,)] = App(ran.app.store, ManualClock()).query(_BUCKETS)
        assert used_until / 1e9 - time.time() == pytest.approx(1800, abs=100)


_BUCKETS = "SELECT used_until FROM holdfast_buckets WHERE unit = 'tokens'"


def test_a_batch_takes_for_each_of_its_items_and_each_may_be_rate_limited_alone(run: LimitedBench):
    starts = Starts()
    pipeline = Pipeline("p", resources={"api": {"rate": "1000/s", "burst": 500, "concurrency": 20}})

    @pipeline.stage(batch=5, resource="api")
    def work(items: list[Item], ctx: Any) -> list[Any]:
        with starts.one(items[0].key):
            for item in items:
                ctx.of(item).used(tokens=1)
            return [RateLimited(0.01) if item.key == "page-3" and len(starts) < 8 else item.key for item in items]

    ran = run(pipeline, keys(30), concurrency=2)
    assert ran.states("work") == {"done": 30}
    assert {ran.stage(key, "work").attempts for key in keys(30)} == {1}


# Functions that weigh --------------------------------------------------------------------------------------------------


class Biting(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


BAD_FUNCTIONS: dict[str, Any] = {
    "raises": ValueError("cannot tell"),
    "raises what bites": Biting(),
    "exits": SystemExit(3),
    "says nothing": lambda: None,
    "says nonsense": lambda: "much",
    "says less than nothing": lambda: -1,
    "says too much": lambda: 9e14,
    "says not a number": lambda: float("nan"),
    "hangs": lambda: time.sleep(20),
}


@pytest.mark.parametrize(
    ("what", "name"),
    [*(("units", name) for name in BAD_FUNCTIONS), ("estimate", "raises"), ("estimate", "says nonsense")],
)
def test_a_function_that_cannot_weigh_an_item_fails_that_item_and_stops_nothing_else(
    run: LimitedBench, name: str, what: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("holdfast.worker.commit.claim_planner.WEIGH_SECONDS", 0.2)
    pipeline, beside = (
        Pipeline("p", resources={"api": {"units": {"tokens": "1000000/s"}, "budget": "1000"}}),
        Pipeline("q"),
    )
    stage(beside, "thread", lambda item, ctx: None, name="free")

    def weigh(item: Item) -> Any:
        if item.key != "page-0":
            return 1
        bad = BAD_FUNCTIONS[name]
        if isinstance(bad, BaseException):
            raise bad
        return bad()

    how: dict[str, Any] = {"units": {"tokens": weigh}} if what == "units" else {"estimate": weigh}
    stage(pipeline, "thread", lambda item, ctx: None, name="work", resource="api", max_attempts=2, **how)
    run.others = [beside]
    with run.serving(pipeline, keys(4), concurrency=2) as (_, ran):
        ran.app.add("q", keys(3))
        wait_for(lambda: is_done(ran, 3, "free"))
        wait_for(lambda: ran.states("work") == {"done": 3, "exhausted": 1})
        [error] = [one.error for one in ran.app.show("page-0", "p").stages]
        assert "what it will use c" in error
        spent = {one.attempts for n in (1, 2, 3) for one in ran.app.show(f"page-{n}", "p").stages}
        assert spent == {1}, "the others have paid for it"


def test_two_workers_that_weigh_the_same_items_are_not_slowed_down_by_each_other(run: LimitedBench):
    """Whoever finds that another was first looks again at once, and does not wait for news."""
    starts = Starts()
    pipeline = Pipeline("p", resources={"api": {"rate": "100/s", "burst": 10}})

    def work(item: Item, ctx: Context) -> None:
        with starts.one(item.key):
            pass

    stage(pipeline, "thread", work, name="work", resource="api", units={"tokens": lambda item: 1})
    with run.crowd(pipeline, 3, keys(200), concurrency=8, poll_seconds=600.0) as ran:
        # Nobody waits for so long: they would not end before the next poll.
        wait_for(lambda: is_done(ran, 200))
    assert over(starts.moments, 100, 10) <= 0


# Who does not use a resource -------------------------------------------------------------------------------------------


def test_a_worker_runs_no_statement_of_limits_for_a_stage_without_a_resource(run: LimitedBench):
    pipeline, beside = Pipeline("p"), Pipeline("q", resources={"api": {"rate": "10/s"}})
    for name, after in (("a", ()), ("b", "a")):
        stage(pipeline, "thread", lambda item, ctx: None, name=name, after=after)
    stage(beside, "thread", lambda item, ctx: None, name="work", resource="api")
    run.others = [beside]
    app = run.app(pipeline)
    app.add("p", keys(200))
    with statements() as count, run.serving(pipeline, stages=("p/a", "p/b")) as (_, ran):
        wait_for(lambda: is_done(ran, 200, "b"))
    assert count["claim"] and not STATEMENTS & count.keys()


# A name that nobody defined --------------------------------------------------------------------------------------------


@pytest.mark.req("J14")
@pytest.mark.parametrize("kind", ["thread", "loop", "process"])
def test_a_payment_that_names_an_unknown_resource_counts_for_what_its_stage_uses_and_an_event_says_so(
    run: LimitedBench, kind
):
    """The money is spent: it must not slip past the budget because of a typo."""
    pipeline = Pipeline("p", resources={"api": {"budget": "10.00"}})

    def work(item: Item, ctx: Context) -> None:
        ctx.cost("0.10", resource="apy")

    stage(pipeline, kind, work, name="work", resource="api")
    ran = run(pipeline, ["page"])
    assert micros(limit(ran.app).spent) == 100_000
    assert [one.name for one in ran.app.limits()] == ["api"]
    [event] = ran.events("unknown_resource", "page")
    assert (event.stage, event.resource) == ("work", "apy")


@pytest.mark.req("J14")
def test_a_payment_that_names_an_unknown_resource_in_a_stage_without_one_is_kept_under_the_stage(run: LimitedBench):
    pipeline = Pipeline("p", tuning={"stages": {"work": {"budget": "10.00"}}})
    stage(pipeline, "thread", lambda item, ctx: ctx.cost("0.10", resource="apy"), name="work")
    ran = run(pipeline, ["page"])
    assert [(one.stage, micros(one.costs)) for one in ran.app.costs(["stage"]).sums] == [("work", 100_000)]
    assert [(one.resource, micros(one.costs)) for one in ran.app.costs(["resource"]).sums] == [(None, 100_000)]
    assert len(ran.events("unknown_resource", "page")) == 1


# Stages with and without a resource share a worker --------------------------------------------------------------------


def started_before_one_ran_out(starts: list[str], count: int) -> dict[str, int]:
    """How many each stage had started when the first of them had started all of its items."""
    seen = {"first": 0, "second": 0}
    for name in starts:
        seen[name] += 1
        if seen[name] == count:
            break
    return seen


@pytest.mark.req("P7")
@pytest.mark.parametrize("kind", ["thread", "loop"])
@pytest.mark.parametrize("limited", ["first", "second"])
@pytest.mark.parametrize("after", [(), "first"])
def test_a_stage_with_a_resource_and_one_without_start_alike(run: LimitedBench, kind: str, limited: str, after: Any):
    """Whichever comes first, and whether one follows the other: neither waits until the other has run out of work."""
    # Longer than a commit, also on a machine on which that takes its time.
    count, seconds = 120, 0.01 * slowness()
    starts: list[str] = []
    pipeline = Pipeline("p", resources={"api": {}})

    def work(name: str) -> Any:
        async def on_the_loop(item: Item, ctx: Context) -> None:
            starts.append(name)
            await asyncio.sleep(seconds)

        def in_a_thread(item: Item, ctx: Context) -> None:
            starts.append(name)
            time.sleep(seconds)

        return on_the_loop if kind == "loop" else in_a_thread

    for name in ("first", "second"):
        pipeline.stage(name=name, after=after if name == "second" else (), resource="api" if name == limited else ())(
            work(name)
        )
    ran = run(pipeline, keys(count), concurrency=8)
    assert is_done(ran, count, "first") and is_done(ran, count, "second")
    assert min(started_before_one_ran_out(starts, count).values()) > 0.2 * count


@pytest.mark.req("P7")
def test_slots_are_kept_in_use_while_a_stage_without_a_limit_has_work(run: LimitedBench):
    """The second stage begins with the first items that reach it, not once the first stage is through with all of them."""
    count, slots = 60, 4
    starts: list[str] = []
    pipeline = Pipeline("p", resources={"api": {"concurrency": slots}})

    def work(name: str) -> Any:
        def handler(item: Item, ctx: Context) -> None:
            starts.append(name)
            time.sleep(0.03)

        return handler

    pipeline.stage(name="first")(work("first"))
    pipeline.stage(name="second", after="first", resource="api")(work("second"))
    run(pipeline, keys(count), concurrency=8)
    assert started_before_one_ran_out(starts, count)["second"] > slots


@pytest.mark.req("P7")
def test_more_limited_stages_than_places_all_get_their_turn(run: LimitedBench):
    """With one place, nobody's share is a whole one."""
    starts: list[str] = []
    pipeline = Pipeline("p", resources={"api": {}})
    for name, resource in (("first", "api"), ("second", "api"), ("third", ())):
        pipeline.stage(name=name, resource=resource)(lambda item, ctx, name=name: starts.append(name))
    run(pipeline, keys(60), concurrency=1)
    early = starts[: len(starts) // 2]
    assert {name: early.count(name) > 5 for name in ("first", "second", "third")} == dict.fromkeys(
        ("first", "second", "third"), True
    )


# Work that was claimed and could not begin ----------------------------------------------------------------------------


@pytest.mark.req("V6", "V11")
def test_work_that_could_not_begin_in_time_is_claimed_again_and_leaves_no_event(
    run: LimitedBench, monkeypatch: pytest.MonkeyPatch
):
    """As on a machine so busy that most of what is granted comes too late: nothing has happened to it."""
    late = itertools.cycle([True, True, False])
    handed_back: list[str] = []

    def in_time(self: Worker, call: StageCall, start_by: float) -> bool:
        if not next(late):
            return True
        handed_back.extend(lease.key for lease in call.leases)
        self._committer.hand_back([call])
        return False

    monkeypatch.setattr(Worker, "_in_time", in_time)
    pipeline = Pipeline("p", resources={"api": {"rate": "1000/s"}})
    stage(pipeline, "thread", lambda item, ctx: ctx.attempt, name="work", resource="api", max_attempts=1)
    ran = run(pipeline, keys(20))
    assert len(handed_back) >= 20
    assert [ran.result(key, "work") for key in keys(20)] == [1] * 20
    assert [ran.app.events(key=key) for key in keys(20)] == [()] * 20
    assert {told.event for told in ran.app.history("page-0")} == {"added", "completed"}


def test_fewer_are_claimed_at_once_while_what_was_claimed_begins_too_late():
    hand = InHand(16)
    spec = StageSpec("work", lambda item, ctx: None)

    def call(granted: float, start_by: float) -> StageCall:
        return StageCall("p", spec, [Lease(1, 1, 7, 1, 0, 0, "x", "{}", 0)], 7, granted, 0.0, start_by)

    def most() -> int:
        return hand.share(7, per_call=1, places=16, held=0, start_within=0.05)

    assert most() == 16
    together = time.monotonic()
    for _ in range(5):
        hand.began(call(together, together + 0.05), late=True)
    assert most() == 8, "once for all that were claimed together"
    hand.began(call(time.monotonic(), math.inf), late=True)
    assert most() == 4
    hand.began(call(time.monotonic(), together), late=True)
    assert most() == 4, "the commit was slow: fewer would not have been quicker"
    for _ in range(300):
        hand.began(call(time.monotonic(), math.inf), late=False)
    assert most() == 16
