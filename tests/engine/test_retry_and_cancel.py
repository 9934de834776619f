"""What a person may do to many stages of items at once, chosen by filter (J7)."""

from __future__ import annotations

import pytest

from holdfast.engine import selection
from holdfast.errors import LeaseLost, UsageError
from tests.support.harness import connected
from tests.support.together import at_once

pytestmark = pytest.mark.req("J7")


@pytest.fixture
def shelf(app):
    """One item in each state, at stage a of two."""
    app.pipeline({"a": [], "b": ["a"]}, max_attempts=1, only={"b": {"max_attempts": 2}})
    app.add(["done", "skipped", "failed", "exhausted", "cancelled", "in_progress", "retry_later", "pending"])
    by_key = {lease.key: lease for lease in app.claim(most=7)}
    app.complete(by_key["done"], 1)
    app.skip(by_key["skipped"])
    app.permanent(by_key["failed"], "no such page")
    app.fail(by_key["exhausted"], "HTTP 503 from 10.0.0.1")
    app.cancel(key="cancelled", reason="not wanted")
    app.snooze(by_key["retry_later"], 100, "HTTP 429")
    assert {key: app.states(key)["a"] for key in by_key} == {key: key for key in by_key}
    return app


def test_what_failed_was_exhausted_or_cancelled_is_retried_unless_told_otherwise(shelf):
    assert shelf.retry() == {"failed": 1, "exhausted": 1, "cancelled": 1}
    for key in ("failed", "exhausted", "cancelled", "pending"):
        assert shelf.states(key) == {"a": "pending"}
    assert shelf.states("done")["a"] == "done"
    assert shelf.states("retry_later")["a"] == "retry_later"


def test_what_is_retried_has_all_its_attempts_again(shelf):
    shelf.retry(states=["exhausted"])
    assert shelf.row("exhausted", "a")["attempts"] == 0
    [lease] = [one for one in shelf.claim(stage="a", most=9) if one.key == "exhausted"]
    assert lease.attempt == 1


def test_a_delayed_retry_may_be_hastened(shelf):
    assert shelf.retry(states=["retry_later"]) == {"retry_later": 1}
    assert shelf.states("retry_later") == {"a": "pending"}
    assert shelf.counts() == shelf.recount()


@pytest.mark.parametrize("state", ["failed", "exhausted", "cancelled", "skipped", "retry_later"])
def test_retry_takes_the_states_it_is_given_and_no_other(shelf, state):
    assert shelf.retry(states=[state]) == {state: 1}
    assert shelf.states(state)["a"] == "pending"
    untouched = {"failed", "exhausted", "cancelled", "skipped", "retry_later", "done"} - {state}
    assert {key: shelf.states(key)["a"] for key in untouched} == {key: key for key in untouched}


def test_retry_refuses_what_runs_anyway_and_cancel_what_is_finished(shelf):
    for state in ("pending", "in_progress"):
        with pytest.raises(UsageError, match="runs anyway"):
            shelf.retry(states=[state])
    for state in ("done", "skipped", "failed", "exhausted", "cancelled"):
        with pytest.raises(UsageError, match="finished already"):
            shelf.cancel(states=[state])


def test_cancel_sets_aside_everything_that_is_open(shelf):
    """At stage a: pending, delayed, in progress; at stage b: what done and skipped have woken."""
    assert shelf.cancel(reason="stop") == {"pending": 3, "retry_later": 1, "in_progress": 1}
    for key in ("pending", "retry_later", "in_progress"):
        assert shelf.states(key) == {"a": "cancelled"}
        assert shelf.row(key, "a")["error"] == "stop"
    assert shelf.states("done") == {"a": "done", "b": "cancelled"}
    shelf.promote()
    assert shelf.claim() == []
    assert shelf.counts() == shelf.recount()


@pytest.mark.parametrize("state", ["pending", "retry_later", "in_progress"])
def test_cancel_takes_the_states_it_is_given_and_no_other(shelf, state):
    assert shelf.cancel(states=[state], stage="a") == {state: 1}
    assert shelf.states(state) == {"a": "cancelled"}
    for other in {"pending", "retry_later", "in_progress"} - {state}:
        assert shelf.states(other) == {"a": other}


def test_whoever_works_on_a_cancelled_item_loses_the_lease(app):
    app.pipeline({"a": []})
    app.add(["x"])
    [lease] = app.claim()
    app.cancel()
    with pytest.raises(LeaseLost):
        app.complete(lease)
    assert app.states("x") == {"a": "cancelled"}
    assert app.row("x", "a")["attempts"] == 1


