"""Discovering: which sources there are, and that each look is one worker's: a late one changes nothing."""

from __future__ import annotations

import pytest

from holdfast.engine import poll_sources
from holdfast.errors import LeaseLost, UsageError
from holdfast.model.found_items import LookCounts
from tests.engine.discovering import HOUR, MINUTE, Sources, batch
from tests.support.harness import connected
from tests.support.together import at_once

pytestmark = pytest.mark.req("J20")


@pytest.fixture
def sources(app):
    app.pipeline({"a": []})
    sources = Sources(app)
    sources.sync()
    return sources


# Which sources there are ----------------------------------------------------------------------------------------------


def test_a_new_source_is_due_at_once_and_then_with_every_tick(sources):
    assert sources.due()
    assert sources.look("x") == LookCounts(found=1, new=1)
    assert not sources.due()
    assert sources.take() is None
    now = sources.app.clock.now()
    assert sources.row()["due_at"] == (now // MINUTE + 1) * MINUTE
    sources.app.clock.advance(60)
    assert sources.due()
    assert sources.look("x") == LookCounts(found=1, unchanged=1)


def test_to_sync_again_changes_nothing(sources):
    sources.look("x")
    before = sources.row()
    sources.sync()
    assert sources.row() == before
    assert not sources.due()
    assert sources.app.store.read(lambda tx: poll_sources.is_synced(tx, "p", sources._wanted(tx.now)))
    assert not sources.app.store.read(lambda tx: poll_sources.is_synced(tx, "p", {}))


def test_a_source_that_is_gone_is_never_due_and_one_that_is_back_is_at_once(sources):
    sources.look("x")
    sources.sync(other="1")
    assert not sources.row()["active"]
    sources.app.clock.advance(600)
    due = sources.take()
    assert due.name == "other"
    sources.finish(due)
    assert sources.take() is None
    sources.sync(s="1")
    assert sources.take().name == "s"


def test_a_source_that_is_defined_otherwise_forgets_what_it_remembered_and_is_due_at_once(sources):
    due = sources.take()
    sources.finish(due, memory={"etag": "1"})
    sources.sync(s="2")
    due = sources.take()
    assert (due.memory, due.run) == ({}, 2)
    sources.finish(due, memory={"etag": "2"})
    sources.app.clock.advance(60)
    assert sources.take().memory == {"etag": "2"}


def test_a_source_that_a_newer_deployment_has_defined_is_left_to_it(sources):
    newer = Sources(sources.app, "newer")
    newer.sync(s="2")
    assert not sources.due()
    assert sources.take() is None
    assert newer.take().name == "s"


def test_a_shorter_schedule_counts_from_now_on(app, sources):
    sources.look("x")
    app.execute("UPDATE holdfast_sources SET due_at = :later", later=app.clock.now() + 24 * HOUR)
    sources.sync()
    assert sources.row()["due_at"] <= app.clock.now() + MINUTE


@pytest.mark.fault(52)
def test_a_clock_that_is_set_back_does_not_silence_a_source(sources):
    sources.look("x")
    sources.app.clock.set_wall(-24 * 3600)
    assert sources.due()
    assert sources.take() is None
    sources.app.clock.advance(60)
    assert sources.look("x").unchanged == 1


def test_a_person_may_ask_for_a_look_before_its_time(sources):
    sources.look("x")

    def call(names):
        return sources.write(lambda tx: poll_sources.call_sources(tx, "p", names))

    assert (call(None), call(["s"])) == (1, 0)
    assert sources.look("x").unchanged == 1
    with pytest.raises(UsageError, match="pipeline 'p' has no source 'y'; there are: s"):
        call(["y"])
    with pytest.raises(UsageError, match="no pipeline 'q'"):
        sources.write(lambda tx: poll_sources.call_sources(tx, "q"))


# One worker at a time -------------------------------------------------------------------------------------------------


def test_a_tick_is_one_look_over_all_workers(sources):
    other = Sources(sources.app, "other")
    due = sources.take()
    assert not other.due()
    assert other.take() is None
    sources.finish(due)
    assert other.take() is None


def test_many_workers_that_come_at_once_make_one_look(sources):
    with connected(sources.app) as second, connected(sources.app) as third:
        workers = [Sources(app, f"w{n}") for n, app in enumerate((sources.app, second, third))]
        taken = at_once(*(worker.take for worker in workers))
    assert sum(due is not None for due in taken) == 1


def test_the_look_of_a_dead_worker_is_taken_over_and_its_late_writes_change_nothing(sources):
    app = sources.app
    late = sources.take()
    sources.record(late, batch("a", "b"), memory=poll_sources.remembered(late, {"page": 2}))
    app.kill("w")
    heir = Sources(app, "heir")
    due = heir.take()
    assert (due.run, due.memory, due.counts) == (late.run, {"page": 2}, LookCounts(found=2, new=2))
    before = app.query("SELECT memory, found, worker, due_at FROM holdfast_sources")
    for attempt in (
        lambda: sources.record(late, batch("late")),
        lambda: sources.vanish(late),
        lambda: sources.finish(late),
        lambda: sources.finish(late, "it broke"),
        lambda: sources.write(lambda tx: poll_sources.hand_back(tx, late, None, late.counts)),
    ):
        with pytest.raises(LeaseLost, match=r"source 's' of pipeline 'p'.*nothing of this batch was saved"):
            attempt()
    assert app.query("SELECT memory, found, worker, due_at FROM holdfast_sources") == before
    assert app.query("SELECT key FROM holdfast_items ORDER BY key") == [("a",), ("b",)]
    heir.record(due, batch("b", "c"))
    heir.finish(due)
    assert app.events("discovered") == [
        {"source": "s", "found": 3, "new": 3, "changed": 0, "unchanged": 0, "vanished": 0, "bad": 0}
    ]


def test_a_look_that_this_worker_itself_broke_off_is_taken_again_by_it(sources):
    first = sources.take()
    second = sources.take()
    assert (second.id, second.run) == (first.id, first.run)


def test_a_worker_that_nobody_vouches_for_takes_nothing(sources):
    sources.app.leave("w")
    with pytest.raises(LeaseLost, match="was declared dead"):
        sources.take()


def test_a_look_that_is_handed_back_goes_on_with_whoever_comes_next(sources):
    due = sources.take()
    sources.record(due, batch("a"))
    sources.write(lambda tx: poll_sources.hand_back(tx, due, poll_sources.remembered(due, {"page": 3}), due.counts))
    other = Sources(sources.app, "other")
    again = other.take()
    assert (again.run, again.memory, again.counts.found) == (due.run, {"page": 3}, 1)
    assert sources.app.events("discovered") == []


def test_a_definition_that_changes_during_a_look_ends_it(sources):
    due = sources.take()
    sources.sync(s="2")
    with pytest.raises(LeaseLost):
        sources.record(due, batch("a"))
