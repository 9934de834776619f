"""Follow-ons: items that the completion of a stage brings about, one for each key, with the stage or not at all."""

from __future__ import annotations

import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from holdfast import Context, Holdfast, Item, Permanent, Pipeline, UsageError
from holdfast.engine.complete import complete
from holdfast.engine.finish_leases import FinishedAttempt, FollowOn
from holdfast.errors import LeaseLost
from holdfast.model import codec
from holdfast.store.postgres_address import read_url
from holdfast.store.sqlite_files import file_of
from tests.support.bench import QUICK, Bench
from tests.support.harness import App
from tests.support.own_tables import OwnTables
from tests.support.processes import wait_for
from tests.support.schemas import in_database
from tests.support.several import Several
from tests.support.slowness import slowness
from tests.support.steps import Trouble, write
from tests.support.together import at_once, meeting_at


@pytest.fixture
def app(store: Any, clock: Any) -> App:
    return App(store, clock)


@pytest.fixture
def own(url: str) -> Iterator[OwnTables]:
    own = OwnTables(url)
    yield own
    own.close()


def pipeline_of(name: str, handler: Callable[[Item, Context], Any], **settings: Any) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.stage(**{"name": f"{name}-work", "max_attempts": 2, "backoff": QUICK, **settings})(handler)
    return pipeline


@pytest.fixture
def links(url: str) -> Iterator[Several]:
    """A bench with the pipeline `links`, which things are submitted to."""
    bench = Several(url, [pipeline_of("links", lambda item, ctx: item.data)])
    yield bench
    bench.close()


def data_of(app: Holdfast, key: str, pipeline: str = "links") -> Any:
    return app.show(key, pipeline).data


def keys_of(app: Holdfast, pipeline: str = "links") -> list[str]:
    return sorted(row.key for row in app.items(pipeline=pipeline, most=100_000))


# With the stage, or not at all ----------------------------------------------------------------------------------------


@pytest.mark.req("V2", "V10", "D7")
def test_a_follow_on_appears_with_the_end_of_its_stage_and_is_worked_off(links: Several):
    seen: list[list[str]] = []

    def work(item: Item, ctx: Context) -> None:
        ctx.submit("links", key=item.key, data={"from": item.key})
        seen.append(keys_of(outside))

    books = pipeline_of("books", work)
    outside = links.app(books)
    ran = links(books, ["page-1"])

    assert seen == [[]], "it is not there before the stage has ended"
    assert ran.app.show("page-1", "links").stages[0].result == {"from": "page-1"}


@pytest.mark.req("V2")
@pytest.mark.parametrize("error", [ValueError("no"), Permanent("no")], ids=["raised", "permanent"])
def test_an_attempt_that_did_not_pass_submits_nothing(links: Several, error: Exception):
    def work(item: Item, ctx: Context) -> None:
        ctx.submit("links", key=item.key)
        raise error

    ran = links(pipeline_of("books", work), ["page-1"])
    assert keys_of(ran.app) == []


@pytest.mark.req("V2", "V10")
def test_an_effect_that_raises_takes_the_follow_ons_of_its_attempt_along(links: Several, own: OwnTables):
    def work(item: Item, ctx: Context) -> None:
        ctx.submit("links", key=f"of {item.key}")
        ctx.effect(own.save_and(ValueError("no")) if ctx.attempt == 1 and item.key == "bad" else own.save, item.key)
        if item.key == "bad":
            seen.append(keys_of(outside))

    seen: list[list[str]] = []
    books = pipeline_of("books", work)
    outside = links.app(books)
    ran = links(books, ["bad"])

    assert seen == [[], []], "nothing of the first attempt was there when the second began"
    assert keys_of(ran.app) == ["of bad"]
    assert own.keys() == ["bad"]


