"""Rows that only somebody else can have written cost one row: the rest goes on, and `db check` finds them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Pipeline
from holdfast.app import Holdfast
from holdfast.clock import SECOND
from holdfast.engine import events, item_pages, show_item, status, stray_rows
from holdfast.engine.check import check
from holdfast.engine.on_hold import let_in
from holdfast.errors import StoreBroken
from holdfast.model.item_filter import Which
from tests.support.harness import App
from tests.support.steps import ask

pytestmark = pytest.mark.req("P9", "V7")

NOWHERE = 999_999


def told(app: App) -> list[tuple[str, str]]:
    return [(event["table"], event["why"]) for event in app.events("row_set_aside")]


def put_waiting(app: App, item: int, stage: int, *, attempts: int = 0, rerun: int = 0) -> None:
    app.execute(
        "INSERT INTO holdfast_waiting (stage, priority, item, attempts, alone, rerun) VALUES (:stage, 0, :item, :n, 0, :rerun)",
        stage=stage,
        item=item,
        n=attempts,
        rerun=rerun,
    )


def test_leases_of_no_stage_or_no_item_are_set_aside_and_the_others_are_freed(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    app.join("w")
    [lease] = app.claim("w")
    for item, stage in ((lease.item, NOWHERE), (NOWHERE, lease.stage)):
        app.execute(
            "INSERT INTO holdfast_leases (item, stage, worker, attempt, alone, rerun, since) "
            "VALUES (:item, :stage, 1, 1, 0, 0, 0)",
            item=item,
            stage=stage,
        )
    app.kill("w")
    assert app.states("x") == {"a": "pending"}
    assert sorted(told(app)) == [("leases", f"there is no item {NOWHERE}"), ("leases", f"there is no stage {NOWHERE}")]
    assert app.query("SELECT COUNT(*) FROM holdfast_leases") == [(0,)]
    assert app.counts() == app.recount()


def put_lease(app: App, item: int, stage: int, *, attempt: int = 1) -> None:
    app.execute(
        "INSERT INTO holdfast_leases (item, stage, worker, attempt, alone, rerun, since) "
        "VALUES (:item, :stage, 5, :n, 0, 0, 0)",
        item=item,
        stage=stage,
        n=attempt,
    )


@pytest.mark.parametrize(
    ("column", "value"), [("alone", 2**15 - 1), ("attempt", 2**31 - 1), ("attempt", -(2**31)), ("since", -(2**63))]
)
def test_a_lease_with_a_number_that_cannot_be_true_keeps_no_others_from_being_freed(
    app: App, column: str, value: int
) -> None:
    """The next number would not fit into its column, and no lease of any dead worker was freed."""
    app.pipeline({"a": []}, max_attempts=9)
    app.add(["x", "y"])
    app.join("w")
    odd, _ = app.claim("w", most=2)
    app.execute(f"UPDATE holdfast_leases SET {column} = :value, worker = 5 WHERE id = :id", value=value, id=odd.id)
    app.kill("w")
    assert app.query("SELECT COUNT(*) FROM holdfast_leases") == [(0,)]
    assert app.states("x") == app.states("y") == {"a": "pending"}
    assert app.counts() == app.recount()


ENDED = "this stage has ended, and nobody has asked for a rerun"


@pytest.mark.parametrize("attempt", [1, 99], ids=["to be tried again", "the last attempt"])
def test_a_lease_of_a_stage_that_has_ended_is_set_aside_and_the_others_are_freed(app: App, attempt: int) -> None:
    app.pipeline({"a": []}, max_attempts=3)
    app.add(["x", "y"])
    app.join("w")
    first, _ = app.claim("w", most=2)
    app.complete(first)
    put_lease(app, first.item, first.stage, attempt=attempt)
    assert f"leases, item {first.item}, stage {first.stage}: {ENDED}" in check(app.store)
    app.kill("w")
    assert told(app) == [("leases", ENDED)]
    assert app.states("x") == {"a": "done"}
    assert app.states("y") == {"a": "pending"}
    assert app.query("SELECT COUNT(*) FROM holdfast_leases") == [(0,)]
    assert app.counts() == app.recount()


def test_repair_sets_aside_what_would_end_for_a_second_time(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    [lease] = app.claim()
    app.complete(lease)
    put_waiting(app, lease.item, lease.stage)
    put_lease(app, lease.item, lease.stage)
    found = check(app.store)
    wanted = [f"{table}, item {lease.item}, stage {lease.stage}: {ENDED}" for table in ("waiting", "leases")]
    assert set(wanted) <= set(found)
    assert stray_rows.repair(app.store, app.store) == wanted
    assert check(app.store) == []


def test_a_row_with_a_number_far_above_the_others_does_not_make_a_check_endless(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    app.execute(
        "INSERT INTO holdfast_items (id, pipeline, key, data, priority, created_at, updated_at) "
        "VALUES (10000000000000, :pipeline, 'far', 'junk', 0, 1, 1)",
        pipeline=app.stage("a").pipeline,
    )
    app.execute("INSERT INTO holdfast_events (id, at, event, data) VALUES (10000000000000, 1, 'added', 'junk')")
    found = check(app.store)
    assert "items 10000000000000: its data cannot be read" in found
    assert "events 10000000000000: its data cannot be read" in found


def test_an_item_of_no_pipeline_and_an_outcome_of_no_stage_are_found_and_keep_nobody_from_asking(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    app.complete(app.claim()[0])
    number = app.query("SELECT id FROM holdfast_items")[0][0]
    app.execute(
        "INSERT INTO holdfast_items (pipeline, key, data, priority, created_at, updated_at) "
        "VALUES (:nowhere, 'lost', '{}', 0, 1, 1)",
        nowhere=NOWHERE,
    )
    app.execute(
        "INSERT INTO holdfast_outcomes (item, stage, state, attempts, ended_at) VALUES (:item, :nowhere, 'done', 1, 1)",
        item=number,
        nowhere=NOWHERE,
    )
    assert f"items {number + 1}: there is no pipeline {NOWHERE}" in check(app.store)
    listed = app.store.read(lambda tx: item_pages.items(tx, Which(), most=10))
    assert [(one["key"], one["pipeline"]) for one in listed] == [("x", "p"), ("lost", f"(unknown: {NOWHERE})")]
    told_of = app.store.read(lambda tx: show_item.show(tx, "x", None))["history"]
    assert [one["event"] for one in told_of] == ["added", "completed"]


def test_delayed_work_of_no_item_is_set_aside_when_its_time_comes(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    app.fail(app.claim()[0], delay=5)
    app.execute(
        "INSERT INTO holdfast_delayed (item, stage, due_at, attempts, alone, rerun) VALUES (:item, :stage, 0, 1, 0, 0)",
        item=NOWHERE,
        stage=app.stage("a").id,
    )
    app.clock.advance(10)
    app.promote()
    assert app.states("x") == {"a": "pending"}
    assert told(app) == [("delayed", f"there is no item {NOWHERE}")]
    assert app.counts() == app.recount()


def test_held_work_of_no_item_is_set_aside_when_it_is_let_in(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    stage = app.stage("a").id
    app.execute(
        "INSERT INTO holdfast_holds (stage, item, kind, reason, attempts, alone, rerun, since) "
        "VALUES (:stage, :item, 'version', 'w', 0, 0, 2, 0)",
        stage=stage,
        item=NOWHERE,
    )

    def claim(tx: Any) -> None:
        with let_in(tx, stage, 10):
            pass

    app.store.write(claim)
    assert told(app) == [("holds", f"there is no item {NOWHERE}")]
    assert app.counts() == app.recount()


def test_what_waits_without_an_item_is_found_at_the_head_of_its_queue(app: App) -> None:
    app.pipeline({"a": [], "b": []})
    app.add(["x"])
    a, b = app.stage("a").id, app.stage("b").id
    assert app.store.read(lambda tx: stray_rows.find_in_queues(tx, [a, b])) == []
    put_waiting(app, NOWHERE, a)
    assert app.store.read(lambda tx: stray_rows.find_in_queues(tx, [a, b])) == [a]
    app.store.write(lambda tx: stray_rows.take_from_queues(tx, [a]))
    assert told(app) == [("waiting", f"there is no item {NOWHERE}")]
    assert app.store.read(lambda tx: stray_rows.find_in_queues(tx, [a, b])) == []
    assert app.states("x") == {"a": "pending", "b": "pending"}


def test_an_endless_number_of_attempts_does_not_keep_others_from_being_claimed(app: App) -> None:
    app.pipeline({"a": []}, max_attempts=3)
    app.add(["x", "y"])
    app.execute("UPDATE holdfast_waiting SET attempts = 2147483647 WHERE item = (SELECT MIN(id) FROM holdfast_items)")
    x, y = app.claim(most=2)
    app.fail(x)
    app.complete(y)
    assert (app.states("x"), app.states("y")) == ({"a": "exhausted"}, {"a": "done"})


@pytest.mark.parametrize("rerun", [7, -3])
def test_a_reason_to_run_again_that_nobody_knows_is_taken_for_a_person_who_asked(app: App, rerun: int) -> None:
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    app.run_through(1)
    put_waiting(app, app.query("SELECT MIN(id) FROM holdfast_items")[0][0], app.stage("a").id, rerun=rerun)
    app.complete(app.claim(stage="a")[0], 2)
    app.run_through(3)
    assert app.states("x") == {"a": "done", "b": "done"}


@pytest.mark.parametrize("text", ["{", "", "null", '"text"', "[[[["])
def test_a_layout_with_texts_that_are_no_json_is_read_without_them(app: App, text: str) -> None:
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    app.execute("UPDATE holdfast_stages SET compatible = :text, formerly = :text, readings = :text", text=text)
    app.execute("UPDATE holdfast_pipelines SET guards = :text, tuned = :text, provenance = :text", text=text)
    app.store.cache.clear()
    assert app.store.read(status.status)[0]["stages"][0]["states"] == {"pending": 1}
    app.run_through()
    assert app.states("x") == {"a": "done", "b": "done"}


def test_limits_that_cannot_be_read_let_nothing_in(app: App) -> None:
    """Rather than everything: somebody has set them to bound what is spent."""
    from holdfast.engine.layout import layout

    app.execute("INSERT INTO holdfast_resources (name, spec, tuned, updated_at) VALUES ('api', '{', '{', 0)")
    app.store.cache.clear()
    assert app.store.read(lambda tx: layout(tx).resource("api")).spec.budget == 0


def test_whatever_cannot_be_read_is_shown_as_it_lies_there(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x", "y"])
    app.complete(app.claim()[0], {"n": 1})
    app.execute("UPDATE holdfast_items SET data = '{broken'")
    app.execute("UPDATE holdfast_outcomes SET result = '[1,'")
    app.execute("UPDATE holdfast_events SET data = 'x'")
    shown = app.store.read(lambda tx: show_item.show(tx, "x", None))
    assert shown["data"] == {"cannot be read": "{broken"}
    assert shown["stages"][0]["result"] == {"cannot be read": "[1,"}
    assert all(event["data"] == {} for event in app.store.read(lambda tx: events.events(tx, most=10)))


def test_db_check_finds_every_stray_and_a_repair_sets_aside_what_belongs_to_nothing(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x", "y"])
    app.complete(app.claim()[0], {"n": 1})
    assert check(app.store) == []
    stage = app.stage("a").id
    put_waiting(app, NOWHERE, stage)
    app.execute("UPDATE holdfast_outcomes SET result = '{'")
    app.execute("UPDATE holdfast_items SET data = 'x' WHERE key = 'y'")
    [(y,)] = app.query("SELECT id FROM holdfast_items WHERE key = 'y'")
    stray = f"waiting, item {NOWHERE}, stage {stage}: there is no item {NOWHERE}"
    found = app.store.read(stray_rows.find)
    assert found == [stray, f"items {y}: its data cannot be read", f"outcomes {y - 1}: its result cannot be read"]
    assert stray_rows.repair(app.store, app.store) == [stray]
    assert told(app) == [("waiting", f"there is no item {NOWHERE}")]
    assert app.store.read(stray_rows.find) == found[1:]
    assert stray_rows.repair(app.store, app.store) == []


def test_a_time_far_from_now_is_no_reason_to_fail(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    app.execute("UPDATE holdfast_waiting SET since = :far", far=2**62)
    app.execute("UPDATE holdfast_items SET created_at = :far, updated_at = -1", far=2**62)
    assert app.clock.now() // SECOND < 2**62
    [stage] = app.store.read(status.status)[0]["stages"]
    assert stage["pending_since"] == 2**62
    app.run_through()
    assert app.states("x") == {"a": "done"}


def test_a_check_says_which_table_it_reads_and_how_far_it_is(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stray_rows, "STRETCH", 2)
    app.pipeline({"a": []})
    app.add(["x", "y", "z"])
    told: list[tuple[str, int]] = []
    check(app.store, lambda table, rows: told.append((table, rows)))
    last = app.query("SELECT MAX(id) FROM holdfast_items")[0][0]
    assert [rows for table, rows in told if table == "items"][-1] == last
    assert {table for table, _ in told} >= {"items", "outcomes", "events"}


def test_a_check_reads_every_memo_in_chunks_whichever_stage_and_item_it_names(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stray_rows, "STRETCH", 2)
    app.pipeline({"a": []})
    for stage, item, name, value in [
        (stage, item, name, "{" if name == "m" and item == NOWHERE else "1")
        for stage in (-1, 2**40)
        for item in (-7, NOWHERE)
        for name in ("", "m", "\U0010ffff")
    ]:
        app.execute(
            "INSERT INTO holdfast_memos (stage, item, name, state, version, idempotency_key, lease, value, at) "
            "VALUES (:stage, :item, :name, 'done', '1', 'k', 1, :value, 0)",
            stage=stage,
            item=item,
            name=name,
            value=value,
        )
    told: list[tuple[str, int]] = []
    found = app.store.read(lambda tx: stray_rows.find(tx, lambda table, rows: told.append((table, rows))))
    assert [one for one in found if "cannot be read" in one] == [f"memos {NOWHERE}: its value cannot be read"] * 2
    assert [rows for table, rows in told if table == "memos"] == [2, 4, 6, 8, 10, 12]


def test_a_worker_sets_aside_work_that_would_end_a_stage_for_a_second_time_and_ends(url: str) -> None:
    """Saving its end can never succeed, however often it is tried."""
    ran: list[str] = []
    pipeline = Pipeline[Any]("p")
    pipeline.stage(name="a", version="1")(lambda item, ctx: ran.append(item.key))
    with Holdfast(url, [pipeline.spec]) as hold:
        hold.add("p", ["x"])
        hold.run()
        hold.store.write(
            lambda tx: ask(
                tx,
                "INSERT INTO holdfast_waiting (stage, priority, item, attempts, alone, rerun) "
                "SELECT stage, 0, item, 0, 0, 0 FROM holdfast_outcomes",
            )
        )
        hold.add("p", ["y"])
        hold.run()
        assert sorted(ran) == ["x", "x", "y"]
        assert [one.data["why"] for one in hold.events(event="row_set_aside")] == [ENDED]
        assert hold.check() == []


@pytest.mark.parametrize("database", ["sqlite"])
def test_text_that_is_not_utf_8_costs_its_item_and_nobody_else(url: str) -> None:
    """SQLite keeps any bytes as text."""
    pipeline = Pipeline[Any]("p")
    pipeline.stage(name="a", version="1", max_attempts=1)(lambda item, ctx: None)
    with Holdfast(url, [pipeline.spec]) as hold:
        hold.add("p", ["odd", "good"])
        for text in (
            "UPDATE holdfast_items SET data = CAST(x'ff00' AS TEXT) WHERE key = 'odd'",
            "UPDATE holdfast_stages SET version = CAST(x'fe' AS TEXT)",
            "INSERT INTO holdfast_events (at, event, data) VALUES (1, CAST(x'ff' AS TEXT), CAST(x'ff' AS TEXT))",
        ):
            hold.store.write(lambda tx, text=text: ask(tx, text))
    with Holdfast(url, [pipeline.spec]) as hold:
        hold.run()
        assert {one.key: one.status for one in hold.items(pipeline="p")} == {"odd": "failed", "good": "done"}
        assert any("its data cannot be read" in line for line in hold.check())
        for question in (hold.status, hold.events, hold.errors, hold.doctor, lambda: hold.show("odd", "p")):
            assert str(question())


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize("table", ["leases", "events"])
def test_a_row_with_the_highest_number_ends_a_run_with_what_to_do(url: str, table: str) -> None:
    """SQLite says that the disk is full, for which work would wait for ever."""
    rows = {
        "leases": "(id, item, stage, worker, attempt, alone, rerun, since) "
        "VALUES (9223372036854775807, 99, 99, 5, 1, 0, 0, 1)",
        "events": "(id, at, event, data) VALUES (9223372036854775807, 1, 'junk', '{}')",
    }
    pipeline = Pipeline[Any]("p")
    pipeline.stage(name="a", version="1", max_attempts=1)(lambda item, ctx: None)
    with Holdfast(url, [pipeline.spec]) as hold:
        hold.add("p", ["x"])
        hold.store.write(lambda tx: ask(tx, f"INSERT INTO holdfast_{table} {rows[table]}"))
        with pytest.raises(StoreBroken, match=f"holdfast_{table} can take no more rows"):
            hold.run()


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_row_that_was_given_the_highest_number_ends_a_run_with_what_to_do(url: str) -> None:
    """SQLite notes the numbers of new rows only."""
    pipeline = Pipeline[Any]("p")
    pipeline.stage(name="a", version="1", max_attempts=1)(lambda item, ctx: None)
    with Holdfast(url, [pipeline.spec]) as hold:
        hold.add("p", ["x"])
        hold.event("user.seen", pipeline="p")
        hold.store.write(
            lambda tx: ask(
                tx,
                "UPDATE holdfast_events SET id = 9223372036854775807 WHERE id = (SELECT MAX(id) FROM holdfast_events)",
            )
        )
        with pytest.raises(StoreBroken, match="holdfast_events can take no more rows"):
            hold.run()


def test_lists_that_are_narrowed_by_time_step_over_work_of_no_item(url: str) -> None:
    pipeline = Pipeline[Any]("p")
    pipeline.stage(name="a", version="1")(lambda item, ctx: None)
    with Holdfast(url, [pipeline.spec]) as hold:
        hold.add("p", ["x"])
        hold.store.write(
            lambda tx: ask(
                tx,
                "INSERT INTO holdfast_delayed (item, stage, due_at, attempts, alone, rerun) SELECT 99, id, 1, 1, 0, 0 "
                "FROM holdfast_stages",
            )
        )
        assert {one.key for one in hold.items(stage="a")} == {"x", None}
        for narrowed in ({"since": datetime(2000, 1, 1, tzinfo=UTC)}, {"until": datetime(9000, 1, 1, tzinfo=UTC)}):
            assert [one.key for one in hold.items(**narrowed)] == ["x"]


@pytest.mark.parametrize("generation", [2**63 - 1, -(2**63)])
def test_a_generation_that_nothing_can_have_reached_stops_nobody(url: str, generation: int) -> None:
    """Every transaction adds up all generations: the sum left its column, for questions and for work."""
    first, second = Pipeline[Any]("p"), Pipeline[Any]("q")
    for pipeline in (first, second):
        pipeline.stage(name="a", version="1")(lambda item, ctx: None)
    with Holdfast(url, [first.spec, second.spec]) as hold:
        for name in ("p", "q"):
            hold.add(name, ["x"])
        hold.store.write(
            lambda tx: ask(tx, "UPDATE holdfast_pipelines SET generation = :n WHERE name = 'p'", n=generation)
        )
    first.stage(name="b", after="a", version="1")(lambda item, ctx: None)
    with Holdfast(url, [first.spec, second.spec]) as hold:
        assert hold.status()
        hold.run()
        assert {one.status for one in hold.items()} == {"done"}
        assert hold.show("x", "p").stage("b").state == "done"
