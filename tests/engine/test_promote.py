"""Promoting: what is due may be claimed, what is not may not."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Pipeline
from holdfast.app import Holdfast
from holdfast.testing import ManualClock
from tests.support.harness import connected
from tests.support.together import at_once


@pytest.mark.req("J16")
def test_only_what_is_due_is_promoted_and_the_next_due_time_is_told(app):
    app.pipeline({"a": []})
    app.add(["soon", "later", "last"])
    for lease, delay in zip(app.claim(most=3), (5, 10, 20), strict=True):
        app.fail(lease, delay=delay)
    start = app.clock.now()
    assert app.promote() == (0, start + 5_000_000)
    app.clock.advance(10)
    assert app.promote() == (2, start + 20_000_000)
    assert app.states("soon") == app.states("later") == {"a": "pending"}
    assert app.states("last") == {"a": "retry_later"}
    app.clock.advance(10)
    assert app.promote() == (1, None)
    assert app.counts() == {"a": {"pending": 3}} == app.recount()


def test_promotion_in_small_steps_takes_the_longest_due_first(app):
    app.pipeline({"a": []})
    app.add(["x", "y", "z"])
    for lease, delay in zip(app.claim(most=3), (3, 1, 2), strict=True):
        app.fail(lease, delay=delay)
    app.clock.advance(10)
    assert app.promote(most=2).moved == 2
    assert [app.states(key)["a"] for key in ("x", "y", "z")] == ["retry_later", "pending", "pending"]


def test_promotion_keeps_what_was_spent_and_how_much_company_is_allowed(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.fail(app.claim()[0], company=3)
    app.promote()
    [lease] = app.claim()
    assert (lease.attempt, lease.alone) == (2, 1)


def test_nothing_due_is_nothing_done(app):
    app.pipeline({"a": []})
    assert app.promote() == (0, None)


def test_two_connections_that_promote_at_once_promote_each_item_once(app):
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(100))
    for lease in app.claim(most=100):
        app.fail(lease)
    with connected(app) as other:
        counts = at_once(*(lambda one=one: _promote_all(one) for one in (app, other)))
    assert sum(counts) == 100
    assert app.counts() == {"a": {"pending": 100}} == app.recount()


def _promote_all(app):
    total = 0
    while count := app.promote(most=7).moved:
        total += count
    return total


@pytest.mark.fault(52)
@pytest.mark.parametrize("hours", [1, -1, 24 * 365])
def test_setting_the_time_of_day_makes_no_retry_come_earlier_or_later(app, hours):
    """No storm of retries, and no lost hour."""
    app.pipeline({"a": []})
    app.add(["x"])
    app.promote()
    app.fail(app.claim()[0], delay=60)
    app.clock.advance(10)
    app.clock.set_wall(hours * 3600)
    assert app.promote().moved == 0
    app.clock.advance(49)
    assert app.promote().moved == 0
    app.clock.advance(1)
    assert app.promote().moved == 1
    assert len(app.events("clock_set")) == 1


@pytest.mark.fault(52)
@pytest.mark.parametrize("hours", [1, -1])
def test_setting_the_time_of_day_leaves_no_time_that_cannot_be(url, hours):
    """A resource that was never slowed down has no time that could be shifted."""
    pipeline = Pipeline[Any]("p", resources={"api": {"rate": "10/s"}})
    pipeline.stage(name="a", resource="api")(lambda item, ctx: None)
    clock = ManualClock()
    with Holdfast(url, [pipeline.spec], resources=pipeline.resources, clock=clock) as hold:
        hold.add("p", ["x"])
        hold.run()
        clock.set_wall(hours * 3600)
        hold.add("p", ["y"])
        hold.run()
        assert hold.check() == []


@pytest.mark.fault(52)
@pytest.mark.parametrize("hours", [1, -1])
def test_an_attempt_that_fails_right_after_the_clock_was_set_waits_as_long_as_it_should(app, hours):
    """Its due time is already on the new clock and must not be moved along with the others."""
    app.pipeline({"a": []})
    app.add(["x"])
    app.promote()
    [lease] = app.claim()
    app.clock.set_wall(hours * 3600)
    app.fail(lease, delay=60)
    app.clock.advance(59)
    assert app.promote().moved == 0
    app.clock.advance(1)
    assert app.promote().moved == 1


@pytest.mark.fault(52)
def test_a_clock_that_is_adjusted_gently_is_no_clock_that_was_set(app):
    app.pipeline({"a": []})
    app.promote()
    for _ in range(5):
        app.clock.set_wall(0.1)
        app.clock.advance(30)
        app.promote()
    assert app.events("clock_set") == []
