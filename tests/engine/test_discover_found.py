"""Discovering: what is found becomes items, each counts once, and a look ends well or comes again."""

from __future__ import annotations

import pytest

from holdfast.engine import poll_sources
from holdfast.engine.poll_sources import Wanted
from holdfast.engine.upsert import Looked, as_looked, look_up
from holdfast.errors import UsageError, ValueRefused
from holdfast.model.found_items import LookCounts, label
from holdfast.model.schedule import NEVER
from tests.engine.discovering import Sources, batch

pytestmark = pytest.mark.req("J20")


@pytest.fixture
def sources(app):
    app.pipeline({"a": []})
    sources = Sources(app)
    sources.sync()
    return sources


# What is found --------------------------------------------------------------------------------------------------------


def test_new_and_changed_items_are_added_and_unchanged_ones_are_not_touched(app, sources):
    assert sources.look(("a", 1), ("b", 1)) == LookCounts(found=2, new=2)
    assert app.states("a") == {"a": "pending"}
    app.execute("UPDATE holdfast_items SET data = '{\"mine\": 1}' WHERE key = 'a'")
    app.clock.advance(60)
    assert sources.look(("a", 1), ("b", 2), ("c", 1)) == LookCounts(found=3, new=1, changed=1, unchanged=1)
    assert (app.data("a"), app.data("b")) == ({"mine": 1}, {"n": 2})
    assert app.counts() == {"a": {"pending": 3}} == app.recount()


def test_an_item_that_somebody_else_added_is_changed_or_unchanged_but_not_new(app, sources):
    app.add([{"key": "a", "n": 1}, {"key": "b", "n": 1}])
    assert sources.look(("a", 1), ("b", 2)) == LookCounts(found=2, changed=1, unchanged=1)


@pytest.mark.fault(59)
def test_a_key_that_comes_twice_in_a_look_counts_once_and_the_first_stands(app, sources):
    due = sources.take()
    sources.record(due, batch(("a", 1), ("b", 1), ("a", 2)))
    sources.record(due, batch(("a", 3), ("c", 1)))
    assert due.counts == LookCounts(found=3, new=3)
    assert app.data("a") == {"n": 1}


def test_what_was_pruned_does_not_come_back_until_it_changes(app, sources):
    sources.look(("a", 1))
    app.execute("DELETE FROM holdfast_waiting")
    app.execute("DELETE FROM holdfast_items")
    app.clock.advance(60)
    assert sources.look(("a", 1)) == LookCounts(found=1, unchanged=1)
    app.clock.advance(60)
    assert sources.look(("a", 2)) == LookCounts(found=1, new=1)


def test_what_a_merge_decided_stands_and_what_changed_since_comes_again(app, sources):
    app.add([{"key": "a", "n": 1, "mine": 1}, {"key": "b", "n": 1}])
    due = sources.take()
    found = batch(("a", 5), ("b", 5), ("c", 5))
    old = app.store.read(lambda tx: look_up(tx, "p", found))
    looked = {key: Looked(data, '{"n":5,"merged":true}') for key, data in old.items()}
    app.add([{"key": "b", "n": 2}])
    done = sources.record(due, found, decide=as_looked(looked), memory=poll_sources.remembered(due, {"page": 1}))
    assert [one.key for one in done.left] == ["b"]
    assert done.counts == LookCounts(found=2, new=1, changed=1)
    assert (app.data("a"), app.data("b")) == ({"n": 5, "merged": True}, {"n": 2})
    assert "page" not in app.query("SELECT memory FROM holdfast_sources")[0][0]
    done = sources.record(due, done.left, memory=poll_sources.remembered(due, {"page": 1}))
    assert (done.left, done.counts) == ([], LookCounts(found=3, new=1, changed=2))
    assert "page" in app.query("SELECT memory FROM holdfast_sources")[0][0]


def test_what_is_not_seen_again_has_vanished_once_and_its_item_stays(app, sources):
    sources.look("a", "b", "c")
    app.clock.advance(60)
    assert sources.look("a") == LookCounts(found=1, unchanged=1, vanished=2)
    assert app.states("b") == {"a": "pending"}
    app.clock.advance(60)
    assert sources.look("a") == LookCounts(found=1, unchanged=1)
    app.clock.advance(60)
    assert sources.look("a", "b", ("c", 9)) == LookCounts(found=3, unchanged=2, changed=1)
    assert [event["vanished"] for event in app.events("discovered")] == [0, 2, 0, 0]


def test_vanished_items_are_set_aside_in_short_steps(app, sources, monkeypatch):
    monkeypatch.setattr(poll_sources, "STRETCH", 7)
    sources.look(*(f"k{n}" for n in range(50)))
    app.clock.advance(60)
    due = sources.take()
    sources.record(due, batch("k10", "k20"))
    counts, after = sources.write(lambda tx: poll_sources.set_vanished(tx, due, ()))
    assert (counts.vanished, after) == (6, "k14")
    due.counts = counts
    assert sources.vanish(due) == 48