@pytest.mark.req("V3", "V10")
def test_a_late_worker_submits_nothing(app: App):
    two_pipelines(app)
    app.add(["page-1"])
    [slow] = app.claim(worker="slow")
    app.clock.advance(31)
    app.reap()
    [fast] = app.claim(worker="fast")
    late = submitting(app, slow, "late")
    with pytest.raises(LeaseLost):
        app._finish(late, lambda tx: complete(tx, [late]))

    assert link_keys(app) == []
    app.store.write(lambda tx: complete(tx, [submitting(app, fast, "in time")]))
    assert link_keys(app) == ["in time"]


@pytest.mark.fault(26)
@pytest.mark.req("V2", "V10")
@pytest.mark.parametrize("kind", Trouble.KINDS)
@pytest.mark.parametrize("when", ["skip", "rerun", "merge"])
def test_a_follow_on_is_there_once_though_the_transaction_ran_twice(app: App, kind: str, when: str):
    two_pipelines(app)
    app.add(["page-1"])
    [lease] = app.claim()
    trouble = Trouble(kind, 4)
    write(app.store, lambda tx: complete(tx, [submitting(app, lease, "x", when=when)]), trouble=trouble)

    assert trouble.fired
    assert link_keys(app) == ["x"]
    assert app.counts() == app.recount() == {"a": {"done": 1}, "link": {"pending": 1}}


def two_pipelines(app: App) -> None:
    app.pipeline({"link": []}, name="links")
    app.pipeline({"a": []}, name="p")


def submitting(
    app: App, lease: Any, *keys: str, when: str = "skip", data: dict[str, Any] | None = None
) -> FinishedAttempt:
    finished = app.finished(lease, None)
    finished.follow_ons = [FollowOn("links", key, codec.encode(data or {}), when, False) for key in keys]
    return finished


def link_keys(app: App) -> list[str]:
    return [
        row[0]
        for row in app.query(
            "SELECT i.key FROM holdfast_items i JOIN holdfast_pipelines p ON p.id = i.pipeline "
            "WHERE p.name = 'links' ORDER BY i.key"
        )
    ]


# One for each key -----------------------------------------------------------------------------------------------------


@pytest.mark.req("V10", "D7")
def test_many_items_that_submit_the_same_key_bring_about_one(links: Several):
    ran_links: list[str] = []
    links.others = [pipeline_of("links", lambda item, ctx: ran_links.append(item.key))]
    books = pipeline_of("books", lambda item, ctx: ctx.submit("links", key=f"link-{int(item.key) % 3}"))
    ran = links(books, [str(number) for number in range(60)])

    assert keys_of(ran.app) == ["link-0", "link-1", "link-2"]
    assert sorted(ran_links) == ["link-0", "link-1", "link-2"]


@pytest.mark.req("V10")
def test_a_key_that_is_there_is_left_as_it_is_unless_told_otherwise(links: Several):
    books = pipeline_of("books", lambda item, ctx: ctx.submit("links", "x", item.data["give"]))
    first = links(books, [{"key": "1", "give": {"a": 1}}])
    ended = first.app.show("x").stages[0].ended_at
    again = links(books, [{"key": "2", "give": {"a": 2}}])

    assert data_of(again.app, "x") == {"a": 1}
    assert again.app.show("x").stages[0].ended_at == ended, "it was not run again"


@pytest.mark.req("V10")
def test_rerun_begins_an_item_that_has_ended_again_with_its_new_data(links: Several):
    books = pipeline_of("books", lambda item, ctx: ctx.submit("links", "x", item.data["give"], when_exists="rerun"))
    links(books, [{"key": "1", "give": {"a": 1}}])
    second = links(books, [{"key": "2", "give": {"a": 2}}])
    assert second.result("x", "links-work") == data_of(second.app, "x") == {"a": 2}
    third = links(books, [{"key": "3", "give": {}}])

    assert third.result("x", "links-work") == {"a": 2}, "no data leaves the old"
    assert len(third.events("submitted_again", "x")) == 2


