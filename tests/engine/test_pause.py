"""Pausing: a person lets a pipeline or a resource stand still, with a reason and until a time; it is resumed by a person, or by
the time."""

from __future__ import annotations

import pytest

from holdfast.engine import status
from holdfast.errors import UsageError
from tests.support.limits import SECOND, Limited

pytestmark = pytest.mark.req("J11")


@pytest.fixture
def app(store, clock):
    return Limited(store, clock)


def four_facts(app):
    [pipeline] = [one for one in app.store.read(status.status) if one["name"] == "p"]
    return {name: pipeline[name] for name in ("paused", "reason", "paused_until", "paused_at")}


def test_a_pause_is_four_facts(app):
    app.limited(None)
    assert four_facts(app) == {"paused": False, "reason": None, "paused_until": None, "paused_at": None}
    begun = app.clock.now()
    app.pause("p", seconds=60, reason="holiday")
    assert four_facts(app) == {
        "paused": True,
        "reason": "holiday",
        "paused_until": begun + 60 * SECOND,
        "paused_at": begun,
    }
    app.clock.advance(5)
    assert app.resume("p", reason="back")
    assert four_facts(app) == {"paused": False, "reason": None, "paused_until": None, "paused_at": begun + 5 * SECOND}
    assert [(event["data"]["by"], event["data"]["reason"]) for event in app.told("paused")] == [("me", "holiday")]
    assert [(event["data"]["by"], event["data"]["reason"]) for event in app.told("resumed")] == [("me", "back")]


@pytest.mark.req("V12")
@pytest.mark.fault(82)
def test_the_reason_of_a_pause_is_kept_without_its_secrets(app):
    app.limited(None)
    app.pause("p", reason="password=hunter22 was refused")
    assert four_facts(app)["reason"] == "password=*** was refused"


def test_a_pause_without_a_time_ends_by_a_person_only(app):
    app.limited(None)
    app.pause("p")
    app.clock.advance(10 * 365 * 86400)
    assert app.end_pauses() == 0
    assert app.state_of().paused and app.state_of().retry_after is None
    assert app.resume("p")


def test_a_pause_with_a_time_ends_by_itself_and_says_so(app):
    app.limited(None)
    app.pause("p", seconds=60)
    app.clock.advance(60 - 0.000_001)
    assert app.end_pauses() == 0
    app.clock.advance(0.000_001)
    assert app.end_pauses() == 1
    assert not app.state_of().paused
    assert [event["data"]["reason"] for event in app.told("resumed")] == ["the pause is over"]
    assert app.end_pauses() == 0


def test_paused_again_the_last_word_counts(app):
    app.limited(None)
    app.pause("p", seconds=60, reason="first")
    app.pause("p", reason="second")
    state = app.state_of()
    assert (state.reason, state.retry_after) == ("second", None)


def test_resuming_what_was_not_paused_changes_nothing(app):
    app.limited({})
    assert not app.resume("p")
    assert not app.resume("api", resource=True)
    assert app.told("resumed") == []


@pytest.mark.parametrize("resource", [False, True])
def test_what_is_not_there_can_be_neither_paused_nor_resumed(app, resource):
    app.limited({})
    what, there = ("resource", "api") if resource else ("pipeline", "p")
    for act in (app.pause, app.resume):
        with pytest.raises(UsageError, match=f"there is no {what} 'x' in this store; there are: {there}"):
            act("x", resource=resource)


@pytest.mark.parametrize("resource", [False, True])
def test_a_pause_must_end_in_the_future(app, resource):
    app.limited({})
    with pytest.raises(UsageError, match="a pause must end in the future"):
        app.pause("api" if resource else "p", seconds=0, resource=resource)
    assert not app.state_of().paused and not app.limit()["paused"]


def test_who_uses_a_paused_resource_waits_and_whoever_does_not_goes_on(app):
    app.limited({})
    app.pipeline({"free": []}, name="q")
    app.add(["x"])
    app.pause("api", resource=True, reason="audit")
    assert len(app.claim()) == 1
    app.name = "p"
    assert app.admit().blocked.reason == "paused"
    assert app.limit()["reason"] == "audit"


def test_a_paused_resource_goes_on_when_its_time_has_come(app):
    app.limited({})
    app.pause("api", resource=True, seconds=60, reason="audit")
    app.clock.advance(60)
    told = app.limit()
    assert (told["paused"], told["reason"], told["paused_until"]) == (False, None, None)
    assert len(app.begin()) == 1
    assert not app.limit()["paused"]


def test_work_in_hand_comes_to_its_end(app):
    app.limited({})
    first, second = app.begin(2)
    app.pause("p")
    app.pause("api", resource=True)
    app.end(first)
    app.fail(second, delay=1)
    assert app.states("k0") == {"work": "done"}


def test_resuming_a_resource_ends_whatever_holds_it_back(app):
    app.limited(
        {"rate": "1/hour", "burst": 2, "units": {"tokens": "1/hour"}, "breaker": {"failures": 1, "probe_after": "1h"}}
    )
    [lease] = app.begin(units={"tokens": 1})
    app.fail(lease)
    assert app.resume("api", resource=True, reason="repaired")
    [lease] = app.begin(units={"tokens": 1})
    app.rate_limited(lease, after=3000)
    assert app.admit().blocked.reason == "cool_down"
    assert app.resume("api", resource=True)
    assert len(app.begin(1, units={"tokens": 1})) == 1


def test_what_began_before_a_breaker_was_reset_by_a_person_does_not_vote(app):
    app.limited({"breaker": {"failures": 2, "probe_after": "1h"}})
    old = app.begin(6)
    for lease in old[:2]:
        app.fail(lease)
    app.resume("api", resource=True)
    for lease in old[2:]:
        app.fail(lease)
    assert app.limit()["breaker"] == "closed"


ODD_TEXTS = {
    "NUL": "a\0b",
    "a lone surrogate": "a\ud800b",
    "markup": "<script>",
    "much": "x" * 100_000,
    "newlines": "a\nb",
}


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("name", ODD_TEXTS)
def test_any_reason_can_be_kept_alike_on_both_databases(app, name, resource):
    app.limited({})
    app.pause("api" if resource else "p", reason=ODD_TEXTS[name], resource=resource)
    reason = app.limit()["reason"] if resource else app.state_of().reason
    assert reason and "\0" not in reason and len(reason) < 20_000
    assert app.resume("api" if resource else "p", reason=ODD_TEXTS[name], resource=resource)
    assert len(app.told("paused")) == len(app.told("resumed")) == 1


@pytest.mark.fault(52)
@pytest.mark.parametrize("hours", [1, -1])
def test_setting_the_time_of_day_makes_no_pause_shorter_or_longer(app, hours):
    app.limited({})
    app.promote()
    app.pause("p", seconds=60)
    app.clock.advance(10)
    app.clock.set_wall(hours * 3600)
    app.promote()
    app.clock.advance(49)
    assert app.end_pauses() == 0
    app.clock.advance(1.1)
    assert app.end_pauses() == 1