def test_what_stands_in_a_part_that_was_not_read_has_not_vanished(app, sources):
    due = sources.take()
    sources.record(due, batch("a", "b", part="one") + batch("c", "d", part="two"))
    sources.finish(due)
    app.clock.advance(60)
    due = sources.take()
    sources.record(due, batch("c", part="two"))
    unseen = app.store.read(lambda tx: poll_sources.unseen(tx, due, {label("one")}))
    assert unseen == (2, 1)
    assert sources.vanish(due, kept=["one"]) == 1
    assert app.store.read(lambda tx: poll_sources.unseen(tx, due, ())) == (0, 2)


def test_an_item_that_moves_to_another_part_is_unchanged(app, sources):
    sources.look("a", part="one")
    app.clock.advance(60)
    assert sources.look("a", part="two") == LookCounts(found=1, unchanged=1)
    app.clock.advance(60)
    due = sources.take()
    assert app.store.read(lambda tx: poll_sources.unseen(tx, due, {label("two")})) == (1, 0)


# The end of a look ----------------------------------------------------------------------------------------------------


def test_a_look_that_failed_comes_again_ever_more_slowly_and_goes_on_where_it_was(app, sources):
    waits = []
    for n in range(1, 12):
        due = sources.take()
        assert (due.run, due.failures) == (1, n - 1)
        sources.record(due, batch(f"k{n}"))
        sources.finish(due, "it broke\0")
        waits.append((sources.row()["due_at"] - app.clock.now()) / 1e6)
        assert sources.row()["failures"] == n
        app.clock.advance(waits[-1])
    for n, wait in enumerate(waits):
        ceiling = min(3600, 30 * 2**n)
        assert ceiling / 2 <= wait <= ceiling
    assert app.events("discovered") == []
    last = app.events("discovery_failed")[-1]
    assert (last["error"], last["failures"], last["found"], last["source"]) == ("it broke\ufffd", 11, 11, "s")
    due = sources.take()
    sources.finish(due)
    assert (sources.row()["failures"], sources.row()["error"]) == (0, None)
    assert app.events("discovered")[0]["found"] == 11


@pytest.mark.fault(63)
@pytest.mark.parametrize(("asked", "least", "most"), [(7200, 7200, 7920), (1, 15, 30), (10**7, 86400, 86400)])
def test_a_server_is_never_asked_earlier_than_it_said_within_a_day(app, sources, asked, least, most):
    sources.finish(sources.take(), "429", retry_after=asked)
    assert least <= (sources.row()["due_at"] - app.clock.now()) / 1e6 <= most


def test_one_source_that_fails_does_not_hold_up_another(app, sources):
    sources.sync(s="1", t="1")
    first = sources.take()
    sources.finish(first, "it broke")
    second = sources.take()
    assert {first.name, second.name} == {"s", "t"}
    sources.record(second, batch("a"))
    sources.finish(second)
    assert sources.row(second.name)["counts"]["new"] == 1


def test_bad_rows_are_counted_anew_with_each_try_and_the_first_is_told(app, sources):
    due = sources.take()
    sources.record(due, batch("a"), bad=3)
    sources.finish(due, "it broke")
    app.clock.advance(60)
    due = sources.take()
    sources.record(due, batch("b"), bad=2)
    sources.finish(due, bad_example="line 7: nonsense")
    [event] = app.events("discovered")
    assert (event["found"], event["bad"], event["first_bad"]) == (2, 2, "line 7: nonsense")


def test_what_a_source_remembers_is_json_of_a_bounded_size(sources):
    due = sources.take()
    for wrong in ({"a": {1}}, {"a": "x" * 5_000_000}, {"a": float("nan")}):
        with pytest.raises(ValueRefused):
            poll_sources.remembered(due, wrong)


def test_a_pipeline_that_is_not_there_is_said_so(app, sources):
    with pytest.raises(UsageError, match="no pipeline 'q'"):
        sources.write(lambda tx: poll_sources.sync_sources(tx, "q", {"s": Wanted("1", 0, NEVER)}))


def test_sources_of_two_pipelines_may_have_the_same_name(app, sources):
    sources.look("a")
    app.pipeline({"x": []}, name="q")
    other = Sources(app, "other")
    other.sync()
    assert other.look("a", "b") == LookCounts(found=2, new=2)
    assert [(one["pipeline"], one["counts"]["found"]) for one in app.store.read(poll_sources.sources)] == [
        ("p", 1),
        ("q", 2),
    ]
