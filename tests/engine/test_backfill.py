"""Back-fill: a stage added to a pipeline with items begins for those that were there before it."""

from __future__ import annotations

import pytest

from tests.support.harness import connected
from tests.support.together import at_once

DONE_TWICE = {"a": "done", "b": "done"}


def test_a_stage_added_at_the_end_begins_for_finished_items(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["finished", "half", "new"])
    first, second, _ = app.claim(most=3)
    app.complete(first)
    app.complete(app.claim(stage="b")[0])
    app.complete(second)
    app.pipeline({"a": [], "b": ["a"], "c": ["b"]})
    app.backfill()
    assert app.states("finished") == {"a": "done", "b": "done", "c": "pending"}
    assert app.states("half") == {"a": "done", "b": "pending"}
    assert app.states("new") == {"a": "in_progress"}
    assert app.counts() == app.recount()


def test_a_stage_added_in_the_middle_begins_where_the_one_before_it_is_done(app):
    app.pipeline({"a": [], "z": ["a"]})
    app.add(["finished", "new"])
    first, _ = app.claim(most=2)
    app.complete(first)
    app.complete(app.claim(stage="z")[0], "kept")
    app.pipeline({"a": [], "middle": ["a"], "z": ["middle"]})
    app.backfill()
    assert app.states("finished") == {"a": "done", "middle": "pending", "z": "done"}
    assert app.states("new") == {"a": "in_progress"}
    app.complete(app.claim(stage="middle")[0])
    assert app.states("finished") == {"a": "done", "middle": "done", "z": "done"}
    assert app.outcome("finished", "z")["result"] == "kept"
    assert app.counts() == app.recount()


def test_a_stage_that_waits_does_not_run_before_one_that_was_put_in_front_of_it(app):
    """A stage becomes pending when those before it have passed; one of them now has not."""
    app.pipeline({"a": [], "z": ["a"]})
    app.add(["x"])
    app.complete(app.claim()[0])
    app.pipeline({"a": [], "middle": ["a"], "z": ["middle"]})
    app.backfill()
    assert app.claim(stage="z") == []
    app.complete(app.claim(stage="middle")[0], "made by middle")
    [lease] = app.claim(stage="z")
    assert lease.results == {app.stage("middle").id: '"made by middle"'}


def test_a_new_first_stage_begins_for_every_item(app):
    app.pipeline({"a": []})
    app.add(["finished", "running", "waiting"])
    first, _ = app.claim(most=2)
    app.complete(first)
    app.pipeline({"a": [], "root": []})
    app.backfill()
    assert app.states("finished") == {"a": "done", "root": "pending"}
    assert app.states("running") == {"a": "in_progress", "root": "pending"}
    assert app.states("waiting") == {"a": "pending", "root": "pending"}
    assert app.counts() == app.recount()


def test_a_new_stage_where_others_meet_begins_where_all_of_them_have_passed(app):
    app.pipeline({"a": [], "b": []})
    app.add(["both", "one", "none"])
    both, one, _ = app.claim(stage="a", most=3)
    app.complete(both)
    app.skip(one)
    app.skip(app.claim(stage="b")[0])
    app.pipeline({"a": [], "b": [], "end": ["a", "b"]})
    app.backfill()
    assert app.states("both") == {"a": "done", "b": "skipped", "end": "pending"}
    assert app.states("one") == {"a": "skipped", "b": "pending"}
    assert "end" not in app.states("none")
    app.complete(app.claim(stage="b")[0])
    assert app.states("one")["end"] == "pending"
    assert app.counts() == app.recount()


def test_a_stage_does_not_begin_where_the_one_before_it_has_failed(app):
    app.pipeline({"a": []}, max_attempts=1)
    app.add(["failed", "exhausted", "cancelled"])
    failed, exhausted, _ = app.claim(most=3)
    app.permanent(failed)
    app.fail(exhausted)
    app.cancel(key="cancelled")
    app.pipeline({"a": [], "b": ["a"]}, max_attempts=1)
    app.backfill()
    assert app.states("failed") == {"a": "failed"}
    assert app.states("exhausted") == {"a": "exhausted"}
    assert app.states("cancelled") == {"a": "cancelled"}


def test_back_filling_again_finds_nothing_to_do(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.run_through()
    app.pipeline({"a": [], "b": ["a"]})
    assert app.backfill() == 1
    assert app.backfill() == 0
    assert app.run_through() == 1
    assert app.backfill() == 0
    assert app.states("x") == DONE_TWICE


def test_many_items_are_back_filled_in_stretches(app):
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(25))
    app.run_through()
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["added after the stage"])
    assert app.backfill(most=10) == 25
    assert app.counts()["b"] == {"pending": 25}
    assert app.counts() == app.recount()


