"""Failing: an attempt that raised waits for the next, or was the last. A snooze waits too, and costs none."""

from __future__ import annotations

import random

import pytest

from holdfast.clock import SECOND
from holdfast.engine.fail import fail
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.model.backoff import Backoff
from holdfast.model.states import State


@pytest.mark.req("J16")
def test_a_failed_attempt_waits_until_it_is_due(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.fail(app.claim()[0], "HTTP 503", delay=12.5)
    row = app.row("x", "a")
    assert (row["state"], row["attempts"], row["error"]) == ("retry_later", 1, "HTTP 503")
    assert row["next_attempt_at"] == app.clock.now() + 12_500_000
    assert app.claim() == []
    assert app.counts() == {"a": {"retry_later": 1}} == app.recount()


@pytest.mark.req("J16")
def test_the_delays_between_attempts_are_those_of_the_backoff(app):
    app.pipeline({"a": []}, max_attempts=6)
    app.add(["x"])
    backoff, rng = Backoff(first_seconds=2, factor=3, most_seconds=30), random.Random(1)
    for attempt, ceiling in enumerate([2, 6, 18, 30, 30], start=1):
        [lease] = app.claim()
        assert lease.attempt == attempt
        delay = backoff.delay(attempt, rng)
        assert 0 <= delay <= ceiling
        app.fail(lease, delay=delay)
        assert app.row("x", "a")["next_attempt_at"] == app.clock.now() + round(delay * SECOND)
        app.clock.advance(ceiling)
        assert app.promote().moved == 1


@pytest.mark.req("J3")
def test_the_last_attempt_that_fails_leaves_the_stage_exhausted_and_it_is_never_picked_again(app):
    app.pipeline({"a": [], "b": ["a"]}, max_attempts=3)
    app.add(["x"])
    for attempt in (1, 2, 3):
        [lease] = app.claim()
        assert lease.attempt == attempt
        app.fail(lease, f"boom {attempt}")
        app.promote()
    assert app.states("x") == {"a": "exhausted"}
    assert (app.row("x", "a")["attempts"], app.row("x", "a")["error"]) == (3, "boom 3")
    app.clock.advance(10**6)
    app.promote()
    app.reap()
    app.backfill()
    assert app.claim() == []
    assert app.history("x") == ["attempt_failed", "attempt_failed", "exhausted"]
    assert app.counts() == {"a": {"exhausted": 1}} == app.recount()


@pytest.mark.req("J3")
def test_five_attempts_are_the_default(app):
    app.pipeline({"a": []})
    app.add(["x"])
    starts = 0
    while leases := app.claim():
        starts += 1
        app.fail(leases[0])
        app.promote()
    assert (starts, app.states("x")) == (5, {"a": "exhausted"})


@pytest.mark.req("J3")
def test_a_stage_with_one_attempt_is_exhausted_by_its_first_failure(app):
    app.pipeline({"a": []}, max_attempts=1)
    app.add(["x"])
    app.fail(app.claim()[0])
    assert app.states("x") == {"a": "exhausted"}


@pytest.mark.req("J3")
def test_each_stage_has_attempts_of_its_own(app):
    app.pipeline({"a": [], "b": ["a"]}, max_attempts=2)
    app.add(["x"])
    app.fail(app.claim()[0])
    app.promote()
    app.complete(app.claim()[0])
    app.fail(app.claim(stage="b")[0])
    app.promote()
    assert [lease.attempt for lease in app.claim(stage="b")] == [2]


def test_more_attempts_given_while_an_item_waits_count_for_it(app):
    app.pipeline({"a": []}, max_attempts=2)
    app.add(["x"])
    app.fail(app.claim()[0])
    app.promote()
    [lease] = app.claim()
    app.pipeline({"a": []}, max_attempts=3)
    app.fail(lease)
    assert app.states("x") == {"a": "retry_later"}


@pytest.mark.req("J16")
def test_a_snooze_waits_as_long_as_was_asked_and_costs_no_attempt(app):
    app.pipeline({"a": []}, max_attempts=2)
    app.add(["x"])
    for _ in range(5):
        [lease] = app.claim()
        assert lease.attempt == 1
        app.snooze(lease, 60, "not published yet")
        row = app.row("x", "a")
        assert (row["state"], row["attempts"], row["error"]) == ("retry_later", 0, "not published yet")
        assert row["next_attempt_at"] == app.clock.now() + 60 * SECOND
        app.clock.advance(60)
        app.promote()
    assert app.states("x") == {"a": "pending"}
    assert app.history("x") == ["snoozed"] * 5


def test_a_snooze_between_failures_keeps_what_was_spent(app):
    app.pipeline({"a": []}, max_attempts=3)
    app.add(["x"])
    app.fail(app.claim()[0])
    app.promote()
    app.snooze(app.claim()[0], 0)
    app.promote()
    assert [lease.attempt for lease in app.claim()] == [2]


def test_a_snooze_without_a_reason_is_a_snooze_too(app):
    app.pipeline({"a": []}, max_attempts=1)
    app.add(["x"])
    app.snooze(app.claim()[0], 5)
    assert app.row("x", "a")["attempts"] == 0


def test_an_item_that_failed_in_company_gets_a_call_of_its_own_before_its_last_attempt_counts(app):
    """With several items in one call nobody knows whose fault it was."""
    app.pipeline({"a": []}, max_attempts=2)
    app.add(["x"])
    for _ in range(3):
        [lease] = app.claim()
        app.fail(lease, company=8)
        app.promote()
        assert app.states("x") == {"a": "pending"}
    [alone] = app.claim()
    assert (alone.attempt, alone.alone) == (2, 1)
    app.fail(alone, company=1)
    assert app.states("x") == {"a": "exhausted"}


def test_failures_of_several_stages_are_recorded_in_one_write(app):
    app.pipeline({"a": [], "b": []}, max_attempts=1, only={"b": {"max_attempts": 2}})
    app.add(["x", "y"])
    leases = app.claim(stage="b", most=2) + app.claim(stage="a", most=2)
    failed = [FinishedAttempt(lease, State.RETRY_LATER, error="e", traceback="t", delay_us=5) for lease in leases]
    app.store.write(lambda tx: fail(tx, failed))
    assert app.states("x") == app.states("y") == {"a": "exhausted", "b": "retry_later"}
    assert app.counts() == app.recount()


def test_error_text_is_kept_as_it_is(app):
    texts = ["a'b\"c\\d", "%s %(x)s :y {z}", "two\nlines\ttab", "\U0001f600 é", ""]
    app.pipeline({"a": []}, max_attempts=2)
    app.add(f"k{n}" for n in range(len(texts)))
    for state in ("retry_later", "exhausted"):
        for lease, text in zip(app.claim(most=9), texts, strict=True):
            app.fail(lease, text)
            assert (app.row(lease.key, "a")["state"], app.row(lease.key, "a")["error"]) == (state, text)
        app.promote()