@pytest.mark.req("V10")
@pytest.mark.parametrize("state", ["pending", "in_progress", "retry_later"])
def test_rerun_leaves_an_item_that_is_waiting_or_running(app: App, state: str):
    two_pipelines(app)
    app.add(["page-1"])
    [lease] = app.claim(worker="parent")
    app.store.write(lambda tx: complete(tx, [submitting(app, lease, "x")]))
    app.name = "links"
    if state != "pending":
        [running] = app.claim(worker="child")
        if state == "retry_later":
            app.fail(running, delay=60)
    app.name = "p"
    app.add(["page-2"])
    [lease] = app.claim(worker="parent")
    app.store.write(lambda tx: complete(tx, [submitting(app, lease, "x", when="rerun")]))

    app.name = "links"
    assert app.states("x") == {"link": state}
    assert app.events("submitted_again") == []
    assert app.counts() == app.recount()


def test_rerun_brings_back_an_item_that_had_failed(links: Several):
    broken = threading.Event()
    broken.set()

    def link(item: Item, ctx: Context) -> str:
        if broken.is_set():
            raise Permanent("the provider is gone")
        return "linked"

    links.others = [pipeline_of("links", link)]
    books = pipeline_of("books", lambda item, ctx: ctx.submit("links", "x", when_exists="rerun"))
    assert links(books, ["1"]).state("x", "links-work") == "failed"
    broken.clear()
    assert links(books, ["2"]).result("x", "links-work") == "linked"


@pytest.mark.req("V10")
def test_merge_unites_the_data_of_all_who_submit(links: Several):
    books = pipeline_of(
        "books", lambda item, ctx: ctx.submit("links", "x", {item.key: True, "last": 0}, when_exists="merge")
    )
    keys = [f"page-{number}" for number in range(30)]
    ran = links(books, keys)

    assert data_of(ran.app, "x") == {**dict.fromkeys(keys, True), "last": 0}


@pytest.mark.req("V10")
@pytest.mark.parametrize(("when", "data"), [("skip", {"a": 1}), ("merge", {"a": 1, "b": 2}), ("rerun", {"b": 2})])
def test_two_in_one_commit_come_to_the_same_as_one_after_the_other(app: App, when: str, data: Any):
    """How many attempts share a commit depends on the load, and must not be seen."""
    two_pipelines(app)
    for number, together in enumerate((True, False)):
        app.name = "p"
        app.add([f"{number}-1", f"{number}-2"])
        one, two = (
            submitting(app, lease, f"x-{number}", when=when, data=given)
            for lease, given in zip(app.claim(most=2), ({"a": 1}, {"b": 2}), strict=True)
        )
        for group in [[one, two]] if together else [[one], [two]]:
            app.store.write(lambda tx, group=group: complete(tx, group))
    app.name = "links"

    assert app.data("x-0") == app.data("x-1") == data
    assert app.counts() == app.recount() == {"a": {"done": 4}, "link": {"pending": 2}}


def test_one_handler_may_submit_the_same_key_twice(links: Several):
    def work(item: Item, ctx: Context) -> None:
        ctx.submit("links", "x", {"a": 1}, when_exists="merge")
        ctx.submit("links", "x", {"b": 1}, when_exists="merge")
        ctx.submit("links", "x", {"c": 1})

    ran = links(pipeline_of("books", work), ["page-1"])
    assert data_of(ran.app, "x") == {"a": 1, "b": 1}


def test_a_follow_on_may_go_to_the_same_pipeline(run: Bench):
    def work(item: Item, ctx: Context) -> None:
        depth = item.data.get("depth", 0)
        if depth < 5:
            ctx.submit("books", f"{item.key}.{depth}", {"depth": depth + 1})

    ran = run(pipeline_of("books", work), ["page"])
    assert keys_of(ran.app, "books") == ["page", "page.0", "page.0.1", "page.0.1.2", "page.0.1.2.3", "page.0.1.2.3.4"]
    assert ran.states("books-work") == {"done": 6}


