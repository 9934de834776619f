"""A write is committed once, whatever happens to the reply; a read changes nothing."""

from __future__ import annotations

import pytest

from holdfast.errors import StoreConflict, StoreUnavailable
from holdfast.model.states import State
from holdfast.store import commit_once
from tests.support.harness import connected
from tests.support.together import at_once, meeting_at


def add_pipeline(name):
    """A small write with everything that is written along with it, and a result of its own."""

    def work(tx):
        tx.run("add_pipeline", name=name, now=tx.now)
        tx.record("tried", name=name)
        tx.count(7, State.DONE, 1)
        return {"added": name, "at": tx.now}

    return work


def written(app):
    return (
        [row[0] for row in app.query("SELECT name FROM holdfast_pipelines ORDER BY name")],
        [event["name"] for event in app.events("tried")],
        app.query("SELECT COALESCE(SUM(n), 0) FROM holdfast_counts WHERE stage = 7")[0][0],
    )


def test_rows_events_and_counts_are_written_together(app):
    assert app.store.write(add_pipeline("p")) == {"added": "p", "at": app.clock.now()}
    assert written(app) == (["p"], ["p"], 1)


def test_a_write_that_raises_leaves_nothing(app):
    def work(tx):
        add_pipeline("p")(tx)
        tx.flush()
        raise LookupError("after everything was written")

    with pytest.raises(LookupError):
        app.store.write(work)
    assert written(app) == ([], [], 0)
    app.store.write(add_pipeline("q"))
    assert written(app) == (["q"], ["q"], 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_write_that_is_interrupted_leaves_nothing_and_no_lock(app, error):
    def work(tx):
        add_pipeline("p")(tx)
        raise error

    with pytest.raises(error):
        app.store.write(work)
    with connected(app) as other:
        other.store.write(add_pipeline("q"), patience_seconds=0)
    assert written(app) == (["q"], ["q"], 1)


def test_two_stores_on_one_database_see_each_others_commits(app):
    with connected(app) as other:
        other.store.write(add_pipeline("p"))
        assert written(app) == written(other) == (["p"], ["p"], 1)


# The reply to COMMIT is lost -----------------------------------------------------------------------------------------


def lose_replies(app, monkeypatch, *fates):
    """Let the next commits fail: `committed` after it took place, `rolled back` before."""
    driver, left = app.store.connect(), list(fates)

    def losing(call):
        def instead(*given):
            fate = left.pop(0) if left else "told"
            if fate == "rolled back":
                raise StoreUnavailable("the line went dead before COMMIT arrived")
            answer = call(*given)
            if fate == "committed":
                raise StoreUnavailable("the line went dead before the answer arrived")
            return answer

        return instead

    for name in ("commit", "at_once") if driver.far else ("commit",):
        monkeypatch.setattr(driver, name, losing(getattr(driver, name)))
    return left


@pytest.mark.fault(26)
@pytest.mark.parametrize(
    "fates",
    [["committed"], ["rolled back"], ["rolled back", "committed"], ["rolled back"] * 3, ["committed", "committed"]],
    ids=lambda fates: " and ".join(fates),
)
def test_a_write_whose_reply_was_lost_is_applied_once_and_answers_the_same(app, monkeypatch, fates):
    lose_replies(app, monkeypatch, *fates)
    runs = []

    def work(tx):
        add_pipeline("p")(tx)
        runs.append(tx)
        return len(runs)

    write = app.store.writing(work)
    answer = None
    while answer is None:
        try:
            answer = write.run()
        except StoreUnavailable:
            continue
    the_run_that_committed = [*fates, "committed"].index("committed") + 1
    assert answer == len(runs) == the_run_that_committed
    assert written(app) == (["p"], ["p"], 1)


@pytest.mark.fault(26)
@pytest.mark.parametrize("fate", ["committed", "rolled back"])
def test_a_plain_write_finds_out_by_itself(app, monkeypatch, fate):
    lose_replies(app, monkeypatch, fate)
    assert app.store.write(add_pipeline("p"))["added"] == "p"
    assert written(app) == (["p"], ["p"], 1)


@pytest.mark.fault(26)
@pytest.mark.parametrize("fate", ["committed", "rolled back"])
def test_every_operation_survives_a_lost_reply(app, monkeypatch, fate):
    """The whole way of an item, each commit's reply lost once."""
    app.pipeline({"a": [], "b": ["a"]})
    app.join("w")

    def lost(call):
        left = lose_replies(app, monkeypatch, fate)
        answer = call()
        assert not left
        monkeypatch.undo()
        return answer

    assert lost(lambda: app.add(["x", "y"])) == (2, 0, 0)
    first, second = lost(lambda: app.claim("w", "a", most=2))
    assert (first.attempt, second.attempt) == (1, 1)
    [moved] = lost(lambda: app.complete(first, 1, onward=["b"]))
    lost(lambda: app.fail(second))
    assert lost(app.promote).moved == 1
    lost(lambda: app.release(moved))
    assert lost(lambda: app.cancel(stage="b")) == {"pending": 1}
    assert lost(lambda: app.retry(stage="b")) == {"cancelled": 1}
    assert app.states("x") == {"a": "done", "b": "pending"}
    assert app.states("y") == {"a": "pending"}
    assert app.row("y", "a")["attempts"] == 1
    assert app.counts() == app.recount()


@pytest.mark.fault(26)
def test_a_lost_reply_of_one_write_does_not_touch_the_next(app, monkeypatch):
    left = lose_replies(app, monkeypatch, "committed")
    first = app.store.writing(add_pipeline("first"))
    with pytest.raises(StoreUnavailable):
        first.run()
    assert not left
    assert first.run()["added"] == "first"
    assert app.store.write(add_pipeline("second"))["added"] == "second"
    assert written(app) == (["first", "second"], ["first", "second"], 2)


@pytest.mark.fault(26)
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_connection_that_ends_in_the_middle_of_a_write_is_made_anew_and_the_write_run_again(app):
    tries = []

    def work(tx):
        tries.append(tx)
        tx.run("add_pipeline", name="p", now=tx.now)
        if len(tries) == 1:
            [(backend,)] = tx.store.driver.run_text("SELECT pg_backend_pid()")
            with connected(app) as other:
                other.query(f"SELECT pg_terminate_backend({backend})")
        tx.record("tried", name="p")
        tx.count(7, State.DONE, 1)
        return "answer"

    assert app.store.write(work) == "answer"
    assert len(tries) == 2
    assert written(app) == (["p"], ["p"], 1)


# Lost races ----------------------------------------------------------------------------------------------------------


def test_a_write_that_lost_a_race_is_run_again_and_counts_once(app):
    tries = []

    def work(tx):
        add_pipeline("p")(tx)
        tries.append(tx)
        if len(tries) < 4:
            raise StoreConflict("chosen as the victim")
        return "won"

    assert app.store.write(work) == "won"
    assert len(tries) == 4
    assert written(app) == (["p"], ["p"], 1)


def test_a_write_that_loses_every_race_says_so_in_the_end(app, monkeypatch):
    monkeypatch.setattr(commit_once, "CONFLICT_TRIES", 3)
    tries = []

    def work(tx):
        tries.append(tx)
        raise StoreConflict("chosen as the victim")

    with pytest.raises(StoreConflict):
        app.store.writing(work).run()
    assert len(tries) == 3
    assert written(app) == ([], [], 0)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_two_writes_that_wait_for_each_other_both_commit(app):
    """A real deadlock: the server picks a victim, which runs again."""
    app.pipeline({"a": []}, name="one")
    app.pipeline({"a": []}, name="two")

    def both(store, first, second):
        def work(tx):
            tx.run("raise_generation", pipeline=first, now=0)
            tx.run("leases_of", worker=0)  # where they meet: each holds its first row by now
            tx.run("raise_generation", pipeline=second, now=0)

        return lambda: store.write(work)

    [one, two] = [row[0] for row in app.query("SELECT id FROM holdfast_pipelines ORDER BY id")]
    before = app.query("SELECT generation FROM holdfast_pipelines ORDER BY id")
    with connected(app) as other:
        with meeting_at("store.leases_of", 2):
            at_once(both(app.store, one, two), both(other.store, two, one))
    after = app.query("SELECT generation FROM holdfast_pipelines ORDER BY id")
    assert [row[0] for row in after] == [row[0] + 2 for row in before]


# Reading -------------------------------------------------------------------------------------------------------------


def test_a_read_sees_one_unchanging_view(app):
    def look(tx):
        before = tx.run("read_pipelines")
        with connected(app) as other:
            other.store.write(add_pipeline("meanwhile"))
        return before, tx.run("read_pipelines")

    before, after = app.store.read(look)
    assert before == after == []
    assert written(app)[0] == ["meanwhile"]


@pytest.mark.fault(42)
def test_a_reader_keeps_no_writer_waiting(app):
    def look(tx):
        tx.run("read_pipelines")
        with connected(app) as other:
            for n in range(20):
                other.store.write(add_pipeline(f"p{n}"), patience_seconds=0)
        return True

    assert app.store.read(look)


def test_a_read_that_raises_leaves_the_store_usable(app):
    def look(tx):
        raise LookupError

    with pytest.raises(LookupError):
        app.store.read(look)
    app.store.write(add_pipeline("p"), patience_seconds=0)


def test_rows_come_with_the_names_of_their_columns(app):
    app.store.write(add_pipeline("p"))
    [record] = app.store.read(lambda tx: tx.records("read_pipelines"))
    assert record == {"id": record["id"], "name": "p", "generation": 0}


# Time ----------------------------------------------------------------------------------------------------------------


def test_a_transaction_knows_one_time(app):
    def work(tx):
        before = (tx.now, tx.steady)
        app.clock.advance(100)
        return before, (tx.now, tx.steady)

    before, after = app.store.write(work)
    assert before == after


@pytest.mark.fault(51)
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_without_a_clock_set_by_hand_postgresql_tells_the_time(url, monkeypatch):
    """Workers' own clocks do not matter."""
    import time

    from holdfast.store import open_store

    store = open_store(url)
    store.upgrade()
    real = time.time()
    monkeypatch.setattr(time, "time", lambda: real + 7200)
    monkeypatch.setattr(time, "time_ns", lambda: int((real + 7200) * 1e9))
    now, steady = store.write(lambda tx: (tx.now, tx.steady))
    assert now == steady
    assert abs(now / 1e6 - real) < 60
    store.close()


@pytest.mark.fault(39)
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_odd_settings_of_a_session_change_nothing(url, clock):
    from holdfast.store import open_store
    from tests.support.harness import App

    odd = (
        "-c TimeZone=Australia/Lord_Howe -c DateStyle=German,DMY -c search_path=pg_catalog "
        "-c standard_conforming_strings=off -c default_transaction_isolation=serializable -c extra_float_digits=-10"
    )
    store = open_store(f"{url}&options={odd.replace(' ', '%20').replace('=', '%3D')}", clock=clock)
    store.upgrade()
    app = App(store, clock)
    assert app.query("SHOW TimeZone") == [("Australia/Lord_Howe",)]
    app.pipeline({"a": [], "b": ["a"]})
    app.add([{"key": "it's \\ odd", "n": 1.1}])
    app.fail(app.claim()[0], "a \\ b", delay=1)
    assert app.row("it's \\ odd", "a")["next_attempt_at"] == clock.now() + 1_000_000
    assert app.row("it's \\ odd", "a")["error"] == "a \\ b"
    clock.advance(1)
    app.promote()
    assert app.run_through() == 2
    assert app.counts() == app.recount()
    store.close()