def test_a_cancelled_item_can_be_retried_and_then_goes_through(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    app.cancel()
    app.retry()
    app.run_through()
    assert app.states("x") == {"a": "done", "b": "done"}
    assert app.counts() == app.recount()


def test_both_can_be_narrowed_to_a_stage(app):
    app.pipeline({"a": [], "b": []}, max_attempts=1)
    app.add(["x"])
    app.fail(app.claim(stage="a")[0])
    app.fail(app.claim(stage="b")[0])
    assert app.retry(stage="b") == {"exhausted": 1}
    assert app.states("x") == {"a": "exhausted", "b": "pending"}
    assert app.cancel(stage="a") == {}
    assert app.cancel(stage="b") == {"pending": 1}


def test_an_unknown_stage_is_refused_and_the_known_ones_are_named(app):
    app.pipeline({"a": [], "b": []})
    for act in (app.retry, app.cancel):
        with pytest.raises(UsageError, match="there is no stage 'c' in pipeline 'p'; there are: a, b"):
            act(stage="c")


def test_an_unknown_pipeline_is_refused(app):
    app.pipeline({"a": []})
    app.name = "q"
    with pytest.raises(UsageError, match="there is no pipeline 'q' in this store; there are: p"):
        app.retry()


def test_another_pipelines_items_are_left_alone(app):
    app.pipeline({"a": []}, name="mine")
    app.add(["x"])
    app.pipeline({"a": []}, name="theirs")
    app.add(["x"])
    assert app.cancel() == {"pending": 1}
    app.name = "mine"
    assert app.states("x") == {"a": "pending"}


#: Pattern, and those of KEYS that it means.
KEYS = [
    "a_b",
    "axb",
    "a%b",
    "a[b",
    "a]b",
    "[ab]",
    "a*b",
    "a?b",
    "a\\b",
    "a",
    "A_B",
    "a_bc",
    "é_b",
    "\U0001f600",
    "a^b",
    "a-b",
    "'; DROP TABLE x; --",
]
PATTERNS = {
    "a_b": ["a_b"],
    "a%b": ["a%b"],
    "a[b": ["a[b"],
    "a]b": ["a]b"],
    "[ab]": ["[ab]"],
    "[a-z]*": [],
    "a\\b": ["a\\b"],
    "a\\": [],
    "a^b": ["a^b"],
    "'; DROP TABLE x; --": ["'; DROP TABLE x; --"],
    "a?b": ["a_b", "axb", "a%b", "a[b", "a]b", "a*b", "a?b", "a\\b", "a^b", "a-b"],
    "a_*": ["a_b", "a_bc"],
    "*_b": ["a_b", "é_b"],
    "?": ["a", "\U0001f600"],
    "é*": ["é_b"],
    "A*": ["A_B"],
    "*": KEYS,
    "": [],
}


def test_a_key_pattern_has_two_wild_characters_and_every_other_one_is_itself(app):
    app.pipeline({"a": []})
    app.add(KEYS)
    for pattern, meant in PATTERNS.items():
        assert app.cancel(key=pattern, dry_run=True).get("pending", 0) == len(meant), pattern
        app.cancel(key=pattern)
        cancelled = app.query("SELECT key FROM holdfast_item_stages WHERE state = 'cancelled'")
        assert {key for (key,) in cancelled} == set(meant), pattern
        app.retry()


def test_error_text_is_looked_for_as_it_is_written(app):
    errors = {
        "percent": "100% of it",
        "underscore": "a_b",
        "quote": "it's",
        "star": "a*b",
        "case": "TimeOut",
        "emoji": "\U0001f600!",
        "none": "",
    }
    app.pipeline({"a": []}, max_attempts=1)
    app.add(errors)
    for lease in app.claim(most=10):
        app.fail(lease, errors[lease.key])
    for part, meant in [
        ("100%", {"percent"}),
        ("%", {"percent"}),
        ("_", {"underscore"}),
        ("it's", {"quote"}),
        ("*", {"star"}),
        ("timeout", set()),
        ("TimeO", {"case"}),
        ("\U0001f600", {"emoji"}),
        ("nowhere", set()),
    ]:
        assert app.retry(error=part) == ({"exhausted": len(meant)} if meant else {}), part
        assert {key for key in errors if app.states(key)["a"] == "pending"} == meant, part
        for lease in app.claim(most=10):
            app.fail(lease, errors[lease.key])


def test_error_text_is_looked_for_in_delayed_work_too(shelf):
    assert shelf.retry(states=["retry_later"], error="503") == {}
    assert shelf.retry(states=["retry_later"], error="429") == {"retry_later": 1}


def test_what_has_no_error_matches_no_error_text(shelf):
    assert shelf.cancel(states=["pending", "in_progress"], error="x") == {}


def test_age_is_measured_from_the_end_of_the_attempt(app):
    app.pipeline({"a": []}, max_attempts=1)
    app.add(["old", "young"])
    old, young = app.claim(most=2)
    app.fail(old)
    app.clock.advance(60)
    app.fail(young, took_seconds=60)
    app.clock.advance(10)
    assert app.retry(older_than=70) == {}
    assert app.retry(older_than=30) == {"exhausted": 1}
    assert (app.states("old"), app.states("young")) == ({"a": "pending"}, {"a": "exhausted"})
    app.clock.advance(30)
    assert app.retry(older_than=30) == {"exhausted": 1}


def test_age_of_work_in_progress_is_measured_from_its_claim(app):
    app.pipeline({"a": []})
    app.add(["old", "young"])
    app.claim()
    app.clock.advance(60)
    app.claim()
    app.clock.advance(10)
    assert app.cancel(states=["in_progress"], older_than=30) == {"in_progress": 1}
    assert (app.states("old"), app.states("young")) == ({"a": "cancelled"}, {"a": "in_progress"})


def test_all_that_is_given_must_hold(shelf):
    assert shelf.retry(states=["failed"], key="exh*") == {}
    assert shelf.retry(states=["failed"], error="503") == {}
    assert shelf.retry(states=["exhausted"], key="exh*", error="503", stage="b") == {}
    assert shelf.retry(states=["exhausted"], key="exh*", error="503", stage="a") == {"exhausted": 1}


def test_a_dry_run_answers_as_the_run_would_and_changes_nothing(shelf):
    before = shelf.recount()
    would_retry = shelf.retry(dry_run=True)
    would_hasten = shelf.retry(states=["retry_later"], dry_run=True)
    would_cancel = shelf.cancel(dry_run=True)
    assert shelf.recount() == before == shelf.counts()
    assert would_hasten == shelf.retry(states=["retry_later"]) == {"retry_later": 1}
    assert would_retry == shelf.retry() == {"failed": 1, "exhausted": 1, "cancelled": 1}
    assert would_cancel == {"pending": 3, "retry_later": 1, "in_progress": 1}


def test_a_dry_run_does_not_count_what_has_been_sent_back_already(shelf):
    shelf.retry()
    assert shelf.retry(dry_run=True) == {}
    assert shelf.retry() == {}


def test_retrying_twice_at_once_sends_each_item_back_once(app):
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(50))
    app.cancel()
    with connected(app) as other:
        counts = at_once(app.retry, other.retry)
    assert sum(count.get("cancelled", 0) for count in counts) == 50
    assert app.counts() == app.recount()
    assert app.counts()["a"]["pending"] == 50


