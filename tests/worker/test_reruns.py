"""Items that ask for themselves, or for each other, to be run again: they come to an end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Context, DefinitionError, Item, Pipeline
from holdfast.engine import rerun_follow_ons
from holdfast.engine.complete import complete
from holdfast.engine.finish_leases import FollowOn
from holdfast.engine.pause import resume
from holdfast.engine.prune import prune_items
from holdfast.engine.selection import Who
from tests.support.bench import Bench, Ran
from tests.support.harness import App, connected
from tests.support.processes import wait_for
from tests.support.several import Several
from tests.support.steps import quick_store, wipe


class Notes:
    """Which items ask for which, and how often each was run."""

    def __init__(self, asks: Mapping[str, Sequence[str]]) -> None:
        self.asks = asks
        self.ran: Counter[str] = Counter()
        self._lock = threading.Lock()

    def work(self, item: Item, ctx: Context) -> None:
        with self._lock:
            self.ran[item.key] += 1
        for key in self.asks.get(item.key, ()):
            ctx.submit(item.pipeline, key, when_exists="rerun")


def pages(notes: Notes, **settings: Any) -> Pipeline:
    pipeline = Pipeline("pages")
    pipeline.stage(name="link", **settings)(notes.work)
    return pipeline


def refusals(ran: Ran, key: str) -> list[str]:
    return [told.data["reason"] for told in ran.events("rerun_refused", key)]


@pytest.mark.req("P5")
@pytest.mark.parametrize("how", ["thread", "process"])
def test_an_item_that_asks_for_itself_is_run_once(run: Bench, how: str):
    notes = Notes({"a": ["a"]})
    ran = run(pages(notes, isolate="process" if how == "process" else None), ["a"])

    assert ran.states("link") == {"done": 1}
    assert refusals(ran, "a") == ["a → a: it would run because of itself"]
    if how == "thread":
        assert notes.ran == {"a": 1}


@pytest.mark.req("P5")
@pytest.mark.parametrize("stage", ["first", "second"])
def test_whichever_stage_asks_for_its_own_item_the_stages_after_it_run_and_none_again(run: Bench, stage: str):
    """Also where the worker goes straight on: how busy it is makes no difference."""
    ran_stages: list[str] = []

    def handler(name: str) -> Callable[[Item, Context], None]:
        def work(item: Item, ctx: Context) -> None:
            ran_stages.append(name)
            if name == stage:
                ctx.submit("pages", item.key, {"seen": True}, when_exists="rerun")

        return work

    pipeline = Pipeline("pages")
    pipeline.stage(name="first")(handler("first"))
    pipeline.stage(name="second", after="first")(handler("second"))
    ran = run(pipeline, ["a"])

    assert ran_stages == ["first", "second"]
    assert ran.app.show("a").data == {"seen": True}, "it gets the new data"
    assert len(refusals(ran, "a")) == 1


@pytest.mark.req("P5")
def test_two_items_that_ask_for_each_other_come_to_an_end(run: Bench):
    notes = Notes({"a": ["b"], "b": ["a"]})
    ran = run(pages(notes), ["a", "b"])

    assert ran.states("link") == {"done": 2}
    assert 2 <= notes.ran.total() <= 4, "each may have ended before the other asked for it"
    before = notes.ran.copy()
    ran.app.retry(key="a", states=["done"])
    again = run(pages(notes))
    assert notes.ran - before == {"a": 1, "b": 1}, "a leads to b, and b not to a"
    assert refusals(again, "a")[-1] == "a → b → a: it would run because of itself"


@pytest.mark.req("P5")
def test_a_ring_through_several_pipelines_runs_once_around(url: str):
    after = {"books": "pages", "pages": "words", "words": "books"}
    ran: list[str] = []

    def work(item: Item, ctx: Context) -> None:
        ran.append(item.pipeline)
        ctx.submit(after[item.pipeline], "x", when_exists="rerun")

    shelves = {name: Pipeline(name) for name in after}
    for pipeline in shelves.values():
        pipeline.stage(name=f"{pipeline.name}-work")(work)
    bench = Several(url, list(shelves.values()))
    bench(shelves["books"], ["x"])
    assert sorted(ran) == ["books", "books", "pages", "pages", "words"], "words led to the second life of books"

    ran.clear()
    app = bench.app(shelves["books"])
    app.retry(pipeline="books", states=["done"])
    done = bench(shelves["books"])
    assert ran == ["books", "pages", "words"]
    [*_, last] = done.app.events(event="rerun_refused")
    assert last.data["reason"].startswith("books/x → pages/x → words/x → books/x: ")
    bench.close()


# Step by step ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def app(store: Any, clock: Any) -> App:
    app = App(store, clock)
    app.pipeline({"link": []})
    return app


def run_next(app: App, asks: Mapping[str, Sequence[str]], data: str = "{}") -> str | None:
    """Run what waits first, and let it ask; its key."""
    leases = app.claim()
    if not leases:
        return None
    one = app.finished(leases[0])
    one.follow_ons = [FollowOn("p", key, data, "rerun", False) for key in asks.get(leases[0].key, ())]
    app.store.write(lambda tx: complete(tx, [one]), exclusive=True)
    return str(leases[0].key)


def run_all(app: App, asks: Mapping[str, Sequence[str]], most: int = 1000) -> list[str]:
    ran: list[str] = []
    while (key := run_next(app, asks)) is not None:
        ran.append(key)
        assert len(ran) <= most, "it does not end"
    return ran


@pytest.mark.req("P5", "V10")
def test_an_item_that_two_others_lead_to_runs_for_each_of_them(app: App):
    """a asks for b and c, and both for d, which has ended when c asks: what c has brought about must not be missed."""
    app.add(["d", "a", "b", "c"])
    run_all(app, {})
    app.retry(key="a", states=["done"])
    assert run_all(app, {"a": ["b", "c"], "b": ["d"], "c": ["d"]}) == ["a", "b", "d", "c", "d"]
    assert app.counts() == app.recount()


def test_a_person_may_always_begin_an_item_again(app: App):
    asks = {"a": ["b"], "b": ["a"]}
    app.add(["a", "b"])
    run_all(app, {})
    for _ in range(3):
        app.retry(key="a", states=["done"])
        assert run_all(app, asks) == ["a", "b"]
        app.retry(key="b", states=["done"])
        assert run_all(app, asks) == ["b", "a"], "that a led to b before is forgotten"


def test_others_may_still_ask_for_an_item_that_led_to_itself(app: App):
    app.add(["a", "b"])
    run_all(app, {})
    app.retry(key="a", states=["done"])
    run_all(app, {"a": ["b"], "b": ["a"]})
    app.add(["c"])
    assert run_all(app, {"c": ["a"]}) == ["c", "a"]


def test_of_two_that_ask_in_one_commit_the_one_that_may_is_heard(app: App):
    app.add(["a", "b", "c"])
    run_all(app, {})
    app.retry(key="a", states=["done"])
    assert run_next(app, {"a": ["b"]}) == "a"
    app.retry(key="c", states=["done"])
    finished = [app.finished(lease) for lease in app.claim(most=2)]
    for one in finished:
        one.follow_ons = [FollowOn("p", "a", "{}", "rerun", False)]
    app.store.write(lambda tx: complete(tx, finished), exclusive=True)
    assert app.states("a") == {"link": "pending"}
    assert app.events("rerun_refused") == []


def test_a_chain_of_reruns_ends_where_nobody_looks_any_further(app: App, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rerun_follow_ons, "LONGEST", 20)
    keys = [f"{number:02}" for number in range(30)]
    app.add(keys)
    run_all(app, {})
    app.retry(key="00", states=["done"])
    asks = {key: [after] for key, after in pairwise(keys)}

    assert run_all(app, asks) == keys[:20]
    [told] = app.events("rerun_refused")
    assert told["reason"] == (
        "00 → 01 → 02 → 03 → … (13 more) → 17 → 18 → 19 → 20: more than 20 reruns follow from each other"
    )


def test_what_led_to_an_item_is_forgotten_with_it(app: App):
    app.add(["a", "b"])
    run_all(app, {})
    app.retry(key="a", states=["done"])
    run_all(app, {"a": ["b"]})
    assert app.query("SELECT COUNT(*) FROM holdfast_chains") == [(1,)]
    app.clock.advance(1_000_000)
    pipeline = app.stage("link").pipeline
    app.store.write(lambda tx: prune_items(tx, pipeline, tx.now))
    assert app.query("SELECT COUNT(*) FROM holdfast_chains") == [(0,)]


KEYS = ("a", "b", "c", "d")


@pytest.mark.req("P5")
def test_whoever_asks_for_whom_all_comes_to_an_end(database: str, request: pytest.FixtureRequest, clock: Any):
    """Each life of an item follows from another chain of items without repeats, of which there are few."""
    with quick_store(database, request, clock) as store:

        @given(
            st.dictionaries(st.sampled_from(KEYS), st.lists(st.sampled_from(KEYS), unique=True)), st.permutations(KEYS)
        )
        @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
        def ends(asks: dict[str, list[str]], order: list[str]) -> None:
            wipe(store)
            app = App(store, clock)
            app.pipeline({"link": []})
            app.add(order)
            run_all(app, asks, most=64)
            assert app.counts() == app.recount() == {"link": {"done": 4}}

        ends()


# Too many -------------------------------------------------------------------------------------------------------------

#: Each of them asks for all others: more lives than anybody wants to see, though not endlessly many.
CROWD = [f"page-{number}" for number in range(16)]


@pytest.mark.req("P5")
def test_a_stage_whose_items_rerun_each_other_too_often_is_paused_and_the_others_go_on(url: str):
    notes = Notes({key: [other for other in CROWD if other != key] for key in CROWD})
    crowd = pages(notes, max_reruns_per_hour=30)
    quiet = Pipeline("quiet")
    quiet.stage(name="calm")(lambda item, ctx: None)
    bench = Several(url, [quiet])
    app = bench.app(crowd, CROWD)

    with bench.serving(crowd), bench.serving(crowd) as (_, ran):
        [told] = wait_for(lambda: ran.events("paused"))
        assert told.data["reason"].startswith("its items rerun each other: ")
        assert "a handler returns RetryLater" in told.data["reason"]
        wait_for(lambda: "in_progress" not in ran.states("link"))
        before = notes.ran.total()
        app.add("quiet", ["x"])
        wait_for(lambda: ran.states("calm") == {"done": 1})
        assert notes.ran.total() == before, "nothing of the stage has begun meanwhile"
        assert 30 < before < 16 * 15
        app.resume("pages/link")
        wait_for(lambda: len(ran.events("paused")) == 2)
        wait_for(lambda: "in_progress" not in ran.states("link"))
        assert notes.ran.total() >= before + 30, "it has begun anew"
    assert app.check() == []
    bench.close()


@pytest.fixture
def limited(app: App) -> App:
    """Three reruns that follow from reruns may happen within an hour."""
    app.pipeline({"link": []}, only={"link": {"max_reruns_per_hour": 3}})
    app.add(["a", "b", "c"])
    run_all(app, {})
    return app


def go_round(app: App, data: str = "{}") -> None:
    """a leads to b, and that to c: one rerun that follows from another."""
    app.retry(key="a", states=["done"])
    while run_next(app, {"a": ["b"], "b": ["c"]}, data):
        pass


def is_paused(app: App) -> bool:
    return app.stage("link").paused


@pytest.mark.req("P5")
def test_all_workers_count_together_and_a_restart_forgets_nothing(limited: App):
    for _ in range(3):
        with connected(limited) as other:
            go_round(other)
            assert not is_paused(limited)
    go_round(limited)
    assert is_paused(limited)
    [told] = limited.events("paused")
    assert told["by"] == "too many reruns"
    assert told["reason"].startswith(
        "its items rerun each other: 4 times within an hour, without new data, the last time a → b → c; "
    )
    assert limited.counts() == limited.recount()


def test_what_was_asked_for_in_a_paused_stage_is_not_lost(limited: App):
    for _ in range(4):
        limited.retry(key="a", states=["done"])
        assert [run_next(limited, {"a": ["b"], "b": ["c"]}) for _ in range(2)] == ["a", "b"]
        assert limited.states("c") == {"link": "pending"}
        if not is_paused(limited):
            run_all(limited, {})
    assert is_paused(limited)


def test_an_hour_later_they_count_from_the_beginning(limited: App):
    for _ in range(6):
        for _ in range(3):
            go_round(limited)
        limited.clock.advance(3600)
    assert not is_paused(limited)


def test_a_stage_that_is_resumed_begins_to_count_anew(limited: App):
    for _ in range(3):
        for _ in range(4):
            assert not is_paused(limited)
            limited.clock.advance(1)
            go_round(limited)
        assert is_paused(limited)
        limited.clock.advance(1)
        assert limited.store.write(lambda tx: resume(tx, "p/link", Who("me")))


def test_reruns_with_new_data_do_not_count(limited: App):
    for number in range(10):
        go_round(limited, f'{{"n":{number}}}')
    assert not is_paused(limited)
    for _ in range(4):
        go_round(limited, '{"n":9}')
    assert is_paused(limited), "the same data is no new data"


def test_reruns_that_others_ask_for_do_not_count(limited: App):
    """Many pages that each ask for the index are no items that rerun each other."""
    for number in range(10):
        limited.add([f"page-{number}"])
        assert sorted(run_all(limited, {f"page-{number}": ["a", "b"]})) == ["a", "b", f"page-{number}"]
    assert not is_paused(limited)


@pytest.mark.req("V12")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_reruns_per_hour": 0}, "max_reruns_per_hour 0 is not a whole number of 1 or more"),
        ({"max_reruns_per_hour": True}, "max_reruns_per_hour True is not a whole number"),
        ({"max_reruns_per_hour": 5, "after": "extract"}, "max_reruns_per_hour is for first stages"),
    ],
)
def test_a_limit_of_reruns_that_makes_no_sense_is_refused(settings: dict[str, Any], said: str):
    with pytest.raises(DefinitionError, match=said):
        Pipeline("pages").stage(name="link", **settings)(lambda item, ctx: None)
