"""Work on hold: no claim sees it, and a person lets it run or sets it aside."""

from __future__ import annotations

import pytest

from holdfast.engine import show_item
from holdfast.engine.why import Why
from holdfast.errors import LeaseLost
from tests.support.harness import App

pytestmark = pytest.mark.req("V1")


@pytest.fixture
def app(store, clock):
    return App(store, clock)


def why(app: App, key: str) -> dict[str, object]:
    return app.store.read(lambda tx: Why(tx, key, None).answer())


def test_work_on_hold_is_claimed_by_nobody_until_a_person_lets_it_run(app):
    app.pipeline({"a": []})
    app.add(["one", "two"])
    assert app.hold("a", "one", "too dear") == 1
    assert (app.states("one"), app.status("one")) == ({"a": "on_hold"}, "on_hold")
    assert [lease.key for lease in app.claim(most=5)] == ["two"]
    assert (why(app, "one")["reason"], "too dear" in str(why(app, "one")["text"])) == ("on_hold", True)
    assert app.retry(states=["on_hold"]) == {"on_hold": 1}
    assert [lease.key for lease in app.claim(most=5)] == ["one"]
    assert app.history("one") == ["held", "retried"]
    assert app.counts() == app.recount()


def test_a_retry_of_what_failed_leaves_what_is_on_hold(app):
    app.pipeline({"a": []})
    app.add(["one"])
    app.hold("a", "one")
    assert app.retry() == {}
    assert app.states("one") == {"a": "on_hold"}


@pytest.mark.req("V3", "V6")
def test_an_attempt_that_comes_upon_a_call_in_doubt_puts_its_item_on_hold_and_costs_nothing(app):
    app.pipeline({"a": []})
    app.add(["one"])
    [late] = app.claim()
    app.clock.advance(3600)
    app.reap()
    with pytest.raises(LeaseLost):
        app.hold_in_doubt(late)
    assert app.states("one") == {"a": "pending"}, "whoever has lost the lease puts nothing on hold"
    [lease] = app.claim("v")
    assert lease.attempt == 2
    app.hold_in_doubt(lease)
    [held] = app.store.read(lambda tx: show_item.show(tx, "one", None)["stages"])
    assert (held["state"], held["attempts"], held["error"]) == ("on_hold", 1, "a call may have been made")
    assert app.claim("v") == []
    assert app.history("one")[-1] == "held"
    assert app.counts() == app.recount()


def test_work_on_hold_can_be_cancelled(app):
    app.pipeline({"a": []})
    app.add(["one"])
    app.hold("a", "one")
    assert app.cancel(states=["on_hold"]) == {"on_hold": 1}
    assert app.states("one") == {"a": "cancelled"}
    assert app.counts() == app.recount()


def test_a_rerun_on_hold_hides_its_outcome_and_shows_it_again_when_it_is_cancelled(app):
    app.pipeline({"a": []})
    app.add(["one"])
    app.run_through({"n": 1})
    app.retry(states=["done"])
    app.hold("a", "one")
    assert app.states("one") == {"a": "on_hold"}
    assert app.retry(states=["done"]) == {}, "it is open, and open once"
    app.cancel()
    assert app.states("one") == {"a": "done"}
    assert app.counts() == app.recount()


def test_a_stage_on_hold_is_not_begun_a_second_time_by_what_comes_before_it(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["one"])
    [lease] = app.claim()
    app.complete(lease, 1)
    app.hold("b", "one")
    app.pipeline({"a": [], "b": ["a"], "c": ["b"]}, version="2")
    app.backfill()
    app.retry(states=["done"], stage="a")
    [lease] = app.claim(stage="a")
    app.complete(lease, 2, version="2")
    assert app.states("one") == {"a": "done", "b": "on_hold"}
    assert app.counts() == app.recount()
