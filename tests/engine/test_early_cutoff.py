"""Running a finished stage again: its outcome stays readable until it is replaced, and the wave stops where nothing changed."""

from __future__ import annotations

import pytest

from holdfast.errors import LeaseLost
from tests.support.harness import connected
from tests.support.together import at_once, held_at

CHAIN = {"a": [], "b": ["a"], "c": ["b"]}


@pytest.fixture
def finished(app):
    """An item that has been through all three stages."""
    app.pipeline(CHAIN)
    app.add(["x"])
    for stage in CHAIN:
        app.complete(app.claim(stage=stage)[0], f"{stage} 1")
    return app


def rerun(app, stage, value):
    app.retry(stage=stage, states=["done"])
    [lease] = app.claim(stage=stage)
    app.complete(lease, value)


def test_a_done_stage_that_is_sent_back_is_pending_and_its_outcome_stays_readable(finished):
    assert finished.retry(stage="a", states=["done"]) == {"done": 1}
    assert finished.states("x") == {"a": "pending", "b": "done", "c": "done"}
    assert finished.status("x") == "pending"
    assert finished.outcome("x", "a")["result"] == "a 1"
    [lease] = finished.claim(stage="a")
    assert (lease.attempt, lease.rerun) == (1, 1)
    assert finished.outcome("x", "a")["result"] == "a 1"
    assert finished.counts() == finished.recount()


def test_an_equal_output_stops_the_wave(finished):
    rerun(finished, "a", "a 1")
    assert finished.states("x") == {"a": "done", "b": "done", "c": "done"}
    assert finished.claim() == []
    assert finished.counts() == finished.recount()


