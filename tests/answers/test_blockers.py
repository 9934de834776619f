"""What stands in the way: since when and until when, each of it once, and in the JSON of the overview."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Backoff, Context, Holdfast, Item, Pipeline, RateLimited
from holdfast.answers import Blocker, json_of
from holdfast.answers.blockers import blockers
from holdfast.answers.overview import Overview
from holdfast.engine.blocked_since import BlockedSince
from holdfast.engine.on_hold import hold
from holdfast.store import Transaction

pytestmark = [pytest.mark.req("P17"), pytest.mark.req("V14")]


def found(app: Holdfast) -> dict[str, list[Blocker]]:
    """By the words before the first colon or `is`, without what living workers would change."""
    told: dict[str, list[Blocker]] = {}
    for one in blockers(Overview(app.status(), app.limits())):
        if "no living worker" not in one.what:
            told.setdefault(one.where, []).append(one)
    return told


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


def is_about(at: datetime | None, then: datetime) -> bool:
    return at is not None and timedelta(0) <= at - then + timedelta(seconds=5) and at - then < timedelta(hours=1)


def shop(url: str, **limits: Any) -> Pipeline:
    made = Pipeline("shop", store=url, resources={"api": limits})

    @made.stage(resource="api")
    def sell(item: Item, ctx: Context) -> None:
        if item.data:
            raise RateLimited(retry_after=600)
        ctx.cost("1")

    return made


def test_pauses_are_told_once_with_since_and_until(url: str, now: datetime):
    shop(url).add(["a"])
    with Holdfast(url, create=False) as app:
        app.pause("api", resource=True, reason="a look")
        [one] = found(app)["shop/sell"]
        assert "a look" in one.what and is_about(one.since, now)
        assert "api" not in found(app)
        assert is_about(app.limits()[0].paused_at, now)
        app.resume("api", resource=True)
        app.pause("shop/sell", reason="another")
        [one] = found(app)["shop/sell"]
        assert one.since == app.status().pipelines[0].stages[0].paused_at
        # Nothing waits for it: then it is told of the resource itself.
        app.cancel(key="a")
        app.pause("api", resource=True, reason="a look")
        [one] = found(app)["api"]
        assert is_about(one.since, now) and one.until is None


def test_a_budget_is_told_once_with_since_and_until(url: str, now: datetime):
    made = shop(url, budget_per_day="1")
    made.add(["a"])
    with Holdfast(url, [made.spec]) as app:
        app.run()
        app.add("shop", ["b"])
        worker = app.worker()
        worker.run(on_tick=lambda: worker.stop() if app.limits()[0].paused else None, tick_seconds=0.05)
        [one] = found(app)["shop/sell"]
        assert is_about(one.since, now) and one.until is not None and one.until > now
        assert "api" not in found(app)


def test_a_cool_down_has_since_and_until(url: str, now: datetime):
    made = shop(url, rate="100/s")
    made.add([{"key": "a", "limited": True}])
    with Holdfast(url, [made.spec]) as app:
        worker = app.worker()
        worker.run(on_tick=lambda: worker.stop() if app.limits()[0].cool_until else None, tick_seconds=0.05)
        [one] = found(app)["shop/sell"]
        assert is_about(one.since, now) and one.until is not None and one.until > now
        assert "api" not in found(app)
        app.cancel(key="a")
        [alone] = found(app)["api"]
        assert (alone.since, alone.until) == (one.since, one.until)


def test_an_open_breaker_has_since_and_until(url: str, now: datetime):
    made = Pipeline("shop", store=url, resources={"api": {"breaker": {"failures": 2, "probe_after": "10m"}}})

    @made.stage(resource="api", max_attempts=9)
    def sell(item: Item, ctx: Context) -> None:
        raise ConnectionError("no answer")

    made.add(["a", "b", "c"])
    with Holdfast(url, [made.spec]) as app:
        worker = app.worker()
        worker.run(on_tick=lambda: worker.stop() if app.limits()[0].breaker == "open" else None, tick_seconds=0.05)
        limit = app.limits()[0]
        assert is_about(limit.breaker_opened_at, now)
        assert limit.breaker_until is not None and limit.breaker_until > now
        told = [one for several in found(app).values() for one in several]
        assert len(told) == 1 and is_about(told[0].since, now) and told[0].until == limit.breaker_until


def test_holds_have_since(url: str, now: datetime):
    shop(url).add(["a"])
    with Holdfast(url, create=False) as app:
        [one] = app.items()
        app.store.write(lambda tx: hold(tx, 1, [one.id], "person", "which edition?"))
        [told] = found(app)["shop/sell"]
        assert told.what == "which edition?" and is_about(told.since, now) and told.do


def an_hour_later(tx: Transaction) -> None:
    table = tx.store.driver.dialect.table("delayed")
    tx.store.driver.run_text(f"UPDATE {table} SET due_at = due_at - 3600000000")


def test_retries_that_are_due_and_no_worker_stand_in_the_way_since_the_last_was_heard_of(url: str):
    made = Pipeline("shop", store=url)

    @made.stage(max_attempts=9, backoff=Backoff(first_seconds=3600, most_seconds=3600))
    def sell(item: Item, ctx: Context) -> None:
        raise ConnectionError("no answer")

    made.add(["a"])
    with Holdfast(url, [made.spec]) as app:
        worker = app.worker()
        worker.run(on_tick=lambda: worker.stop() if app.items(state="retry_later") else None, tick_seconds=0.05)
        assert app.why("a").reason == "backoff"
        app.store.write(an_hour_later)
        assert app.status().pipelines[0].stages[0].due == 1
        assert [one.what for one in blockers(Overview(app.status(), app.limits()))] == [
            "no living worker offers this stage"
        ]
        why = app.why("a")
        assert (why.reason, why.until, why.do) == ("no_worker", None, "start one: holdfast worker FILE")
        assert "attempts are spent; the last error was: ConnectionError: no answer" in why.text
        app.pause("shop", reason="a look")
        assert app.why("a").reason == "paused"


def test_an_event_before_the_look_is_not_searched_for(url: str):
    shop(url).add(["a"])
    with Holdfast(url, create=False) as app:
        app.pause("api", resource=True, reason="a look")

        def at(tx: Any) -> int | None:
            return BlockedSince(tx).at("paused", "api")

        assert app.store.read(at) is not None
        assert app.store.read(lambda tx: BlockedSince(tx).at("paused", "other")) is None
        assert app.store.read(lambda tx: BlockedSince(tx).at("rate", "api")) is None
        for _ in range(3):
            app.pause("shop", reason="again")
            app.resume("shop")
        assert app.store.read(at) is not None


def test_the_overview_of_the_dashboard_has_them_in_its_json(url: str):
    pytest.importorskip("starlette")
    from holdfast.web.filters import read_query
    from holdfast.web.pages import overview

    shop(url).add(["a"])
    with Holdfast(url, create=False) as app:
        app.pause("shop", reason="a look")
        query = read_query("overview", overview.page.filters, [])
        told = overview.ask(app, query).blockers
        assert [one.where for one in told] == ["shop", "shop/sell"]
        said = json_of(overview.ask(app, query))["blockers"]
        assert said == [one.json() for one in told]
        assert said[0]["since"] and said[0]["do"] == "holdfast resume shop"