@pytest.mark.parametrize("how", ["process", "loop", "batch"])
def test_every_kind_of_handler_submits(links: Several, how: str):
    async def on_the_loop(item: Item, ctx: Context) -> None:
        ctx.submit("links", item.key, {"a": [1]})

    handler: Any = {
        "process": lambda item, ctx: ctx.submit("links", item.key, {"a": [1]}),
        "loop": on_the_loop,
        "batch": lambda items, ctx: [ctx.of(item).submit("links", item.key, {"a": [1]}) for item in items],
    }[how]
    books = pipeline_of(
        "books", handler, isolate="process" if how == "process" else None, batch=4 if how == "batch" else None
    )
    ran = links(books, ["page-1", "page-2"])

    assert keys_of(ran.app) == ["page-1", "page-2"]
    assert data_of(ran.app, "page-1") == {"a": [1]}


# Rivals ---------------------------------------------------------------------------------------------------------------


@pytest.mark.fault(67)
@pytest.mark.req("V10")
@pytest.mark.parametrize("rolled_back", [True, False], ids=["one rolled back", "both commit"])
@pytest.mark.parametrize("when", ["skip", "rerun", "merge"])
def test_two_parents_that_submit_the_same_key_at_once_bring_about_one(app: App, rolled_back: bool, when: str):
    """The first has inserted the item and not committed when the second comes: it waits, and inserts if the first did
    not after all. Never two, and never none."""
    two_pipelines(app)
    app.add(["1", "2"])
    leases = app.claim(most=2)
    other = app.beside()
    inserted = threading.Event()

    def first() -> None:
        def work(tx: Any) -> None:
            complete(tx, [submitting(app, leases[0], "x", when=when)])
            inserted.set()
            wait_for(lambda: someone_waits(app) or second_done.is_set())
            if rolled_back:
                raise RuntimeError("after the insert")

        app.store.write(work)

    def second() -> None:
        inserted.wait(20)
        other.store.write(lambda tx: complete(tx, [submitting(other, leases[1], "x", when=when)]))
        second_done.set()

    second_done = threading.Event()
    errors = [error for error in at_once(*(lambda work=work: caught(work) for work in (first, second))) if error]
    other.store.close()

    assert [str(error) for error in errors] == (["after the insert"] if rolled_back else [])
    assert link_keys(app) == ["x"]
    assert app.counts() == app.recount()
    app.name = "links"
    assert app.states("x") == {"link": "pending"}


def caught(work: Callable[[], None]) -> Exception | None:
    try:
        work()
    except Exception as error:
        return error
    return None


