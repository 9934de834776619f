"""Forgetting what is old: in batches, all of an item or nothing of it, and never money."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from holdfast import Pipeline
from holdfast.app import Holdfast
from holdfast.engine import prune
from holdfast.engine.complete import complete
from holdfast.engine.finish_leases import Cost, FollowOn
from holdfast.engine.memos import MemoWrite, remember
from holdfast.errors import UsageError
from holdfast.worker import Settings
from holdfast.worker.background.upkeep import Pruner
from tests.support.harness import App, connected
from tests.support.killed_main import killed
from tests.support.money import charged
from tests.support.together import STUCK_SECONDS, held_at, listening, wait_for

pytestmark = pytest.mark.req("J9")

DAY = 24 * 3600
#: Every table that knows items by number.
TABLES = ("waiting", "delayed", "leases", "outcomes", "memos", "events")


@pytest.fixture
def hold(url, app, clock) -> Iterator[Holdfast]:
    app.pipeline({"a": [], "b": ["a"]})
    with Holdfast(url, clock=clock) as hold:
        yield hold


def keys(app: App) -> list[str]:
    return [row[0] for row in app.query("SELECT key FROM holdfast_items ORDER BY key")]


def rows_of(app: App, item: int) -> dict[str, int]:
    """How many rows each table has of an item; none that has none."""
    found = {}
    for table in TABLES:
        [(count,)] = app.query(f"SELECT COUNT(*) FROM holdfast_{table} WHERE item = :item", item=item)
        if count:
            found[table] = count
    return found


def number_of(app: App, key: str) -> int:
    return app.query("SELECT id FROM holdfast_items WHERE key = :key", key=key)[0][0]


# Events ---------------------------------------------------------------------------------------------------------------


def test_events_are_forgotten_by_age_in_batches_each_of_its_own(app, hold, clock):
    app.add(["x"])
    for _ in range(1203):
        app.store.write(lambda tx: tx.record("noted", item=1))
    clock.advance(10 * DAY)
    app.release(app.claim()[0])
    steps: list[str] = []
    with listening(lambda point: steps.append(point)):
        done = hold.prune(events_older_than="9d")
    assert done["events"] >= 1203
    assert [event.event for event in hold.events(key="x")] == ["handed_back"]
    batches = (done["events"] + prune.CHUNK - 1) // prune.CHUNK
    assert steps.count("commit.after") == steps.count("store.delete_events") >= batches


def test_money_is_never_forgotten(app, hold, clock):
    app.add(["x"])
    one = app.finished(app.claim()[0])
    one.costs = [Cost(7, None)]
    app.store.write(lambda tx: complete(tx, [one]))
    clock.advance(1000 * DAY)
    hold.prune(events_older_than=0, items_older_than=0)
    assert charged(hold, ["pipeline"]) == [{"pipeline": "p", "amount": 7, "payments": 1}]


def test_a_worker_forgets_events_after_ninety_days_unless_told_otherwise(app, hold, clock):
    assert Settings().keep_events_days == 90
    app.store.write(lambda tx: tx.record("clock_set"))
    clock.advance(89 * DAY)
    pruner = Pruner(app.store, Settings().keep_events_days)
    pruner.one_pass()
    assert hold.events(event="clock_set")
    clock.advance(2 * DAY)
    pruner.one_pass()
    assert hold.events(event="clock_set") == ()
    assert pruner.due > time.monotonic()


def test_a_worker_with_many_to_forget_comes_back_at_once(app, hold, clock):
    app.store.write(lambda tx: [tx.record("old") for _ in range(prune.CHUNK + 1)])
    clock.advance(91 * DAY)
    pruner = Pruner(app.store, 90)
    pruner.one_pass()
    assert pruner.due <= time.monotonic()
    pruner.one_pass()
    assert pruner.due > time.monotonic()


def test_nothing_is_forgotten_unless_asked_and_a_wrong_age_is_refused(app, hold, clock):
    app.add(["x"])
    app.run_through()
    clock.advance(1000 * DAY)
    assert hold.prune() == {"events": 0, "items": 0, "blobs": 0}
    for age in (-1, "soon", float("inf")):
        with pytest.raises(UsageError, match="events_older_than"):
            hold.prune(events_older_than=age)
        with pytest.raises(UsageError, match="items_older_than"):
            hold.prune(items_older_than=age)
    assert keys(app) == ["x"]


# Items ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def old(app, hold, clock) -> App:
    """Ten days ago: items that ended in every way, and items in every state that is none."""
    app.pipeline({"a": [], "b": ["a"]}, max_attempts=1)
    app.add(["done", "skipped", "failed", "exhausted", "cancelled", "waits", "delayed", "held"])
    leases = {lease.key: lease for lease in app.claim(most=8)}
    app.complete(leases["done"], 1)
    app.skip(leases["skipped"])
    app.permanent(leases["failed"])
    app.fail(leases["exhausted"])
    app.cancel(key="cancelled")
    app.release(leases["waits"])
    app.snooze(leases["delayed"], 100 * DAY)
    for lease in app.claim(stage="b", most=8):
        app.complete(lease, 2)
    clock.advance(10 * DAY)
    return app


def test_items_that_came_to_an_end_long_ago_go_and_what_is_open_stays(old, hold):
    gone = {key: number_of(old, key) for key in ("done", "skipped", "failed", "exhausted", "cancelled")}
    assert hold.prune(items_older_than="9d") == {"events": 0, "items": 5, "blobs": 0}
    assert keys(old) == ["delayed", "held", "waits"]
    assert {key: rows_of(old, number) for key, number in gone.items()} == {key: {} for key in gone}
    assert old.counts() == old.recount()
    assert hold.check() == []
    assert [event.data for event in hold.events(event="pruned")] == [{"items": 5}]


def test_what_ended_or_was_added_again_since_then_stays(old, hold, clock):
    old.retry(key="failed")
    for lease in old.claim(stage="a", most=8):
        if lease.key == "failed":
            old.permanent(lease)
    old.add([{"key": "done", "new": True}, {"key": "skipped"}])
    clock.advance(DAY)
    assert hold.prune(items_older_than="5d")["items"] == 3
    assert keys(old) == ["delayed", "done", "failed", "held", "waits"]


def test_a_batch_is_a_transaction_and_leaves_no_half_of_an_item(app, hold, clock):
    app.add([f"i{number:04}" for number in range(1203)])
    leases = app.claim(most=1203)
    app.store.write(lambda tx: complete(tx, [app.finished(lease, 1) for lease in leases]))
    leases = app.claim(stage="b", most=1203)
    app.store.write(lambda tx: complete(tx, [app.finished(lease, 1) for lease in leases]))
    clock.advance(DAY)
    left = []

    def look(point: str) -> None:
        if point == "commit.after":
            with connected(app) as other:
                [(items,)] = other.query("SELECT COUNT(*) FROM holdfast_items")
                [(outcomes,)] = other.query("SELECT COUNT(*) FROM holdfast_outcomes")
            left.append((items, outcomes))

    with listening(look):
        assert hold.prune(items_older_than=1)["items"] == 1203
    assert left == [(703, 1406), (203, 406), (0, 0), (0, 0)]
    assert app.counts() == app.recount() == {}


def test_a_key_that_is_added_again_begins_a_new_life(app, hold, clock):
    app.add([{"key": "x", "n": 1}])
    [lease] = app.claim()
    memo = MemoWrite(lease, "gemini", "done", "1", "k", cost=5, value='"of the old life"')
    app.store.write(lambda tx: remember(tx, [memo]))
    app.permanent(lease)
    clock.advance(DAY)
    assert hold.prune(items_older_than=1)["items"] == 1
    app.add([{"key": "x", "n": 1}])
    [fresh] = app.claim()
    assert (fresh.attempt, fresh.life, fresh.rerun, fresh.memos, fresh.results) == (1, 1, 0, {}, {})
    assert [one.event for one in hold.history("x")] == ["added"]
    assert hold.events(key="x") == hold.memos("x") == ()
    assert charged(hold, ["item"]) == [{"item": None, "amount": 5, "payments": 1}]
    assert app.row("x", "a")["attempts"] == 1


def test_children_go_with_or_after_their_parents_and_never_before(app, hold, clock):
    """Whoever asks a parent how its children ended gets an answer as long as the parent is there."""
    app.pipeline({"only": []}, name="parts")
    app.pipeline({"split": [], "join": ["split"]}, name="books", only={"join": {"after_children": "parts"}})
    app.add(["book"])
    one = app.finished(app.claim()[0])
    one.follow_ons = [FollowOn("parts", f"part-{number}", "{}", "skip", True) for number in range(3)]
    app.store.write(lambda tx: complete(tx, [one]))
    app.name = "parts"
    app.run_through()
    clock.advance(DAY)
    assert hold.prune(items_older_than=1)["items"] == 0
    app.name = "books"
    app.run_through()
    clock.advance(DAY)
    while hold.prune(items_older_than=1)["items"]:
        assert hold.check() == []
    assert keys(app) == []
    assert app.query("SELECT COUNT(*) FROM holdfast_children") == [(0,)]


def test_a_parts_key_that_is_submitted_again_runs_again_and_has_no_former_result(app, hold, clock):
    app.pipeline({"only": []}, name="parts")
    app.pipeline({"split": []}, name="books")
    for life in ("first", "second"):
        app.name = "books"
        app.add([f"book of the {life} life"])
        one = app.finished(app.claim()[0])
        one.follow_ons = [FollowOn("parts", "part", "{}", "skip", True)]
        app.store.write(lambda tx, one=one: complete(tx, [one]))
        app.name = "parts"
        [stage] = hold.show("part").stages
        assert (stage.state, stage.attempts, stage.has_result) == ("pending", 0, False)
        app.complete(app.claim()[0], life)
        clock.advance(DAY)
        while hold.prune(items_older_than=1)["items"]:
            pass
    assert keys(app) == []


def test_work_left_in_a_stage_that_was_removed_holds_up_nobody(app, hold, clock):
    """It is nobody's any more: it goes with its item, whose other stages have ended, and blocks none behind it."""
    app.pipeline({"a": [], "old": [], "older": []})
    app.add([f"i{number}" for number in range(6)])
    for lease in app.claim(stage="a", most=6):
        app.complete(lease, 1)
    for lease in app.claim(stage="older", most=6):
        app.complete(lease, 1)
    app.retry(stage="older", states=["done"], key="i[01]")
    app.retry(stage="older", states=["done"], key="i0")
    for lease in app.claim(stage="old", most=2):
        app.snooze(lease, 1)
    app.pipeline({"a": []})
    clock.advance(DAY)
    [(pipeline,)] = app.query("SELECT id FROM holdfast_pipelines")
    assert [app.store.write(lambda tx: prune.prune_items(tx, pipeline, tx.now, most=4)) for _ in range(3)] == [4, 2, 0]
    assert keys(app) == []
    assert app.counts() == app.recount() == {}
    assert hold.check() == []


