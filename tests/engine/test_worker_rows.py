"""Workers make themselves known, beat, and leave."""

from __future__ import annotations

import json

import pytest

from holdfast.engine import workers


def test_a_worker_is_listed_with_what_it_offers(app):
    app.pipeline({"a": [], "b": ["a"]})
    who = app.join("w", lease_seconds=45, host="h", process="p")
    [row] = app.store.read(lambda tx: tx.records("read_workers"))
    assert (row["id"], row["name"], row["host"], row["process"]) == (who.id, "w", "h", "p")
    assert json.loads(row["stages"]) == [app.stage("a").id, app.stage("b").id]
    assert row["lease_us"] == 45_000_000
    assert row["started_at"] == row["beat_at"] == app.clock.now()


@pytest.mark.req("D1")
def test_one_beat_renews_every_lease_of_a_worker_whatever_their_number(app):
    """The cost of a heartbeat grows with workers, not with items."""
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(50))
    app.join("w", lease_seconds=30)
    app.claim("w", most=50)
    for _ in range(5):
        app.clock.advance(29)
        assert app.beat("w")
        assert app.reap().released == 0
    assert app.counts() == {"a": {"in_progress": 50}}


def test_a_beat_says_when_it_was_and_carries_facts(app):
    app.pipeline({"a": []})
    who = app.join("w")
    app.clock.advance(10)
    assert app.store.write(lambda tx: workers.beat(tx, who, {"note": "page 7 of 9"}))
    [row] = app.store.read(lambda tx: tx.records("read_workers"))
    assert row["beat_at"] == app.clock.now()
    assert row["started_at"] == app.clock.now() - 10_000_000
    assert json.loads(row["facts"]) == {"note": "page 7 of 9"}


def test_a_beat_that_comes_late_but_before_anybody_noticed_saves_the_worker(app):
    app.pipeline({"a": []})
    app.add(["x"])
    [lease] = app.claim("w")
    app.clock.advance(100)
    assert app.beat("w")
    assert app.reap().released == 0
    app.complete(lease)


def test_a_beat_of_one_worker_is_no_beat_of_another(app):
    app.pipeline({"a": []})
    app.join("quiet")
    app.join("loud")
    app.clock.advance(20)
    app.beat("loud")
    app.clock.advance(11)
    app.reap()
    assert app.living() == {"loud"}
    assert app.beat("quiet") is False


def test_a_worker_that_leaves_is_no_dead_worker(app):
    app.pipeline({"a": []})
    app.join("w")
    app.leave("w")
    app.reap()
    assert app.living() == set()
    assert app.events("worker_died") == []


def test_two_workers_of_one_name_are_two(app):
    app.pipeline({"a": []})
    first, second = app.join("same"), app.join("same")
    assert first.id != second.id
    assert app.query("SELECT COUNT(*) FROM holdfast_workers") == [(2,)]