def someone_waits(app: App) -> bool:
    """Is somebody held up by a lock? On SQLite, whoever writes second waits at the door."""
    if app.store.connect().dialect.name == "sqlite":
        return True
    probe = app.store.another()
    try:
        [(n,)] = probe.read(
            lambda tx: probe.driver.run_text(
                "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
        )
        return bool(n)
    finally:
        probe.close()


@pytest.mark.fault(67)
@pytest.mark.req("V10")
def test_a_parent_that_raises_after_it_submitted_leaves_the_child_to_its_rival(links: Several, own: OwnTables):
    """Through real workers: of two parents with the same follow-on, the first one's effect raises after the insert."""

    def work(item: Item, ctx: Context) -> None:
        ctx.submit("links", "x", {"from": item.key})
        if item.key == "bad":
            ctx.effect(own.save_and(Permanent("too bad")), item.key)

    ran = links(pipeline_of("books", work), ["bad", "good"])

    assert [ran.state(key, "books-work") for key in ("bad", "good")] == ["failed", "done"]
    assert data_of(ran.app, "x") == {"from": "good"}
    assert ran.state("x", "links-work") == "done"


@pytest.mark.req("V10")
def test_several_workers_that_submit_the_same_keys_bring_about_each_once(url: str):
    ran_links: list[str] = []
    lock = threading.Lock()

    def link(item: Item, ctx: Context) -> None:
        with lock:
            ran_links.append(item.key)

    links = pipeline_of("links", link)

    def work(item: Item, ctx: Context) -> None:
        for number in range(10):
            ctx.submit("links", f"link-{(int(item.key) + number) % 20}")

    bench = Several(url, [links])
    books = pipeline_of("books", work)
    bench.app(books, [str(number) for number in range(100)])
    with bench.serving(books), bench.serving(books), bench.serving(books) as (_, ran):
        wait_for(lambda: ran.states("books-work") == {"done": 100} and ran.states("links-work") == {"done": 20})

    assert sorted(ran_links) == sorted(f"link-{number}" for number in range(20))
    assert ran.app.check() == []
    bench.close()


@pytest.mark.req("V10")
def test_submits_in_opposite_order_do_not_stop_each_other(app: App):
    """Two transactions that add the same keys lock them in the same order, whatever order they were submitted in."""
    two_pipelines(app)
    app.add([str(number) for number in range(20)])
    keys = [f"link-{number}" for number in range(10)]
    others = [app.beside(), app.beside()]

    def work_off(mine: App, order: list[str]) -> None:
        while leases := mine.claim(worker="w"):
            mine.store.write(lambda tx: complete(tx, [submitting(mine, leases[0], *order, when="merge")]))
        mine.store.close()

    with meeting_at("store.insert_items", 2) if app.store.connect().dialect.name == "postgres" else nullcontext():
        at_once(lambda: work_off(others[0], keys), lambda: work_off(others[1], keys[::-1]))
    assert link_keys(app) == sorted(keys)
    assert app.counts() == app.recount() == {"a": {"done": 20}, "link": {"pending": 10}}


# Many -----------------------------------------------------------------------------------------------------------------


@pytest.mark.fault(68)
@pytest.mark.req("V7", "V10")
def test_items_that_each_submit_ten_fill_neither_memory_nor_the_way_to_the_status(url: str):
    """One item becomes 11,111, five deep."""
    depth = 4

    def work(item: Item, ctx: Context) -> None:
        if item.data["depth"] < depth:
            for number in range(10):
                ctx.submit("bomb", f"{item.key}{number}", {"depth": item.data["depth"] + 1})

    bomb = pipeline_of("bomb", work)
    bench = Bench(url)
    slowest = 0.0
    memory = peak()
    with bench.serving(bomb, [{"key": "0", "depth": 0}]) as (_, ran):
        states: dict[str, int] = {}
        give_up_at = time.monotonic() + 60
        while states != {"done": 11_111}:
            assert time.monotonic() < give_up_at, states
            asked = time.monotonic()
            states = ran.states("bomb-work")
            slowest = max(slowest, time.monotonic() - asked)
            time.sleep(0.05)
    bench.close()

    assert slowest <= 1.0 * slowness(), "it takes milliseconds"
    assert peak() - memory < 100 * 1024 * 1024


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_one_handler_may_submit_thousands(links: Several):
    def work(item: Item, ctx: Context) -> None:
        for number in range(5000):
            ctx.submit("links", f"link-{number}", {"n": number})

    ran = links(pipeline_of("books", work), ["page-1"])
    assert ran.states("links-work") == {"done": 5000}


# Bad input ------------------------------------------------------------------------------------------------------------


BAD_SUBMITS: dict[str, tuple[Callable[[Context], Any], str]] = {
    "unknown pipeline": (lambda ctx: ctx.submit("nowhere", "x"), "submit to 'nowhere', which is not a pipeline"),
    "no pipeline": (lambda ctx: ctx.submit(None, "x"), "submit: pipeline None is not a name"),
    "a pipeline object": (lambda ctx: ctx.submit(Pipeline("links"), "x"), "is not a name"),
    "no key": (lambda ctx: ctx.submit("links", ""), "submit: item key is empty"),
    "a number as key": (lambda ctx: ctx.submit("links", 7), "submit: item key 7: a key is text, not int"),
    "a key too long": (lambda ctx: ctx.submit("links", "x" * 2000), "has 2,000 bytes; the limit is"),
    "half a character": (lambda ctx: ctx.submit("links", "\ud800"), "has a lone surrogate"),
    "a list as data": (lambda ctx: ctx.submit("links", "x", [1]), "submit: data is list, not an object"),
    "data JSON has not": (lambda ctx: ctx.submit("links", "x", {"a": {1}}), "submit: a value of type set at a"),
    "too much data": (lambda ctx: ctx.submit("links", "x", {"a": "x" * 200_000_000}), "the limit is"),
    "unknown wish": (
        lambda ctx: ctx.submit("links", "x", when_exists="replace"),
        "when_exists='replace': it is one of",
    ),
    "child of itself": (lambda ctx: ctx.submit("books", "child of itself", child=True), "cannot be a child of itself"),
}


@pytest.mark.fault(56)
@pytest.mark.req("V12")
def test_what_makes_no_sense_is_refused_with_item_stage_and_argument(links: Several):
    """Each fails its own item and nothing else; also what the handler submitted before is not written."""

    def work(item: Item, ctx: Context) -> None:
        ctx.submit("links", f"of {item.key}")
        if item.key in BAD_SUBMITS:
            BAD_SUBMITS[item.key][0](ctx)

    ran = links(pipeline_of("books", work, max_attempts=1), [*BAD_SUBMITS, "good"])

    for key, (_, said) in BAD_SUBMITS.items():
        stage = ran.stage(key, "books-work")
        assert stage.state == "exhausted", key
        assert stage.error.startswith(f"UsageError: item {key!r}, stage 'books-work': "), stage.error
        assert said in stage.error, key
    assert keys_of(ran.app) == ["of good"]


# Inside a transaction of the caller's ---------------------------------------------------------------------------------


@pytest.fixture
def shop(url: str) -> Iterator[Holdfast]:
    with Holdfast(url, [pipeline_of("links", lambda item, ctx: item.data).spec]) as app:
        app.register()
        yield app


@pytest.mark.req("V2", "V10")
@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled back"])
@pytest.mark.parametrize("how", ["connection", "session", "raw"])
def test_items_added_within_a_callers_transaction_share_its_fate(
    shop: Holdfast, own: OwnTables, url: str, how: str, commit: bool
):
    items = [{"key": "a", "n": 1}, "b"]
    with open_transaction(own, url, how) as (connection, write_note, end):
        write_note("before")
        assert shop.add("links", items, connection=connection) == (2, 0, 0)
        write_note("after")
        assert keys_of(shop) == [], "nothing is visible before the commit"
        end(commit)

    assert keys_of(shop) == (["a", "b"] if commit else [])
    assert own.keys() == (["after", "before"] if commit else [])
    assert shop.check() == []
    assert shop.add("links", items) == ((0, 0, 2) if commit else (2, 0, 0))
    shop.run()
    assert shop.show("a").stages[0].result == {"n": 1}


class open_transaction:
    """A transaction of the caller's own, as a SQLAlchemy Connection, an ORM Session or a connection of the driver."""

    def __init__(self, own: OwnTables, url: str, how: str) -> None:
        self.own, self.url, self.how = own, url, how

    def __enter__(self) -> tuple[Any, Callable[[str], Any], Callable[[bool], None]]:
        if self.how == "raw":
            self.it: Any = (
                psycopg.connect(read_url(self.url)[0]) if self.own.schema else sqlite3.connect(file_of(self.url))
            )
            mark = "%s" if self.own.schema else "?"
            text = f"INSERT INTO {self.own.note.fullname} (key) VALUES ({mark})"
            write_note: Callable[[str], Any] = lambda key: self.it.execute(text, (key,))  # noqa: E731
        else:
            self.it = self.own.engine.connect() if self.how == "connection" else Session(self.own.engine)
            write_note = lambda key: self.it.execute(self.own.note.insert().values(key=key))  # noqa: E731
        return self.it, write_note, lambda commit: self.it.commit() if commit else self.it.rollback()

    def __exit__(self, *_: object) -> None:
        self.it.close()


@pytest.mark.req("V2", "V12")
@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled back"])
def test_a_connection_that_has_done_nothing_else_ends_what_was_added(shop: Holdfast, own: OwnTables, commit: bool):
    """SQLAlchemy begins a transaction with its first statement, and its commit does nothing before that."""
    with own.engine.connect() as connection:
        shop.add("links", ["a"], connection=connection)
        connection.commit() if commit else connection.rollback()
        assert keys_of(shop) == (["a"] if commit else [])
        # The connection can be used on, as after any other statement.
        with connection.begin():
            shop.add("links", ["b"], connection=connection)
    assert keys_of(shop) == (["a", "b"] if commit else ["b"])


def test_adding_within_merges_what_is_known(shop: Holdfast, own: OwnTables):
    shop.add("links", [{"key": "a", "n": 1}, {"key": "b", "n": 1}])
    with own.engine.begin() as connection:
        added = shop.add("links", [{"key": "a", "n": 2}, {"key": "b", "n": 1}, "c"], connection=connection)

    assert added == (1, 1, 1)
    assert data_of(shop, "a") == {"n": 2}


@pytest.mark.req("V12")
def test_adding_within_checks_everything_before_it_writes(shop: Holdfast, own: OwnTables):
    with own.engine.connect() as connection:
        with pytest.raises(UsageError, match="there is no pipeline 'nowhere'"):
            shop.add("nowhere", ["a"], connection=connection)
        with pytest.raises(UsageError, match="item 2 has no 'key'"):
            shop.add("links", ["a", {}], connection=connection)
        connection.commit()
    assert keys_of(shop) == []


@pytest.mark.req("V12")
@pytest.mark.parametrize("given", ["sqlite:///x.db", object(), 3])
def test_adding_within_wants_a_connection(shop: Holdfast, given: Any):
    with pytest.raises(UsageError, match=f"is needed, not a {type(given).__name__}"):
        shop.add("links", ["a"], connection=given)


@pytest.mark.req("V12")
@pytest.mark.direct("drops a database in which the pooler still has a session")
def test_a_connection_to_another_database_is_refused(shop: Holdfast, own: OwnTables, tmp_path: Path, url: str):
    """Also if there is a store in it: the items would be written, and never found."""
    if own.schema is None:
        elsewhere = f"sqlite:///{tmp_path / 'other.db'}"
        engine = sa.create_engine(elsewhere)
    else:
        name = f"other_{own.schema}"
        with psycopg.connect(read_url(url)[0], autocommit=True) as conn:
            conn.execute(f"CREATE DATABASE {name}")
        base = in_database(read_url(url)[0], name)
        elsewhere = f"{base}&schema={own.schema}"
        engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(base))
    try:
        with Holdfast(elsewhere, shop.pipelines) as other:
            other.register()
            with (
                engine.connect() as connection,
                pytest.raises(UsageError, match=r"the connection is to .*, the store is"),
            ):
                shop.add("links", ["a"], connection=connection)
            assert keys_of(other) == keys_of(shop) == []
    finally:
        engine.dispose()
        if own.schema is not None:
            with psycopg.connect(read_url(url)[0], autocommit=True) as conn:
                conn.execute(f"DROP DATABASE {name}")


