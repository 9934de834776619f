"""`ctx.event` and `app.event`: facts of users in the log, written by the transaction that ends the attempt."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, Item, Permanent, Pipeline, RetryLater, Skip, UsageError
from holdfast.answers import EventCount
from holdfast.engine.complete import complete
from holdfast.engine.fail import fail
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.errors import LeaseLost
from holdfast.model.redact import forget_secrets, remember_secret
from holdfast.model.user_event import MAX_BYTES, MOST_PER_ATTEMPT, UserEvent
from tests.support.bench import QUICK, Bench
from tests.support.harness import App
from tests.support.own_tables import OwnTables
from tests.support.steps import Trouble, write

pytestmark = pytest.mark.req("J9")


@pytest.fixture
def app(store: Any, clock: Any) -> App:
    return App(store, clock)


@pytest.fixture
def own(url: str) -> Iterator[OwnTables]:
    own = OwnTables(url)
    yield own
    own.close()


def one_stage(handler: Any, **settings: Any) -> Pipeline:
    pipeline = Pipeline("books")
    pipeline.stage(name="work", **{"max_attempts": 2, "backoff": QUICK, **settings})(handler)
    return pipeline


def test_a_fact_stands_in_the_log_with_its_item_stage_and_attempt(run: Bench):
    def work(item: Item, ctx: Context) -> None:
        ctx.event("user.price_changed", old=3, new=4.5, where={"shops": ["a", None]})
        ctx.event("user.price_changed")
        ctx.event("user.seen")

    ran = run(one_stage(work), ["page-1"])
    told = ran.events("user.price_changed")
    assert [(one.pipeline, one.stage, one.item) for one in told] == [("books", "work", "page-1")] * 2
    assert [one.data for one in told] == [
        {"attempt": 1, "old": 3, "new": 4.5, "where": {"shops": ["a", None]}},
        {"attempt": 1},
    ]
    assert len(ran.events("user.seen", "page-1")) == 1
    history = [one.event for one in ran.app.show("page-1").history]
    assert [one for one in history if one.startswith("user.")] == [
        "user.price_changed",
        "user.price_changed",
        "user.seen",
    ]
    assert ran.events("user.never") == ()


@pytest.mark.parametrize("how", ["process", "loop", "batch"])
def test_every_kind_of_handler_records_events(run: Bench, how: str):
    async def on_the_loop(item: Item, ctx: Context) -> None:
        ctx.event("user.seen", key=item.key)

    handler: Any = {
        "process": lambda item, ctx: ctx.event("user.seen", key=item.key),
        "loop": on_the_loop,
        "batch": lambda items, ctx: [ctx.of(item).event("user.seen", key=item.key) for item in items],
    }[how]
    books = one_stage(handler, isolate="process" if how == "process" else None, batch=4 if how == "batch" else None)
    ran = run(books, ["page-1", "page-2"])
    assert sorted((one.item, one.data["key"]) for one in ran.events("user.seen")) == [
        ("page-1", "page-1"),
        ("page-2", "page-2"),
    ]


@pytest.mark.parametrize(
    ("answer", "attempts"),
    [(ValueError("no"), 2), (Permanent("never"), 1), (RetryLater(after=0), 2), (Skip("nothing"), 1)],
    ids=["raises", "fails", "snoozes", "skips"],
)
def test_what_was_told_has_happened_however_the_attempt_ends(run: Bench, answer: Exception, attempts: int):
    """Each attempt tells for itself, and says which it was."""
    begun: list[int] = []

    def work(item: Item, ctx: Context) -> None:
        begun.append(ctx.attempt)
        ctx.event("user.seen", run=len(begun))
        if not isinstance(answer, RetryLater) or len(begun) == 1:
            raise answer

    ran = run(one_stage(work), ["page-1"])
    told = [(one.data["run"], one.data["attempt"]) for one in ran.events("user.seen")]
    assert told == list(enumerate(begun, start=1)) and len(told) == attempts


@pytest.mark.req("V2")
def test_an_attempt_whose_effect_raises_has_told_all_the_same(run: Bench, own: OwnTables):
    def work(item: Item, ctx: Context) -> None:
        ctx.event("user.seen")
        ctx.effect(own.save_and(ValueError("no")) if ctx.attempt == 1 else own.save, item.key)

    ran = run(one_stage(work), ["page-1"])
    assert [one.data["attempt"] for one in ran.events("user.seen")] == [1, 2]
    assert own.keys() == ["page-1"]


def test_a_fact_is_told_of_a_run_that_comes_later_too(run: Bench):
    """A stage that is run again records anew."""

    def work(item: Item, ctx: Context) -> None:
        ctx.event("user.seen")

    books = one_stage(work)
    run(books, ["page-1"])
    run.app(books).retry(stage="work", states=["done"])
    assert len(run(books).events("user.seen")) == 2


# Fenced ---------------------------------------------------------------------------------------------------------------


def telling(app: App, lease: Any, **facts: Any) -> FinishedAttempt:
    finished = app.finished(lease, None)
    finished.events = [UserEvent("user.seen", facts)]
    return finished


def facts_in(app: App) -> list[str]:
    return [data for (data,) in app.query("SELECT data FROM holdfast_events WHERE event = 'user.seen' ORDER BY id")]


@pytest.mark.req("V3")
def test_a_late_worker_tells_nothing(app: App):
    app.pipeline({"a": []})
    app.add(["page-1"])
    [slow] = app.claim(worker="slow")
    app.clock.advance(31)
    app.reap()
    [fast] = app.claim(worker="fast")
    for ending in (complete, fail):
        late = telling(app, slow, who="slow")
        with pytest.raises(LeaseLost):
            app._finish(late, lambda tx, ending=ending, late=late: ending(tx, [late]))
    assert facts_in(app) == []
    app.store.write(lambda tx: complete(tx, [telling(app, fast, who="fast")]))
    assert facts_in(app) == ['{"attempt":2,"who":"fast"}']


@pytest.mark.fault(26)
@pytest.mark.req("V2")
@pytest.mark.parametrize("kind", Trouble.KINDS)
def test_a_fact_is_there_once_though_the_transaction_ran_twice(app: App, kind: str):
    app.pipeline({"a": []})
    app.add(["page-1"])
    [lease] = app.claim()
    trouble = Trouble(kind, 4)
    write(app.store, lambda tx: complete(tx, [telling(app, lease)]), trouble=trouble)
    assert trouble.fired
    assert len(facts_in(app)) == 1


# Beside a pipeline ----------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(run: Bench) -> Holdfast:
    return run(one_stage(lambda item, ctx: None), ["page-1"]).app


def test_a_program_records_events_of_an_item_of_a_pipeline_or_of_neither(shop: Holdfast):
    shop.event("user.checked", key="page-1", by="ann")
    shop.event("user.checked", pipeline="books")
    shop.event("user.checked", many=[1, 2])
    told = [(one.pipeline, one.item, one.data) for one in shop.events(event="user.checked")]
    assert told == [("books", "page-1", {"by": "ann"}), ("books", None, {}), (None, None, {"many": [1, 2]})]
    assert len(shop.events(event="user.checked", key="page-1")) == 1
    with pytest.raises(UsageError, match="films"):
        shop.event("user.checked", pipeline="films")
    with pytest.raises(UsageError, match="page-2"):
        shop.event("user.checked", key="page-2")


def test_events_are_counted_by_name(shop: Holdfast, monkeypatch: pytest.MonkeyPatch):
    for _ in range(3):
        shop.event("user.checked", pipeline="books")
    shop.event("user.closed")
    counted = {one.event: one.count for one in shop.count_events()}
    assert (counted["user.checked"], counted["user.closed"]) == (3, 1)
    assert shop.count_events(event="user.checked", pipeline="books") == (EventCount("user.checked", 3, False),)
    assert shop.count_events(event="user.closed", pipeline="books") == ()
    later = shop.events(event="user.closed")[0].at + timedelta(microseconds=1)
    assert shop.count_events(event="user.closed", since=later) == ()
    monkeypatch.setattr("holdfast.engine.events.MOST_COUNTED", 2)
    assert shop.count_events(event="user.checked") == (EventCount("user.checked", 2, True),)
    with pytest.raises(UsageError, match="did you mean 'attempt_failed'"):
        shop.count_events(event="attemptfailed")


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "facts", "says"),
    [
        ("price_changed", {}, "must begin with 'user.'"),
        ("user.", {}, "must begin with 'user.'"),
        ("user.a b", {}, "must begin with 'user.'"),
        ("user." + "x" * 200, {}, "must begin with 'user.'"),
        (7, {}, "must begin with 'user.'"),
        ("completed", {}, "must begin with 'user.'"),
        ("user.x", {"stage": "a", "amount": 3}, "every event has 'stage', 'amount'"),
        ("user.x", {"f": object()}, "object"),
        ("user.x", {"f": "x" * MAX_BYTES}, "the limit is 16,384"),
    ],
)
def test_what_no_event_can_be_is_refused_by_name(shop: Holdfast, name: Any, facts: dict[str, Any], says: str):
    with pytest.raises(UsageError, match=says):
        shop.event(name, **facts)
    assert [one for one in shop.count_events() if one.event.startswith("user")] == []


def test_an_attempt_cannot_fill_the_log(run: Bench):
    def work(item: Item, ctx: Context) -> None:
        for n in range(MOST_PER_ATTEMPT + 1):
            ctx.event("user.seen", n=n, self=1)

    ran = run(one_stage(work, max_attempts=1), ["page-1"])
    assert ran.state("page-1", "work") == "exhausted"
    assert "item 'page-1', stage 'work': event('user.seen')" in ran.stage("page-1", "work").error
    assert len(ran.events("user.seen")) == MOST_PER_ATTEMPT


@pytest.mark.req("V12")
def test_secrets_do_not_get_into_the_log(run: Bench):
    remember_secret("swordfish-12")

    def work(item: Item, ctx: Context) -> None:
        ctx.event("user.seen", password="abc", said="it was swordfish-12", deep=[{"api_key": "k" * 20}])

    try:
        [told] = run(one_stage(work), ["page-1"]).events("user.seen")
    finally:
        forget_secrets()
    assert told.data == {"attempt": 1, "password": "***", "said": "it was ***", "deep": [{"api_key": "***"}]}
