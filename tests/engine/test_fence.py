"""A write under an old token changes nothing, whatever it says (V3)."""

from __future__ import annotations

import pytest

from holdfast.errors import LeaseLost

#: Everything a worker can say of an attempt.
SAYINGS = {
    "completes": lambda app, lease: app.complete(lease, "old"),
    "moves on": lambda app, lease: app.complete(lease, "old", onward=["b"]),
    "skips": lambda app, lease: app.skip(lease, "old"),
    "fails": lambda app, lease: app.fail(lease, "old", delay=3),
    "fails for ever": lambda app, lease: app.permanent(lease, "old"),
    "snoozes": lambda app, lease: app.snooze(lease, 3, "old"),
    "hands back": lambda app, lease: app.release(lease),
}


def refuses_everything(app, lease):
    """Whatever is said of this lease is refused, and no row is another one afterwards."""
    before = _everything(app)
    for name, say in SAYINGS.items():
        with pytest.raises(LeaseLost, match=repr(lease.key)):
            say(app, lease)
        assert _everything(app) == before, f"a late worker that {name} changed something"


def test_a_worker_that_lost_its_lease_to_another_changes_nothing(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    [slow] = app.claim("slow")
    app.clock.advance(31)
    app.reap()
    [fast] = app.claim("fast")
    refuses_everything(app, slow)
    app.complete(fast, "new")
    assert app.outcome("x", "a")["result"] == "new"
    assert app.outcome("x", "a")["attempts"] == 2


def test_a_worker_that_is_late_finds_the_stage_finished_and_changes_nothing(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    [slow] = app.claim("slow")
    app.kill("slow")
    app.run_through("new", worker="fast")
    refuses_everything(app, slow)


def test_a_worker_that_lost_its_lease_to_nobody_yet_changes_nothing(app):
    """Freed and waiting: the old token is as dead as if somebody else had the item."""
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    [slow] = app.claim("slow")
    app.clock.advance(31)
    app.reap()
    refuses_everything(app, slow)


def test_a_worker_whose_item_was_cancelled_changes_nothing(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    [lease] = app.claim()
    assert app.cancel() == {"in_progress": 1}
    refuses_everything(app, lease)


def test_what_was_said_once_cannot_be_said_again(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    [lease] = app.claim()
    app.complete(lease, "first")
    refuses_everything(app, lease)


def test_a_refused_attempt_leaves_an_event_that_names_it(app):
    app.pipeline({"a": []})
    app.add(["x"])
    [lease] = app.claim()
    app.kill("w")
    with pytest.raises(LeaseLost):
        app.fail(lease)
    assert app.history("x") == ["lease_expired", "lease_lost"]
    assert app.events("lease_lost") == [{"lease": lease.id, "attempt": 1, "refused": "retry_later"}]


@pytest.mark.fault(8)
def test_a_late_heartbeat_brings_nothing_back(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.claim("slow")
    app.clock.advance(31)
    app.reap()
    [fast] = app.claim("fast")
    assert app.beat("slow") is False
    assert app.living() == {"fast"}
    app.complete(fast)


@pytest.mark.fault(5)
def test_a_worker_of_the_same_name_is_another_worker(app):
    """Names are labels: the new one's heartbeat does not vouch for the old one's leases."""
    app.pipeline({"a": []})
    app.add(["x"])
    [old] = app.claim("pod-1")
    app.clock.advance(20)
    app.join("pod-1")
    app.clock.advance(11)
    assert app.beat("pod-1")
    assert app.reap().released == 1
    assert app.living() == {"pod-1"}
    [new] = app.claim("pod-1")
    with pytest.raises(LeaseLost):
        app.complete(old, "old")
    app.complete(new, "new")


def _everything(app):
    """Every row that a late worker must not touch."""
    tables = ("items", "waiting", "delayed", "leases", "outcomes", "workers", "stages")
    rows = {table: sorted(app.query(f"SELECT * FROM holdfast_{table}"), key=repr) for table in tables}
    return rows | {"counts": app.counts()}