@pytest.mark.req("V2")
def test_a_connection_without_a_transaction_is_refused(shop: Holdfast, own: OwnTables, url: str):
    """Each statement would be committed by itself, or nobody would ever end what was begun."""
    raw: Any = (
        psycopg.connect(read_url(url)[0], autocommit=True)
        if own.schema
        else sqlite3.connect(file_of(url), isolation_level=None)
    )
    with pytest.raises(UsageError, match="begin a transaction first"):
        shop.add("links", ["a"], connection=raw)
    raw.execute("BEGIN")
    shop.add("links", ["a"], connection=raw)
    raw.execute("COMMIT")
    raw.close()
    assert keys_of(shop) == ["a"]


@pytest.mark.req("V10")
def test_two_callers_who_add_the_same_key_wait_for_each_other(shop: Holdfast, own: OwnTables, url: str):
    """The first rolls back while the second waits: the item is added by the second."""
    with Holdfast(url, shop.pipelines) as second_shop:
        second_shop.register()
        first = own.engine.connect()
        shop.add("links", ["x"], connection=first)

        def second() -> None:
            with own.engine.begin() as connection:
                second_shop.add("links", ["x"], connection=connection)

        thread = threading.Thread(target=second)
        thread.start()
        wait_for(lambda: someone_waits_on(url) or not thread.is_alive())
        first.rollback()
        first.close()
        thread.join(20)

    assert keys_of(shop) == ["x"]
    assert shop.check() == []


