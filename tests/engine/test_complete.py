"""Completing: a lease becomes an outcome and the next stages begin, together or not at all."""

from __future__ import annotations

import pytest

from holdfast.engine.complete import complete
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.errors import LeaseLost
from holdfast.model.states import State
from tests.support.harness import connected
from tests.support.together import at_once, meeting_at

CHAIN = {"a": [], "b": ["a"], "c": ["b"]}
DIAMOND = {"a": [], "left": ["a"], "right": ["a"], "end": ["left", "right"]}


def test_a_completed_stage_is_done_and_the_next_one_waits(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    app.complete(app.claim()[0], {"n": 1})
    assert app.states("x") == {"a": "done", "b": "pending"}
    assert app.outcome("x", "a")["result"] == {"n": 1}
    assert app.counts() == {"a": {"done": 1}, "b": {"pending": 1}} == app.recount()


def test_what_is_routine_is_recorded_and_goes_on_like_anything_else(app):
    """Routine attempts take a shorter way: the row, the counts and what follows are the same."""
    app.pipeline(CHAIN)
    app.add(["plain", "odd"])
    finished = [app.finished(lease, {"n": 1}, took_seconds=2) for lease in app.claim(most=2)]
    finished[0].routine = True
    onward = [app.stage("b").id]
    moved = app.store.write(lambda tx: complete(tx, finished, onward))
    assert [lease.key for lease in moved] == ["plain", "odd"]
    # All columns but the item and the lease.
    plain, odd = app.query(
        "SELECT stage, state, attempts, started_at, ended_at, version, input_hash, output_hash, cost, life, error, result "
        "FROM holdfast_outcomes"
    )
    assert plain == odd
    assert app.counts() == {"a": {"done": 2}, "b": {"in_progress": 2}} == app.recount()


def test_the_last_stage_leaves_nothing_to_do(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    assert app.run_through() == 3
    assert app.states("x") == {"a": "done", "b": "done", "c": "done"}
    assert app.claim() == []


def test_a_skipped_stage_counts_as_passed(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    app.skip(app.claim()[0], "nothing to do")
    assert app.states("x") == {"a": "skipped", "b": "pending"}
    assert app.outcome("x", "a")["error"] == "nothing to do"


def test_a_stage_that_can_never_work_lets_nothing_follow(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    app.permanent(app.claim()[0], "no such file")
    assert app.states("x") == {"a": "failed"}
    assert app.row("x", "a")["error"] == "no such file"
    assert app.claim() == []


@pytest.mark.req("J4")
def test_the_row_of_a_stage_tells_when_it_ran_how_long_and_how_often(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.fail(app.claim()[0])
    app.promote()
    app.clock.advance(100)
    [lease] = app.claim()
    started = app.clock.now()
    app.clock.advance(3)
    app.complete(lease, took_seconds=3)
    assert app.row("x", "a") == {
        "state": "done",
        "attempts": 2,
        "started_at": started,
        "ended_at": started + 3_000_000,
        "elapsed_us": 3_000_000,
        "next_attempt_at": None,
        "error": None,
        "updated_at": started + 3_000_000,
    }


@pytest.mark.req("J4")
def test_two_workers_on_two_stages_of_one_item_do_not_touch_each_others_row(app):
    app.pipeline(DIAMOND)
    app.add(["x"])
    app.complete(app.claim()[0])
    [left] = app.claim("one", "left")
    [right] = app.claim("two", "right")
    app.fail(left, "left's own error")
    app.complete(right, "right's own result")
    assert app.states("x") == {"a": "done", "left": "retry_later", "right": "done"}
    assert app.row("x", "left")["error"] == "left's own error"
    assert app.outcome("x", "right")["result"] == "right's own result"


@pytest.mark.req("J4")
def test_two_connections_finishing_two_stages_of_the_same_items_at_once_keep_every_result(app):
    app.pipeline({"one": [], "two": []})
    keys = [f"k{n}" for n in range(40)]
    app.add(keys)
    with connected(app) as other:
        at_once(lambda: _work(app, "one"), lambda: _work(other, "two"))
    for key in keys:
        assert app.outcome(key, "one")["result"] == f"one of {key}"
        assert app.outcome(key, "two")["result"] == f"two of {key}"
    assert app.counts() == {"one": {"done": 40}, "two": {"done": 40}} == app.recount()


def _work(app, stage):
    while leases := app.claim(f"worker of {stage}", stage, most=3):
        for lease in leases:
            app.complete(lease, f"{stage} of {lease.key}")


def test_a_batch_is_finished_in_one_write_though_one_of_it_was_lost(app):
    """One bad row never stops the rest, and is told in an event."""
    app.pipeline(CHAIN)
    app.add(["x", "y", "z"])
    leases = app.claim(most=3)
    app.cancel(key="y")
    done = [app.finished(lease, lease.key) for lease in leases]
    app.store.write(lambda tx: complete(tx, done))
    assert app.states("x") == app.states("z") == {"a": "done", "b": "pending"}
    assert app.states("y") == {"a": "cancelled"}
    assert app.events("lease_lost") == [{"lease": leases[1].id, "attempt": 1, "refused": "done"}]
    assert app.counts() == app.recount()


def test_a_batch_over_several_stages_is_finished_in_one_write(app):
    app.pipeline({"one": [], "two": []})
    app.add(["x", "y"])
    leases = app.claim(stage="two", most=2) + app.claim(stage="one", most=2)
    app.store.write(lambda tx: complete(tx, [app.finished(lease) for lease in leases]))
    assert app.states("x") == app.states("y") == {"one": "done", "two": "done"}


# Straight through -------------------------------------------------------------------------------------------


def test_a_lease_moves_on_to_the_next_stage_in_place(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    [at_a] = app.claim()
    app.clock.advance(7)
    [at_b] = app.complete(at_a, {"n": 1}, onward=["b"])
    assert (at_b.id, at_b.stage, at_b.attempt, at_b.key) == (at_a.id, app.stage("b").id, 1, "x")
    assert at_b.since == app.clock.now()
    assert at_b.results == {app.stage("a").id: '{"n":1}'}
    assert app.states("x") == {"a": "done", "b": "in_progress"}
    assert app.counts() == {"a": {"done": 1}, "b": {"in_progress": 1}} == app.recount()
    app.complete(at_b)
    assert app.states("x") == {"a": "done", "b": "done", "c": "pending"}


def test_a_moved_lease_starts_to_count_attempts_anew(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    app.fail(app.claim()[0])
    app.promote()
    [second] = app.claim()
    [moved] = app.complete(second, onward=["b"])
    assert (second.attempt, moved.attempt) == (2, 1)
    assert app.row("x", "b")["attempts"] == 1


def test_completing_the_stage_before_again_does_not_finish_the_one_the_lease_moved_on_to(app):
    """Finishing names lease and stage."""
    app.pipeline(CHAIN)
    app.add(["x"])
    [at_a] = app.claim()
    [at_b] = app.complete(at_a, "first", onward=["b"])
    for onward in ([], ["b"], ["c"]):
        with pytest.raises(LeaseLost):
            app.complete(at_a, "again", onward=onward)
    assert app.states("x") == {"a": "done", "b": "in_progress"}
    assert app.outcome("x", "a")["result"] == "first"
    assert app.complete(at_b) == []
    assert app.counts() == app.recount()


def test_a_lease_does_not_move_on_to_a_stage_the_worker_does_not_offer(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    assert app.complete(app.claim()[0], onward=["c"]) == []
    assert app.states("x") == {"a": "done", "b": "pending"}


def test_a_lease_goes_one_way_and_the_other_ways_wait_for_others(app):
    app.pipeline(DIAMOND)
    app.add(["x"])
    [moved] = app.complete(app.claim()[0], onward=["left", "right", "end"])
    states = app.states("x")
    gone = next(name for name in ("left", "right") if app.stage(name).id == moved.stage)
    assert sorted(states.values()) == ["done", "in_progress", "pending"]
    assert states[gone] == "in_progress"
    assert app.counts() == app.recount()


def test_a_lease_does_not_move_on_to_where_stages_meet(app):
    app.pipeline(DIAMOND)
    app.add(["x"])
    app.complete(app.claim()[0])
    app.complete(app.claim(stage="left")[0])
    assert app.complete(app.claim(stage="right")[0], onward=["end"]) == []
    assert app.states("x")["end"] == "pending"


def test_a_failed_attempt_in_a_batch_that_moves_on_stays_behind(app):
    app.pipeline(CHAIN)
    app.add(["x", "y"])
    good, bad = app.claim(most=2)
    done = app.finished(good)
    failed = FinishedAttempt(bad, State.FAILED, "1", error="no")
    onward = [app.stage("b").id]
    moved = app.store.write(lambda tx: complete(tx, [done, failed], onward))
    assert [lease.key for lease in moved] == ["x"]
    assert (app.states("x"), app.states("y")) == ({"a": "done", "b": "in_progress"}, {"a": "failed"})
    assert app.counts() == app.recount()


@pytest.mark.direct("nobody listens there")
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_idle_workers_are_told_of_what_a_lease_that_moved_on_left_for_others(app):
    """One of two next stages goes on in place; the other waits, and somebody idle should hear of it."""
    app.pipeline({"a": [], "left": ["a"], "right": ["a"]})
    app.add(["x"])
    [lease] = app.claim()
    listener = app.store.another().listener()
    assert listener.wait(0) == ()  # the first answer is always yes: what was said before is not known
    app.complete(lease, onward=["left"])
    assert listener.wait(2.0) == {app.stage("right").id}
    listener._driver.close()


# Where stages meet ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("left", "right"), ("right", "left")])
def test_where_stages_meet_the_next_one_is_born_with_the_last_of_them(app, order):
    app.pipeline(DIAMOND)
    app.add(["x"])
    app.complete(app.claim()[0])
    first, last = order
    app.complete(app.claim(stage=first)[0])
    assert "end" not in app.states("x")
    app.skip(app.claim(stage=last)[0])
    assert app.states("x")["end"] == "pending"
    assert app.counts() == app.recount()


def test_where_stages_meet_a_failed_one_keeps_the_next_from_being_born(app):
    app.pipeline(DIAMOND)
    app.add(["x"])
    app.complete(app.claim()[0])
    app.permanent(app.claim(stage="left")[0])
    app.complete(app.claim(stage="right")[0])
    assert "end" not in app.states("x")
    app.retry(stage="left")
    app.complete(app.claim(stage="left")[0])
    assert app.states("x")["end"] == "pending"


def test_both_parents_finished_in_one_write_give_birth_once(app):
    app.pipeline({"a": [], "b": [], "end": ["a", "b"]})
    app.add(["x", "y"])
    leases = app.claim(stage="a", most=2) + app.claim(stage="b", most=2)
    app.store.write(lambda tx: complete(tx, [app.finished(lease) for lease in leases]))
    assert app.counts()["end"] == {"pending": 2}
    assert app.counts() == app.recount()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_both_parents_finished_by_two_connections_at_the_same_moment_give_birth_once(app):
    """Neither sees the other's outcome until it commits: without a lock on the item nobody would go on."""
    app.pipeline({"a": [], "b": [], "end": ["a", "b"]})
    app.add(["x"])
    [at_a] = app.claim("one", "a")
    with connected(app) as other:
        [at_b] = other.claim("two", "b")
        with meeting_at("store.lock_items", 2):
            at_once(lambda: app.complete(at_a), lambda: other.complete(at_b))
    assert app.states("x") == {"a": "done", "b": "done", "end": "pending"}
    assert app.counts() == app.recount()


def test_where_stages_meet_in_many_items_each_next_stage_is_born_once_whoever_comes_last(app):
    app.pipeline({"a": [], "b": [], "end": ["a", "b"]})
    app.add(f"k{n}" for n in range(60))
    with connected(app) as other:
        at_once(lambda: _work(app, "a"), lambda: _work(other, "b"))
    assert app.counts() == {"a": {"done": 60}, "b": {"done": 60}, "end": {"pending": 60}} == app.recount()
    assert len(app.claim(stage="end", most=100)) == 60
