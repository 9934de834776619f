"""Deleting items: all that is known of them goes, in whatever state they are; what they have cost stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Context, Holdfast, Item, Pipeline
from holdfast.engine.actions import act, count
from holdfast.engine.delete import Delete
from holdfast.engine.selection import Who
from holdfast.errors import LeaseLost
from holdfast.model.item_filter import Which
from tests.support.bench import QUICK, Bench
from tests.support.harness import App
from tests.support.processes import wait_for

SECRET = "ada@example.org"


@pytest.fixture
def app(store, clock) -> App:
    return App(store, clock)


@pytest.fixture
def run(url: str) -> Iterator[Bench]:
    bench = Bench(url)
    yield bench
    bench.close()


def remove(app: App, **which: Any) -> dict[str, int]:
    return act(app.store, Delete(Which(**which)), Who("me", "asked to"))


def everywhere(app: App) -> None:
    """One item in each state, and a re-run in each open one."""
    app.pipeline({"a": [], "b": ["a"]}, max_attempts=1)
    states = ("pending", "retry_later", "in_progress", "on_hold", "failed", "done")
    app.add([f"{state}-{n}" for n in (0, 1) for state in states])
    for lease in app.claim(stage="a", most=12):
        if lease.key.endswith("1"):
            app.complete(lease, 1)
        elif lease.key == "failed-0":
            app.permanent(lease)
        elif lease.key == "retry_later-0":
            app.snooze(lease, 60)
        elif lease.key != "in_progress-0":
            app.release(lease)
    app.hold("a", "on_hold-0")
    app.retry(states=["done"], stage="a")
    for lease in app.claim(stage="a", most=12):
        if lease.key.startswith("retry_later"):
            app.snooze(lease, 60)
        elif not lease.key.startswith("in_progress"):
            app.release(lease)
    app.hold("a", "on_hold-1")


@pytest.mark.parametrize("key", ["*", "*-0", "*-1", "in_progress*", "done*"])
def test_an_item_can_be_deleted_in_any_state_and_the_counts_agree(app, key):
    everywhere(app)
    gone = [row[0] for row in app.query("SELECT id FROM holdfast_items WHERE key {glob} :key", key=glob(app, key))]
    assert remove(app, key=(key,)) == {"p": len(gone)}
    for table, column in (
        ("items", "id"),
        ("waiting", "item"),
        ("delayed", "item"),
        ("leases", "item"),
        ("holds", "item"),
        ("outcomes", "item"),
        ("memos", "item"),
        ("events", "item"),
    ):
        left = {row[0] for row in app.query(f"SELECT {column} FROM holdfast_{table}")}
        assert not left & {*gone}, table
    assert app.counts() == app.recount()
    [event] = app.events("deleted")
    assert (event["items"], event["by"], event["reason"]) == (len(gone), "me", "asked to")


def glob(app: App, pattern: str) -> str:
    return app.store.connect().dialect.glob_pattern(pattern)


def test_a_worker_whose_item_was_deleted_loses_its_lease(app):
    app.pipeline({"a": []})
    app.add(["one"])
    [lease] = app.claim()
    remove(app, key=("one",))
    with pytest.raises(LeaseLost):
        app.complete(lease, 1)
    assert app.query("SELECT COUNT(*) FROM holdfast_outcomes") == [(0,)]
    app.add(["one"])
    assert app.states("one") == {"a": "pending"}, "added again, it begins anew"


def test_items_are_chosen_by_state_and_error(app):
    everywhere(app)
    assert count(app.store, Delete(Which(error="never works"))) == {"p": 1}
    assert remove(app, error="never works") == {"p": 1}
    assert remove(app, error="never works") == {}
    assert app.query("SELECT COUNT(*) FROM holdfast_items") == [(11,)]


def test_nothing_personal_is_left_and_the_money_is(run: Bench, url: str):
    pipeline = Pipeline("p")

    @pipeline.stage(backoff=QUICK)
    def work(item: Item, ctx: Context) -> Any:
        ctx.once("call", lambda: item.data["mail"], cost=0.40, facts={"mail": item.data["mail"]})
        if ctx.attempt == 1:
            raise RuntimeError(item.data["mail"])
        return {"mail": item.data["mail"]}

    ran = run(pipeline, [{"key": SECRET, "mail": SECRET}])
    assert ran.app.delete(key=SECRET, dry_run=True) == {"p": 1}
    assert ran.app.delete(key=SECRET) == {"p": 1}
    assert ran.app.costs(["stage"]).sums[0].costs == Decimal("0.4")
    assert ran.app.check() == []
    with Holdfast(url) as app:
        for table in ("items", "outcomes", "memos", "events", "calls"):
            rows = app.store.read(
                lambda tx, table=table: tx.connection.execute(f"SELECT * FROM {place(tx, table)}").fetchall()
            )
            assert SECRET not in str(rows), table


def place(tx: Any, table: str) -> str:
    return str(tx.store.driver.dialect.table(table))


def test_children_go_with_their_only_parent_and_others_wait_no_longer(run: Bench):
    parents, children = Pipeline("parents"), Pipeline("children")
    gate: list[bool] = []

    @parents.stage()
    def split(item: Item, ctx: Context) -> None:
        for name in item.data["children"]:
            ctx.submit("children", key=name, child=True)

    @parents.stage(after="split", after_children="children")
    def join(item: Item, ctx: Context) -> None: ...

    @children.stage()
    def work(item: Item, ctx: Context) -> None:
        if item.key == "shared":
            wait_for(lambda: gate)

    with Holdfast(run.url, [parents.spec, children.spec]) as app:
        app.add("parents", [{"key": "a", "children": ["own", "shared"]}, {"key": "b", "children": ["shared"]}])
        worker = app.worker()
        thread = threading.Thread(target=lambda: worker.run(signals=False), daemon=True)
        thread.start()
        wait_for(lambda: app.why("b").reason == "children")
        deleted = app.delete(pipeline="parents", key="a", previewed=2)
        assert deleted == {"parents": 1, "children": 1}
        assert app.action(deleted.action).changed == 1, "a child is not what was previewed"
        assert [row.key for row in app.items(pipeline="children")] == ["shared"]
        assert app.delete(pipeline="children", key="shared") == {"children": 1}
        wait_for(lambda: app.show("b").status == "done")
        gate.append(True)
        worker.stop()
        thread.join(20)
        assert app.check() == []