def test_work_that_a_worker_still_holds_in_a_removed_stage_keeps_its_item(app, hold, clock):
    app.pipeline({"a": [], "old": []})
    app.add(["x"])
    app.complete(app.claim(stage="a")[0], 1)
    [lease] = app.claim(stage="old")
    app.pipeline({"a": []})
    clock.advance(DAY)
    assert hold.prune(items_older_than=1)["items"] == 0
    app.complete(lease, 1)
    clock.advance(DAY)
    assert hold.prune(items_older_than=1)["items"] == 1
    assert app.counts() == app.recount() == {}


# Together with others -------------------------------------------------------------------------------------------------


def waits_for_a_lock(base: str, process: int) -> bool:
    """Whether a process of the server is held up by another one."""
    with psycopg.connect(base) as conn:
        [(blockers,)] = conn.execute("SELECT cardinality(pg_blocking_pids(%s))", [process]).fetchall()
    return bool(blockers)


@pytest.mark.direct("knows a session by its process")
@pytest.mark.parametrize("database", ["postgres"])
@pytest.mark.parametrize("who", ["retries it", "adds it again"])
def test_whoever_is_about_to_use_an_item_keeps_it(app, hold, clock, postgres, who):
    """The other has not committed yet when the pruner looks; the pruner waits, and looks again."""
    app.add([{"key": "x", "n": 1}])
    app.permanent(app.claim()[0])
    clock.advance(DAY)
    pruner = hold.store.driver.connection.info.backend_pid
    go_on = threading.Event()
    with connected(app) as other, ThreadPoolExecutor(2) as pool, held_at("commit.before", go_on.is_set) as arrived:
        if who == "retries it":
            using = pool.submit(lambda: other.retry(key="x"))
        else:
            using = pool.submit(lambda: other.add([{"key": "x", "n": 2}]))
        assert arrived.wait(STUCK_SECONDS)
        pruning = pool.submit(lambda: hold.prune(items_older_than=1))
        wait_for(lambda: pruning.done() or waits_for_a_lock(postgres, pruner))
        go_on.set()
        using.result(STUCK_SECONDS)
        assert pruning.result(STUCK_SECONDS)["items"] == 0
    assert keys(app) == ["x"]
    assert app.states("x") == {"a": "pending" if who == "retries it" else "failed"}
    assert hold.check() == []
    assert app.counts() == app.recount()