def test_the_order_of_keys_is_no_difference(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    app.complete(app.claim()[0], {"n": 1, "m": 2})
    app.complete(app.claim(stage="b")[0])
    rerun(app, "a", {"m": 2, "n": 1})
    assert app.states("x") == {"a": "done", "b": "done", "c": "pending"}


def test_another_output_replaces_the_outcome_and_runs_what_follows_again_one_stage_at_a_time(finished):
    rerun(finished, "a", "a 2")
    assert finished.outcome("x", "a")["result"] == "a 2"
    assert finished.states("x") == {"a": "done", "b": "pending", "c": "done"}
    [lease] = finished.claim(stage="b")
    assert lease.results == {finished.stage("a").id: '"a 2"'}
    finished.complete(lease, "b 2")
    assert finished.states("x") == {"a": "done", "b": "done", "c": "pending"}
    finished.complete(finished.claim(stage="c")[0], "c 2")
    assert finished.states("x") == {"a": "done", "b": "done", "c": "done"}
    assert finished.counts() == {stage: {"done": 1} for stage in CHAIN} == finished.recount()


def test_the_wave_stops_at_the_first_stage_whose_output_is_the_same(finished):
    rerun(finished, "a", "a 2")
    finished.complete(finished.claim(stage="b")[0], "b 1")
    assert finished.states("x") == {"a": "done", "b": "done", "c": "done"}


def test_a_successor_in_progress_on_the_old_output_loses_its_lease_and_runs_again(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    app.complete(app.claim()[0], "old")
    [stale] = app.claim("slow", "b")
    rerun(app, "a", "new")
    with pytest.raises(LeaseLost):
        app.complete(stale, "made from the old")
    assert app.states("x") == {"a": "done", "b": "pending"}
    [fresh] = app.claim(stage="b")
    assert fresh.attempt == 1
    assert fresh.results == {app.stage("a").id: '"new"'}
    app.complete(fresh, "made from the new")
    assert app.counts() == app.recount()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_successor_that_is_being_claimed_at_that_moment_does_not_work_on_the_old_output(app):
    """The claim has read the old output and is not committed yet when the new output is."""
    app.pipeline(CHAIN)
    app.add(["x"])
    app.complete(app.claim()[0], "old")
    app.retry(stage="a", states=["done"])
    [again] = app.claim(stage="a")
    completed = []
    with connected(app) as other, connected(app) as watcher:
        other.join("slow")
        completer = app.store.driver.connection.info.backend_pid
        waits = f"SELECT 1 FROM pg_stat_activity WHERE pid = {completer} AND wait_event_type = 'Lock'"
        with held_at("commit.before", until=lambda: completed or watcher.query(waits)) as claimed:

            def complete_then():
                claimed.wait()
                app.complete(again, "new")
                completed.append(True)

            leases, _ = at_once(lambda: other.claim("slow", "b"), complete_then)
    for lease in leases:
        if lease.results != {app.stage("a").id: '"new"'}:
            with pytest.raises(LeaseLost):
                app.complete(lease, "made from the old")
    assert app.states("x")["b"] in ("pending", "in_progress")
    assert app.counts() == app.recount()


def test_a_successor_in_progress_keeps_its_lease_if_the_output_is_the_same(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    app.complete(app.claim()[0], "same")
    [lease] = app.claim("slow", "b")
    rerun(app, "a", "same")
    app.complete(lease, "still right")
    assert app.states("x") == {"a": "done", "b": "done", "c": "pending"}


def test_a_successor_that_waits_is_not_sent_to_wait_twice(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    app.complete(app.claim()[0], "old")
    rerun(app, "a", "new")
    assert app.states("x") == {"a": "done", "b": "pending"}
    assert len(app.claim(stage="b", most=5)) == 1
    assert app.counts() == app.recount()


def test_a_successor_that_is_delayed_waits_on_and_then_sees_the_new_output(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    app.complete(app.claim()[0], "old")
    app.fail(app.claim(stage="b")[0], delay=60)
    rerun(app, "a", "new")
    assert app.states("x") == {"a": "done", "b": "retry_later"}
    app.clock.advance(60)
    app.promote()
    assert [lease.results for lease in app.claim(stage="b")] == [{app.stage("a").id: '"new"'}]


@pytest.mark.parametrize("state", ["pending", "retry_later", "in_progress"])
def test_a_cancelled_rerun_leaves_the_outcome_it_would_have_replaced(finished, state):
    finished.retry(stage="a", states=["done"])
    if state != "pending":
        [lease] = finished.claim(stage="a")
        if state == "retry_later":
            finished.fail(lease, delay=60)
    assert finished.states("x")["a"] == state
    assert finished.cancel() == {state: 1}
    assert finished.states("x") == {"a": "done", "b": "done", "c": "done"}
    assert finished.outcome("x", "a")["result"] == "a 1"
    assert finished.counts() == finished.recount()


def test_a_cancelled_retry_of_what_failed_is_cancelled(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    app.permanent(app.claim()[0])
    app.retry()
    assert app.cancel() == {"pending": 1}
    assert app.states("x") == {"a": "cancelled"}
    assert app.counts() == {"a": {"cancelled": 1}} == app.recount()


def test_a_rerun_that_fails_replaces_the_outcome_and_wakes_nothing(finished):
    finished.retry(stage="a", states=["done"])
    finished.permanent(finished.claim(stage="a")[0], "gone")
    assert finished.states("x") == {"a": "failed", "b": "done", "c": "done"}
    assert finished.status("x") == "failed"
    assert finished.counts() == finished.recount()


def test_a_rerun_may_fail_wait_die_and_be_handed_back_and_is_still_a_rerun(finished):
    finished.retry(stage="a", states=["done"])
    finished.fail(finished.claim(stage="a")[0])
    finished.promote()
    finished.release(finished.claim(stage="a")[0])
    finished.claim("dies", "a")
    finished.kill("dies")
    [lease] = finished.claim(stage="a")
    assert (lease.rerun, lease.attempt) == (1, 3)
    assert finished.outcome("x", "a")["result"] == "a 1"
    finished.complete(lease, "a 1")
    assert finished.states("x") == {"a": "done", "b": "done", "c": "done"}
    assert finished.counts() == finished.recount()


def test_a_rerun_that_exhausts_its_attempts_replaces_the_outcome(app):
    app.pipeline(CHAIN, max_attempts=1)
    app.add(["x"])
    app.complete(app.claim()[0])
    app.retry(stage="a", states=["done"])
    app.fail(app.claim(stage="a")[0], "boom")
    assert app.states("x")["a"] == "exhausted"
    assert app.counts() == app.recount()


def test_a_rerun_does_not_carry_its_lease_on(finished):
    finished.retry(stage="a", states=["done"])
    assert finished.complete(finished.claim(stage="a")[0], "a 2", onward=["b"]) == []
    assert finished.states("x") == {"a": "done", "b": "pending", "c": "done"}


def test_what_never_began_begins_after_a_retry_that_succeeds(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    app.permanent(app.claim()[0])
    app.retry()
    app.complete(app.claim()[0], 1)
    assert app.states("x") == {"a": "done", "b": "pending"}
    assert app.counts() == app.recount()


def test_where_stages_meet_a_rerun_of_one_runs_the_next_again(app):
    app.pipeline({"a": [], "b": [], "end": ["a", "b"]})
    app.add(["x"])
    app.run_through(1)
    rerun(app, "a", 2)
    assert app.states("x") == {"a": "done", "b": "done", "end": "pending"}
    app.complete(app.claim(stage="end")[0], 1)
    assert app.counts() == {stage: {"done": 1} for stage in ("a", "b", "end")} == app.recount()


def test_where_stages_meet_a_rerun_does_not_begin_the_next_before_the_other_has_passed(app):
    app.pipeline({"a": [], "b": [], "end": ["a", "b"]})
    app.add(["x"])
    app.complete(app.claim(stage="a")[0], 1)
    rerun(app, "a", 2)
    assert app.states("x") == {"a": "done", "b": "pending"}


def test_a_skip_again_is_the_same_output(app):
    app.pipeline(CHAIN)
    app.add(["x"])
    app.skip(app.claim()[0])
    app.complete(app.claim(stage="b")[0])
    app.retry(stage="a", states=["skipped"])
    app.skip(app.claim(stage="a")[0])
    assert app.states("x") == {"a": "skipped", "b": "done", "c": "pending"}