def test_cancel_beside_completion_lets_one_of_them_win(app):
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(40))
    leases = app.claim(most=40)
    with connected(app) as other:
        lost, cancelled = at_once(lambda: _complete_all(app, leases), other.cancel)
    assert lost == cancelled.get("in_progress", 0)
    assert app.counts() == app.recount()


def _complete_all(app, leases):
    lost = 0
    for lease in leases:
        try:
            app.complete(lease)
        except LeaseLost:
            lost += 1
    return lost


def test_more_items_than_one_stretch_are_all_met_once(app, monkeypatch):
    monkeypatch.setattr(selection, "CHUNK", 7)
    app.pipeline({"a": [], "b": []})
    app.add(f"k{n}" for n in range(20))
    assert app.cancel(dry_run=True) == {"pending": 40}
    assert app.cancel() == {"pending": 40}
    assert app.retry(dry_run=True) == {"cancelled": 40}
    assert app.retry() == {"cancelled": 40}
    assert app.counts() == app.recount()


def test_who_did_it_and_why_goes_into_the_events(shelf):
    shelf.retry(key="failed", reason="the page is back")
    shelf.cancel(key="pending", reason="spam")
    assert shelf.history("failed") == ["failed", "retried"]
    assert shelf.events("retried") == [{"was": "failed", "action": 2, "by": "me", "reason": "the page is back"}]
    assert shelf.events("cancelled")[-1] == {"was": "pending", "action": 3, "by": "me", "reason": "spam"}