@pytest.mark.parametrize("database", ["postgres"])
@pytest.mark.parametrize("who", ["retries it", "adds it again"])
def test_whoever_comes_too_late_finds_no_half_of_an_item(app, hold, clock, who):
    app.add([{"key": "x", "n": 1}])
    app.permanent(app.claim()[0])
    clock.advance(DAY)
    go_on = threading.Event()
    with connected(app) as other, ThreadPoolExecutor(2) as pool, held_at("commit.before", go_on.is_set) as arrived:
        pruning = pool.submit(lambda: hold.prune(items_older_than=1))
        assert arrived.wait(STUCK_SECONDS)
        late = pool.submit(lambda: other.retry(key="x") if who == "retries it" else other.add([{"key": "x", "n": 2}]))
        threading.Timer(0.1, go_on.set).start()
        assert pruning.result(STUCK_SECONDS)["items"] == 1
        assert late.result(STUCK_SECONDS) == ({} if who == "retries it" else (1, 0, 0))
    assert keys(app) == ([] if who == "retries it" else ["x"])
    assert hold.check() == []
    assert app.counts() == app.recount()


# Killed half-way ------------------------------------------------------------------------------------------------------


@pytest.mark.req("D4")
@pytest.mark.fault(73)
@pytest.mark.parametrize("crash_at", ["store.delete_outcomes_of", "store.delete_items", "commit.before"])
def test_a_clean_up_that_was_killed_leaves_everything_and_the_next_one_nothing(url, crash_at):
    """And a key that comes again has no result, no memo, no event and no child of its former life."""
    lives: list[str] = []
    books, parts = Pipeline("books"), Pipeline("parts")

    @books.stage()
    def split(item, ctx):
        ctx.once("asked", lambda: lives.append(item.key), cost="0.40")
        ctx.submit("parts", key=f"{item.key}/1", child=True)
        return {"life": len(lives)}

    @books.stage(after="split", after_children="parts")
    def join(item, ctx):
        return {"seen": ctx.result("split"), "parts": ctx.children("parts")}

    @parts.stage()
    def read(item, ctx):
        return {"life": len(lives)}

    with Holdfast(url, [books.spec, parts.spec]) as app:
        app.add("books", ["emma"])
        app.run(Settings(poll_seconds=0.05))
        before = {key: app.show(key) for key in ("emma", "emma/1")}
        assert before["emma"].status == "done"
        time.sleep(0.01)

        ended, errors = killed("prune", url, at=crash_at)
        assert ended == -signal.SIGKILL, errors
        assert {key: app.show(key) for key in before} == before
        assert app.check() == []

        gone = 0
        while not gone or app.items():
            ended, errors = killed("prune", url)
            assert ended == 0, errors
            gone += 1
            assert gone <= 2, "the child goes with its parent, or right after it"
        assert app.items() == () and app.check() == []
        assert charged(app, ["stage"]) == [{"stage": "split", "amount": 400_000, "payments": 1}]

        app.add("books", ["emma"])
        assert [one.event for one in app.history("emma")] == ["added"]
        assert app.memos("emma") == ()
        app.run(Settings(poll_seconds=0.05))
        assert lives == ["emma", "emma"]
        assert [one.result for one in app.show("emma").stages] == [
            {"life": 2},
            {"seen": {"life": 2}, "parts": {"done": 1}},
        ]
        assert app.show("emma/1").stages[0].result == {"life": 2}
        assert app.check() == []
