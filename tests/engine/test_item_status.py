"""The status of an item follows from its stages and is stored nowhere (J5)."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

pytestmark = pytest.mark.req("J5")

PUT = {
    "done": lambda app, lease: app.complete(lease),
    "skipped": lambda app, lease: app.skip(lease),
    "failed": lambda app, lease: app.permanent(lease),
    "exhausted": lambda app, lease: app.fail(lease),
    "retry_later": lambda app, lease: app.snooze(lease, 60),
    "pending": lambda app, lease: app.release(lease),
    "cancelled": lambda app, lease: app.cancel(key=lease.key, stage=_name(app, lease)),
    "in_progress": lambda app, lease: None,
}


def _name(app, lease):
    return app.layout().stages[lease.stage].name


def expected(states):
    """The seed's rules, with skipped as done and exhausted as failed."""
    if "in_progress" in states:
        return "in_progress"
    if states & {"pending", "retry_later"}:
        return "pending"
    if states & {"failed", "exhausted"}:
        return "failed"
    if "cancelled" in states:
        return "cancelled"
    return "done"


def test_the_status_of_an_item_follows_from_the_states_of_its_stages(app):
    app.pipeline({"a": [], "b": []}, max_attempts=1)
    pairs = {f"{one} and {two}": (one, two) for one, two in combinations_with_replacement(PUT, 2)}
    app.add(pairs)
    for lease in app.claim(stage="a", most=100):
        PUT[pairs[lease.key][0]](app, lease)
    for lease in app.claim(stage="b", most=100):
        PUT[pairs[lease.key][1]](app, lease)
    for key, (one, two) in pairs.items():
        assert app.states(key) == {"a": one, "b": two}
        assert app.status(key) == expected({one, two}), key


def test_an_item_whose_next_stage_has_not_begun_yet_is_pending_until_it_has(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    seen = [app.status("x")]
    for _ in range(2):
        [lease] = app.claim()
        seen.append(app.status("x"))
        app.complete(lease)
        seen.append(app.status("x"))
    assert seen == ["pending", "in_progress", "pending", "in_progress", "done"]


def test_an_item_that_goes_straight_through_is_in_progress_until_it_is_done(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    [lease] = app.claim()
    [moved] = app.complete(lease, onward=["b"])
    assert app.status("x") == "in_progress"
    app.complete(moved)
    assert app.status("x") == "done"


def test_a_failed_item_that_is_retried_is_pending_and_then_done(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.permanent(app.claim()[0])
    assert app.status("x") == "failed"
    app.retry()
    assert app.status("x") == "pending"
    app.run_through()
    assert app.status("x") == "done"


def test_every_item_has_one_status(app):
    app.pipeline({"a": [], "b": []})
    app.add(f"k{n}" for n in range(10))
    app.claim(stage="a", most=4)
    rows = app.query("SELECT key, status FROM holdfast_item_status")
    assert len(rows) == len(dict(rows)) == 10
