"""Handing back: as if it had never been claimed."""

from __future__ import annotations

import pytest

from holdfast.engine.hand_back import release


def test_work_that_is_handed_back_waits_again_with_its_attempt_refunded(app):
    app.pipeline({"a": []}, max_attempts=1)
    app.add(["x"])
    for _ in range(4):
        [lease] = app.claim()
        assert lease.attempt == 1
        app.release(lease, "the worker stops")
    assert app.row("x", "a")["state"] == "pending"
    assert app.row("x", "a")["attempts"] == 0
    assert app.counts() == {"a": {"pending": 1}} == app.recount()
    assert app.events("handed_back")[0] == {"reason": "the worker stops"}


def test_work_that_was_never_begun_is_handed_back_without_a_trace(app):
    """A claim leaves no event, and neither does taking it back: the history is that of an item that waits."""
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    assert app.history("x") == []
    for _ in range(3):
        leases = app.claim()
        assert app.store.write(lambda tx: release(tx, leases)) == 1  # noqa: B023
    assert app.history("x") == []
    assert app.row("x", "a")["state"] == "pending"
    assert app.row("x", "a")["attempts"] == 0
    assert app.counts() == {"a": {"pending": 1}} == app.recount()


def test_handing_back_refunds_one_attempt_and_not_those_spent_before(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.fail(app.claim()[0])
    app.promote()
    app.release(app.claim()[0])
    assert app.row("x", "a")["attempts"] == 1


def test_work_that_is_handed_back_keeps_its_place_in_the_queue(app):
    app.pipeline({"a": []})
    app.add(["x", "y"])
    app.release(app.claim()[0])
    assert [lease.key for lease in app.claim(most=2)] == ["x", "y"]


def test_a_lease_that_moved_on_is_handed_back_at_the_stage_it_is_at(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    [moved] = app.complete(app.claim()[0], "kept", onward=["b"])
    app.release(moved)
    assert app.states("x") == {"a": "done", "b": "pending"}
    assert [lease.results for lease in app.claim(stage="b")] == [{app.stage("a").id: '"kept"'}]


def test_a_whole_hand_is_given_back_in_one_write_except_what_was_lost(app):
    app.pipeline({"a": [], "b": []})
    app.add(["x", "y"])
    leases = app.claim(stage="a", most=2) + app.claim(stage="b", most=2)
    app.cancel(key="x", stage="b")
    assert app.store.write(lambda tx: release(tx, leases, "stop")) == 3
    assert app.states("x") == {"a": "pending", "b": "cancelled"}
    assert app.states("y") == {"a": "pending", "b": "pending"}
    assert app.counts() == app.recount()


@pytest.mark.req("J3")
def test_any_number_of_rolling_restarts_exhausts_nothing(app):
    app.pipeline({"a": []}, max_attempts=2)
    app.add(["x"])
    app.fail(app.claim()[0])
    app.promote()
    for n in range(20):
        [lease] = app.claim(f"worker-{n}")
        app.release(lease)
        app.leave(f"worker-{n}")
    assert app.states("x") == {"a": "pending"}
    assert [lease.attempt for lease in app.claim()] == [2]
