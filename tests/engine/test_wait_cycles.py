"""Wait cycles: items that would wait for each other forever are found when the cycle closes, and fail."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Context, Holdfast, Item, Pipeline
from holdfast.engine import fan_in, wait_cycles
from holdfast.engine.check import check
from holdfast.engine.complete import complete
from holdfast.engine.finish_leases import FollowOn
from tests.support.bench import Bench
from tests.support.harness import App, connected
from tests.support.steps import Trouble, quick_store, wipe, write
from tests.support.together import at_once, held_at

BOOKS = {"make": [], "gather": ["make"]}
#: Books wait for books.
SELF = {"gather": {"after_children": "books"}}


@pytest.fixture
def app(app: App) -> App:
    app.pipeline(BOOKS, name="books", only=SELF)
    return app


def make(
    app: App, key: str, *children: str, pipeline: str = "books", of: str | None = None, stage: str = "make"
) -> None:
    """A stage of an item passes, and submits children."""
    app.name = pipeline
    one = app.finished(take(app, key, stage))
    one.follow_ons = [FollowOn(of or pipeline, child, "{}", "skip", True) for child in children]
    app.store.write(lambda tx: complete(tx, [one]), slot=app._slot(one.lease))


def take(app: App, key: str, stage: str) -> Any:
    leases = app.claim(stage=stage, most=100)
    for lease in leases:
        if lease.key != key:
            app.release(lease)
    return next(lease for lease in leases if lease.key == key)


def error(app: App, key: str, stage: str = "gather") -> str | None:
    outcome = app.outcome(key, stage)
    return None if outcome is None or outcome["state"] != "failed" else str(outcome["error"])


def wrong(app: App) -> list[str]:
    return check(app.store)


@pytest.mark.req("P5", "V1")
@pytest.mark.parametrize("length", [2, 3, 12])
def test_the_items_of_a_cycle_end_failed_when_its_last_link_is_made(app: App, length: int):
    keys = [f"b{number:02}" for number in range(length)]
    app.add(keys)
    for number, key in enumerate(keys):
        assert [error(app, one) for one in keys] == [None] * length
        make(app, key, keys[(number + 1) % length])

    said = {error(app, key) for key in keys}
    if length <= 3:
        assert said == {" → ".join([*keys, keys[0]]) + " waits for itself"}
    else:
        assert said == {"b00 → b01 → b02 → b03 → … (5 more) → b09 → b10 → b11 → b00 waits for itself"}
    assert {app.status(key) for key in keys} == {"failed"}
    assert app.counts() == app.recount() == {"make": {"done": length}, "gather": {"failed": length}}
    assert app.history("b00") == ["failed"]
    assert wrong(app) == []


@pytest.mark.req("P5")
def test_a_cycle_through_several_pipelines_is_named_with_them(app: App):
    for name, of in (("books", "pages"), ("pages", "words"), ("words", "books")):
        app.pipeline(BOOKS, name=name, only={"gather": {"after_children": of}})
    app.name = "books"
    app.add(["x"])
    make(app, "x", "y", pipeline="books", of="pages")
    make(app, "y", "z", pipeline="pages", of="words")
    make(app, "z", "x", pipeline="words", of="books")

    for name, key in (("books", "x"), ("pages", "y"), ("words", "z")):
        app.name = name
        assert error(app, key) == "books/x → pages/y → words/z → books/x waits for itself"
    assert wrong(app) == []


def test_an_item_that_is_its_own_child_is_a_cycle(app: App):
    """A handler is refused such a child before."""
    app.add(["a"])
    make(app, "a", "a")
    assert error(app, "a") == "a → a waits for itself"


@pytest.mark.req("P5")
def test_a_cycle_whose_links_were_made_before_anybody_waited_is_found_when_the_last_begins_to(app: App):
    app.pipeline({"make": [], "check": ["make"], "gather": ["check"]}, name="books", only=SELF)
    app.add(["a", "b"])
    make(app, "a", "b")
    make(app, "b", "a")
    make(app, "b", stage="check")
    assert error(app, "b") is None, "a may still fail, and b then go on"
    make(app, "a", stage="check")
    assert error(app, "a") == error(app, "b") == "a → b → a waits for itself"


def test_what_failed_before_it_waited_holds_nobody_up(app: App):
    app.pipeline({"make": [], "check": ["make"], "gather": ["check"]}, name="books", only=SELF)
    app.add(["a", "b"])
    make(app, "a", "b")
    make(app, "b", "a")
    make(app, "b", stage="check")
    app.permanent(take(app, "a", "check"))
    assert app.states("b") == {"make": "done", "check": "done", "gather": "pending"}
    assert app.states("a") == {"make": "done", "check": "failed"}


@pytest.mark.req("P5")
def test_a_child_that_comes_while_the_item_waits_closes_a_cycle(app: App):
    """By a stage beside the one that waits."""
    app.pipeline({"make": [], "more": [], "gather": ["make"]}, name="books", only=SELF)
    app.add(["a", "b"])
    make(app, "a", "b")
    make(app, "b", "c")
    assert (error(app, "a"), error(app, "b")) == (None, None)
    make(app, "b", "a", stage="more")
    assert error(app, "a") == error(app, "b") == "a → b → a waits for itself"
    assert app.counts() == app.recount()


@pytest.mark.req("P5")
def test_a_stage_that_is_added_later_and_would_wait_for_itself_ends(app: App):
    app.pipeline({"make": []}, name="books")
    app.add(["a", "b"])
    make(app, "a", "b")
    make(app, "b", "a")
    app.pipeline(BOOKS, name="books", only=SELF)
    app.backfill()
    assert error(app, "a") == error(app, "b") == "a → b → a waits for itself"
    assert app.counts() == app.recount()


@pytest.mark.req("P5")
def test_an_item_that_waits_for_one_of_a_cycle_continues_when_that_has_ended(app: App):
    app.add(["outside", "a", "b"])
    make(app, "outside", "a")
    make(app, "a", "b")
    make(app, "b", "a")
    assert app.states("outside") == {"make": "done", "gather": "pending"}


def test_two_cycles_through_one_item_leave_nobody_waiting(app: App):
    app.add(["a", "b", "c"])
    make(app, "b", "a")
    make(app, "c", "a")
    make(app, "a", "b", "c")
    states = {key: app.states(key)["gather"] for key in ("a", "b", "c")}
    assert states["a"] == "failed"
    assert sorted([states["b"], states["c"]]) == ["failed", "pending"], "what waited for a goes on"


def test_shared_children_are_no_cycle(app: App):
    app.add(["a", "b", "c", "d"])
    make(app, "d")
    make(app, "a", "b", "c")
    make(app, "b", "d")
    make(app, "c", "d", "b")
    for key in "dbca":
        assert app.states(key)["gather"] == "pending"
        app.complete(take(app, key, "gather"))
    assert app.counts() == app.recount() == {"make": {"done": 4}, "gather": {"done": 4}}


def test_a_person_may_let_an_item_of_a_cycle_run_as_it_is(app: App):
    app.add(["a", "b"])
    make(app, "a", "b")
    make(app, "b", "a")
    assert app.retry(key="a") == {"failed": 1}
    app.complete(take(app, "a", "gather"))
    assert app.states("a") == {"make": "done", "gather": "done"}


@pytest.mark.req("P5")
def test_a_row_of_waiting_items_that_is_too_long_to_look_at_is_an_error_that_says_so(
    app: App, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wait_cycles, "LONGEST", 4)
    app.add([f"b{number}" for number in range(6)])
    for number in range(6):
        # From below: each finds its child waiting already.
        make(app, f"b{number}", f"b{number - 1}" if number else "leaf")
    assert [error(app, f"b{number}") for number in range(4)] == [None] * 4
    said = "more than 4 items in a row wait for each other: whether they form a cycle cannot be determined"
    assert error(app, "b4") == said
    assert error(app, "b5") is None, "its child has ended"
    assert app.counts() == app.recount()


def test_a_tree_that_grows_downwards_may_be_as_deep_as_it_likes(app: App, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wait_cycles, "LONGEST", 4)
    app.add(["0"])
    for depth in range(20):
        make(app, str(depth), str(depth + 1))
    make(app, "20")
    for depth in range(20, -1, -1):
        app.complete(take(app, str(depth), "gather"))
    assert app.counts() == app.recount() == {"make": {"done": 21}, "gather": {"done": 21}}


# At the same time -----------------------------------------------------------------------------------------------------


@pytest.mark.req("P5")
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_links_that_close_a_cycle_at_the_same_moment_are_seen_by_one_of_them(app: App):
    """A cycle of six, of which two distant links are made at once."""
    app.add([*"abcdef"])
    for key, child in ("bc", "cd", "ef", "fa"):
        make(app, key, child)
    leases = {lease.key: lease for lease in app.claim(stage="make", most=2)}
    done: list[str] = []

    def close(mine: App, key: str, child: str) -> None:
        one = mine.finished(leases[key])
        one.follow_ons = [FollowOn("books", child, "{}", "skip", True)]
        mine.store.write(lambda tx: complete(tx, [one]))
        done.append(key)

    with connected(app) as one, connected(app) as two, connected(app) as watcher:
        locked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        with held_at("commit.before", until=lambda: done or watcher.query(locked)) as arrived:

            def second() -> None:
                arrived.wait(20)
                close(two, "d", "e")

            at_once(lambda: close(one, "a", "b"), second)

    assert {error(app, key) for key in "abcdef"} == {"a → b → c → d → e → f → a waits for itself"}
    assert app.counts() == app.recount()


@pytest.mark.fault(26)
@pytest.mark.req("P5", "V2")
@pytest.mark.parametrize("kind", Trouble.KINDS)
@pytest.mark.parametrize("nth", [4, 9, 14])
def test_a_cycle_ends_once_though_the_transaction_ran_twice(app: App, kind: str, nth: int):
    app.add(["a", "b"])
    make(app, "a", "b")
    one = app.finished(take(app, "b", "make"))
    one.follow_ons = [FollowOn("books", "a", "{}", "skip", True)]
    trouble = Trouble(kind, nth)
    write(app.store, lambda tx: complete(tx, [one]), trouble=trouble)

    assert trouble.fired
    assert error(app, "a") == error(app, "b") == "a → b → a waits for itself"
    assert app.counts() == app.recount() == {"make": {"done": 2}, "gather": {"failed": 2}}
    assert len(app.events("failed")) == 2


# Those of before ------------------------------------------------------------------------------------------------------


@pytest.mark.req("P5")
def test_db_check_finds_a_cycle_that_nobody_has_ended_and_says_what_to_do(app: App, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(fan_in, "end_wait_cycles", lambda tx, items: {})
        app.add(["a", "b", "outside"])
        make(app, "a", "b")
        make(app, "b", "a")
        make(app, "outside", "a")
    [found] = wrong(app)
    assert found.startswith("a → b → a waits for itself: `holdfast retry --pipeline books --stage make --state done ")
    assert "--key a` runs the stage before once more" in found

    app.retry(stage="make", states=["done", "skipped"], key="a")
    app.complete(take(app, "a", "make"))
    assert wrong(app) == []
    assert error(app, "a") == error(app, "b") == "a → b → a waits for itself"
    assert app.states("outside") == {"make": "done", "gather": "pending"}
    assert app.counts() == app.recount()


def test_a_check_looks_at_all_parents_a_stretch_at_a_time(app: App, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wait_cycles, "CHUNK", 2)
    with monkeypatch.context() as earlier:
        earlier.setattr(fan_in, "end_wait_cycles", lambda tx, items: {})
        app.add(["a", "b", "c", "d", "e"])
        for key, child in ("ab", "bc", "cd", "de", "ea"):
            make(app, key, child)
    [found] = wrong(app)
    assert found.startswith("a → b → c → d → e → a waits for itself: ")


# Any of them ----------------------------------------------------------------------------------------------------------

KEYS = ("a", "b", "c", "d", "e")


def on_a_cycle(links: Mapping[str, Sequence[str]]) -> set[str]:
    def reach(key: str) -> set[str]:
        found: set[str] = set()
        newest = set(links.get(key, ()))
        while newest:
            found |= newest
            newest = {child for one in newest for child in links.get(one, ())} - found
        return found

    return {key for key in KEYS if key in reach(key)}


@pytest.mark.req("P5", "V1")
def test_whoever_waits_for_whom_nobody_waits_for_ever(database: str, request: pytest.FixtureRequest, clock: Any):
    """Only items on a cycle may fail, and all others go on; in any order, some of it in one commit."""
    with quick_store(database, request, clock) as store:

        @given(
            st.dictionaries(st.sampled_from(KEYS), st.lists(st.sampled_from(KEYS), unique=True, max_size=3)),
            st.permutations(KEYS),
            st.lists(st.booleans(), max_size=20),
        )
        @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
        def ends(links: dict[str, list[str]], order: list[str], gathers: list[bool]) -> None:
            wipe(store)
            app = App(store, clock)
            app.pipeline(BOOKS, name="books", only=SELF)
            app.add(order)
            choices = iter(gathers)
            while True:
                stages = ["gather", "make"] if next(choices, True) else ["make", "gather"]
                most = 1 + next(choices, False)
                leases = next((found for stage in stages if (found := app.claim(stage=stage, most=most))), [])
                if not leases:
                    break
                finished = [app.finished(lease) for lease in leases]
                for one in finished:
                    if one.lease.stage == app.stage("make").id:
                        one.follow_ons = [
                            FollowOn("books", child, "{}", "skip", True) for child in links.get(one.lease.key, ())
                        ]
                app.store.write(lambda tx, finished=finished: complete(tx, finished))
            failed = {key for key in KEYS if error(app, key)}
            assert failed <= on_a_cycle(links)
            assert {app.status(key) for key in KEYS} <= {"done", "failed"}
            assert app.counts() == app.recount()
            assert wrong(app) == []

        ends()


# Through a worker -----------------------------------------------------------------------------------------------------


@pytest.mark.req("P5", "J5")
def test_a_run_over_a_cycle_ends_and_says_that_items_failed(url: str):
    books = Pipeline("books")
    both_run = threading.Barrier(2)

    @books.stage()
    def make(item: Item, ctx: Context) -> None:
        if item.key in ("a", "b"):
            both_run.wait(20)
            ctx.submit("books", "b" if item.key == "a" else "a", child=True)

    @books.stage(after="make", after_children="books")
    def gather(item: Item, ctx: Context) -> str:
        return "gathered"

    bench = Bench(url)
    ran = bench(books, ["a", "b", "c"], concurrency=2)
    assert ran.states("gather") == {"failed": 2, "done": 1}
    assert ran.stage("a", "gather").error == "a → b → a waits for itself"
    assert "a → b → a waits for itself" in ran.app.why("a").text
    with Holdfast(url, [books.spec]) as app:
        assert app.run().failed == 2, "which makes the command end with exit code 3"
    bench.close()