def test_back_fill_looks_at_the_items_of_its_own_pipeline_only(app):
    app.pipeline({"a": []}, name="other")
    app.add(["theirs"])
    app.pipeline({"a": []}, name="p")
    app.add(["mine"])
    app.pipeline({"a": [], "root": []}, name="p")
    app.backfill()
    assert app.states("mine") == {"a": "pending", "root": "pending"}
    app.name = "other"
    assert app.states("theirs") == {"a": "pending"}


def test_an_item_completed_after_the_stage_was_added_and_before_it_was_looked_at_begins_once(app):
    app.pipeline({"a": []})
    app.add(["moved", "entered"])
    moved, entered = app.claim(most=2)
    app.pipeline({"a": [], "b": ["a"]})
    app.complete(moved, onward=["b"])
    app.complete(entered)
    app.backfill()
    assert app.states("moved") == {"a": "done", "b": "in_progress"}
    assert app.states("entered") == {"a": "done", "b": "pending"}
    assert app.counts() == app.recount()


def test_back_fill_beside_completions_on_another_connection_begins_each_stage_once(app):
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(60))
    leases = app.claim(most=60)
    app.pipeline({"a": [], "b": ["a"]})
    with connected(app) as other:
        at_once(lambda: [app.complete(lease) for lease in leases], lambda: other.backfill(most=3))
    app.backfill()
    assert app.counts() == {"a": {"done": 60}, "b": {"pending": 60}} == app.recount()


@pytest.mark.req("J5")
def test_an_item_is_not_done_while_a_new_stage_may_still_begin_for_it(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.run_through()
    assert app.status("x") == "done"
    app.pipeline({"a": [], "b": ["a"]})
    assert app.status("x") == "pending"
    app.backfill()
    assert app.status("x") == "pending"
    app.run_through()
    assert app.status("x") == "done"


# Removed and back again -------------------------------------------------------------------------------------


def test_a_removed_stage_is_left_alone_and_no_longer_counts_for_the_item(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["waiting", "failed"])
    for lease in app.claim(most=2):
        app.complete(lease)
    app.permanent(app.claim(stage="b")[0])
    app.pipeline({"a": []})
    app.backfill()
    assert app.states("waiting") == {"a": "done", "b": "failed"}
    assert app.states("failed") == {"a": "done", "b": "pending"}
    assert app.status("waiting") == app.status("failed") == "done"
    assert app.claim() == []


def test_what_a_removed_stage_held_back_goes_on_without_it(app):
    app.pipeline({"a": [], "b": ["a"], "c": ["b"]})
    app.add(["x"])
    app.complete(app.claim()[0])
    app.pipeline({"a": [], "c": ["a"]})
    app.backfill()
    assert app.states("x") == {"a": "done", "b": "pending", "c": "pending"}
    app.complete(app.claim(stage="c")[0])
    assert app.status("x") == "done"


def test_a_lease_of_a_stage_that_was_removed_meanwhile_may_still_be_finished(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    app.complete(app.claim()[0])
    [lease] = app.claim(stage="b")
    app.pipeline({"a": []})
    app.complete(lease, "late but right")
    assert app.outcome("x", "b")["result"] == "late but right"
    assert app.counts() == app.recount()


def test_a_stage_that_comes_back_goes_on_where_it_was_and_begins_for_what_passed_meanwhile(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["done", "waiting"])
    for lease in app.claim(most=2):
        app.complete(lease)
    app.complete(app.claim(stage="b")[0], "kept")
    app.pipeline({"a": []})
    app.add(["passed meanwhile"])
    app.complete(app.claim()[0])
    assert app.states("passed meanwhile") == {"a": "done"}
    app.pipeline({"a": [], "b": ["a"]})
    app.backfill()
    assert app.states("done") == DONE_TWICE
    assert app.outcome("done", "b")["result"] == "kept"
    assert app.states("waiting") == app.states("passed meanwhile") == {"a": "done", "b": "pending"}
    assert app.run_through() == 2
    assert app.counts() == app.recount()


def test_a_stage_that_comes_back_at_another_place_follows_its_new_order(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    app.pipeline({"a": []})
    app.pipeline({"b": [], "a": ["b"]})
    app.add(["y"])
    app.backfill()
    assert app.states("y") == {"b": "pending"}
    assert app.states("x")["b"] == "pending"
    assert app.counts() == app.recount()