@pytest.mark.req("V10", "P16")
def test_a_caller_who_waits_for_another_does_not_keep_it_from_adding_more(shop: Holdfast, own: OwnTables, url: str):
    """Two requests of a web application that share one app. The second waits for the first one's transaction, which can only
    end if the first may go on."""
    first = own.engine.connect()
    shop.add("links", ["x"], connection=first)

    def second() -> None:
        with own.engine.begin() as connection:
            if own.schema is not None:
                # So that a failure of this test ends.
                connection.exec_driver_sql("SET LOCAL lock_timeout = '25s'")
            shop.add("links", ["x"], connection=connection)

    waits = threading.Thread(target=second, daemon=True)
    waits.start()
    wait_for(lambda: someone_waits_on(url) or not waits.is_alive())
    goes_on = threading.Thread(target=lambda: shop.add("links", ["y"], connection=first), daemon=True)
    goes_on.start()
    goes_on.join(20)
    assert not goes_on.is_alive(), "each waits for the other"
    first.commit()
    first.close()
    waits.join(20)

    assert keys_of(shop) == ["x", "y"]
    assert shop.check() == []


def someone_waits_on(url: str) -> bool:
    if url.startswith("sqlite:"):
        return True
    with psycopg.connect(read_url(url)[0]) as conn:
        [(n,)] = conn.execute(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        ).fetchall()
        return bool(n)


@pytest.mark.req("V2")
def test_what_a_worker_claims_was_committed_by_the_caller(shop: Holdfast, own: OwnTables, url: str):
    """A worker that serves meanwhile starts the item after the caller's commit, and finds the caller's rows."""
    found: list[list[str]] = []
    bench = Bench(url)
    links = pipeline_of("links", lambda item, ctx: found.append(own.keys()))
    with bench.serving(links, poll_seconds=0.05) as (_, ran):
        with own.engine.begin() as connection:
            shop.add("links", ["x"], connection=connection)
            own.save(connection, "mine")
            before = list(found)
        wait_for(lambda: ran.states("links-work") == {"done": 1})
    bench.close()

    assert before == []
    assert found == [["mine"]]


def test_an_effect_may_add_within_its_own_connection(links: Several, shop: Holdfast):
    def work(item: Item, ctx: Context) -> None:
        ctx.effect(lambda connection: shop.add("links", [{"key": f"of {item.key}", "n": 1}], connection=connection))

    ran = links(pipeline_of("books", work), ["page-1"])
    assert ran.state("page-1", "books-work") == "done"
    assert ran.result("of page-1", "links-work") == {"n": 1}
