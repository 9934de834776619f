"""Admitting: a claim takes rate, slots, units and money in its own transaction, and no more work than fits."""

from __future__ import annotations

import pytest

from holdfast.engine.claim_within_limits import Weight, claim_within_limits
from tests.support.harness import connected
from tests.support.limits import CENT, SECOND, STATEMENTS, UNIT, Limited, over, statements
from tests.support.together import at_once

pytestmark = pytest.mark.req("J14", "V11")


@pytest.fixture
def app(store, clock):
    return Limited(store, clock)


# Rate ----------------------------------------------------------------------------------------------------------------


def test_a_claim_takes_no_more_than_a_burst_and_says_when_the_next_is_free(app):
    app.limited({"rate": "10/s", "burst": 5}, items=20)
    admitted = app.admit(most=20)
    # One less than may be begun at once: between a grant and the call lies a hand-over.
    assert len(admitted.leases) == 4
    assert admitted.blocked == ("rate", "resource 'api' may be used 10/s", app.clock.now() + SECOND // 10, "api")
    assert not admitted.dry
    assert app.counts() == {"work": {"pending": 16, "in_progress": 4}} == app.recount()


def test_the_next_is_let_in_when_it_was_said_and_not_before(app):
    app.limited({"rate": "10/s", "burst": 5}, items=20)
    until = app.admit(most=20).blocked.until
    app.clock.advance((until - app.clock.now()) / SECOND - 0.000_001)
    assert app.begin() == []
    app.clock.advance(0.000_001)
    assert len(app.begin(20)) == 1


@pytest.mark.fault(64)
def test_over_any_window_all_workers_together_begin_no_more_than_the_rate_and_a_burst(app):
    app.limited({"rate": "20/s", "burst": 5}, items=500)
    began = []
    with connected(app) as other:
        for step in range(600):
            who = (app, other)[step % 2]
            began += [app.clock.now() / SECOND] * len(who.begin(1 + step % 7, worker=f"w{step % 5}"))
            app.clock.advance((0.001, 0.013, 0.0, 0.1, 0.02)[step % 5])
    seconds = began[-1] - began[0]
    assert over(began, 20, 5) <= 0
    assert len(began) >= 0.95 * 20 * seconds


def test_a_resource_is_shared_by_every_stage_and_pipeline(app):
    app.limited({"rate": "10/s", "burst": 4}, stages={"work": [], "more": []}, items=10)
    assert len(app.begin(2, stage="work")) == 2
    app.limited(None, name="q", items=10)
    assert len(app.begin(5, stage="work")) == 1
    app.name = "p"
    blocked = app.admit(stage="more").blocked
    assert blocked is not None and blocked.reason == "rate"


def test_only_those_who_were_let_in_count(app):
    """A claim that finds less work than would have been allowed uses up no more than it found."""
    app.limited({"rate": "10/s", "burst": 5}, items=2)
    admitted = app.admit(most=20)
    assert (len(admitted.leases), admitted.dry) == (2, True)
    app.add(["more-1", "more-2", "more-3"])
    assert len(app.begin(20)) == 2


def test_nothing_to_do_is_no_obstacle_and_takes_nothing(app):
    app.limited({"rate": "10/s", "burst": 5}, items=0)
    for _ in range(10):
        assert app.admit(most=3) == ([], None, True)
    app.add(["x", "y", "z"])
    assert len(app.begin(3)) == 3


def test_a_lower_rate_counts_from_the_next_claim_on(app):
    app.limited({"rate": "100/s", "burst": 1}, items=20)
    assert len(app.begin()) == 1
    app.declare({"api": {"rate": "1/s", "burst": 1}})
    app.clock.advance(0.02)
    assert len(app.begin()) == 1
    app.clock.advance(0.5)
    assert app.begin() == []
    app.clock.advance(0.5)
    assert len(app.begin()) == 1


def test_a_pipeline_and_a_stage_have_limits_of_their_own_and_all_must_agree(app):
    app.limited({"concurrency": 8}, stages={"work": [], "more": []}, items=20)
    app.declare({}, p={"concurrency": 3, "stages": {"work": {"concurrency": 2}}})
    admitted = app.admit(10, stage="work")
    assert len(admitted.leases) == 2
    assert admitted.blocked.text == "stage 'work' has all its 2 slots in use"
    admitted = app.admit(10, stage="more")
    assert len(admitted.leases) == 1
    assert admitted.blocked.text == "pipeline 'p' has all its 3 slots in use"


def test_limits_of_a_pipeline_need_no_resource(app):
    app.pipeline({"work": []})
    app.add(f"k{n}" for n in range(5))
    app.declare({}, p={"rate": "1/s", "burst": 1})
    assert len(app.begin(5)) == 1


# Slots ---------------------------------------------------------------------------------------------------------------


def test_slots_are_held_by_leases_and_free_with_them(app):
    app.limited({"concurrency": 3})
    leases = app.begin(10)
    assert len(leases) == 3
    blocked = app.admit().blocked
    assert (blocked.reason, blocked.until) == ("concurrency", None)
    app.end(leases[0])
    app.fail(leases[1], delay=60)
    app.release(leases[2])
    assert len(app.begin(10)) == 3
    assert app.limit()["in_use"] == 3


@pytest.mark.fault(69)
def test_the_slots_of_a_dead_worker_are_free_as_soon_as_its_leases_are(app):
    app.limited({"concurrency": 2})
    assert len(app.begin(2, worker="dead")) == 2
    app.clock.advance(31)
    assert app.begin(worker="w") == []
    app.join("w")
    app.reap()
    assert app.limit()["in_use"] == 0
    assert len(app.begin(5, worker="w")) == 2


def test_slots_that_a_person_takes_away_are_free(app):
    app.limited({"concurrency": 2})
    app.begin(2)
    app.cancel(key="k0")
    assert len(app.begin(5)) == 1


def test_work_that_went_on_to_a_stage_without_the_resource_holds_no_slot_of_it(app):
    app.pipeline({"work": [], "free": ["work"]}, only={"work": {"resources": ("api",)}})
    app.declare({"api": {"concurrency": 1}})
    app.add(["x", "y"])
    [lease] = app.begin(2)
    [moved] = app.complete(lease, onward=["free"])
    assert moved.id == lease.id
    assert len(app.begin(2)) == 1


def test_two_who_claim_at_the_same_moment_do_not_share_a_slot(app):
    app.limited({"concurrency": 5}, items=200)
    with connected(app) as second, connected(app) as third:
        counts = at_once(*(lambda one=one: _claims(one) for one in (app, second, third)))
    assert sum(counts) == 5
    assert app.counts() == {"work": {"pending": 195, "in_progress": 5}} == app.recount()


def _claims(app):
    return sum(len(app.begin(1, worker=f"w{id(app)}")) for _ in range(10))


# Units ---------------------------------------------------------------------------------------------------------------


def test_units_are_set_aside_by_what_each_item_is_expected_to_use(app):
    app.limited({"units": {"tokens": "100/s"}}, items=4)
    weighed = {f"k{n}": Weight(0, {"tokens": tokens}) for n, tokens in enumerate((50, 40, 30, 5))}
    admitted = app.admit(4, weighed=weighed)
    assert [lease.key for lease in admitted.leases] == ["k0", "k1"]
    assert [lease.units for lease in admitted.leases] == [{"tokens": 50}, {"tokens": 40}]
    # k2 needs 30 of a hundred, ten are left: the other twenty come in a fifth of a second.
    assert admitted.blocked[:3] == ("units", "resource 'api' has used up its tokens", app.clock.now() + SECOND // 5)


def test_an_item_heavier_than_a_burst_goes_alone_and_all_of_it_is_waited_for(app):
    app.limited({"units": {"tokens": "100/s"}}, items=3)
    weighed = {"k0": Weight(0, {"tokens": 1000}), "k1": Weight(0, {"tokens": 100})}
    admitted = app.admit(2, weighed=weighed)
    assert [lease.key for lease in admitted.leases] == ["k0"]
    assert admitted.blocked.until == app.clock.now() + 10 * SECOND


def test_items_that_somebody_else_has_taken_meanwhile_use_nothing(app):
    app.limited({"rate": "10/s", "burst": 4, "units": {"tokens": "100/s"}}, items=3)
    who, number = app.worker("w"), app.stage("work").id
    rows = app.store.read(lambda tx: tx.run("peek_waiting", stage=number, most=10))
    [taken] = app.begin(1, units={"tokens": 50})
    peeked = [(item, Weight(0, {"tokens": 50})) for item, *_ in rows]
    admitted = app.store.write(lambda tx: claim_within_limits(tx, who.id, number, 3, Weight(), peeked), slot=who.id)
    # One is gone, the second is let in with the 50 that are left, the third does not fit.
    assert taken.key == "k0"
    assert [lease.key for lease in admitted.leases] in (["k1"], [])
    assert app.counts() == app.recount()


# Budgets -------------------------------------------------------------------------------------------------------------


def test_what_is_expected_to_be_spent_is_set_aside_and_no_more_begins_than_fits(app):
    app.limited({"budget": "1.00"})
    admitted = app.admit(10, money=40 * CENT)
    assert len(admitted.leases) == 2
    assert admitted.blocked == (
        "budget",
        "resource 'api' has a budget of 1.00: 0.00 spent, 0.80 set aside for running work, 0.40 more would not fit",
        None,
        "api",
    )
    assert (app.limit()["set_aside"], app.limit()["spent"]) == (80 * CENT, 0)


def test_when_the_next_does_not_fit_the_resource_stands_still_with_a_reason_and_says_so_once(app):
    app.limited({"budget": "1.00"})
    app.begin(10, money=40 * CENT)
    for _ in range(3):
        assert app.admit(money=40 * CENT).leases == []
    told = app.limit()
    assert (told["paused"], told["paused_until"]) == (True, None)
    assert told["reason"].endswith("0.40 more would not fit")
    assert [event["resource"] for event in app.told("budget_reached")] == ["api"]


def test_what_fits_exactly_fits(app):
    app.limited({"budget": "1.20"})
    assert len(app.begin(10, money=40 * CENT)) == 3
    assert app.begin(1) == []


def test_a_budget_that_is_used_up_stops_also_what_costs_nothing(app):
    app.limited({"budget": "0.40"})
    [lease] = app.begin(1, money=40 * CENT)
    app.end(lease, cost=40 * CENT)
    assert app.admit().blocked.reason == "budget"


@pytest.mark.fault(66)
def test_money_that_was_set_aside_and_not_spent_can_be_spent_by_others(app):
    app.limited({"budget": "1.00"})
    leases = app.begin(10, money=40 * CENT)
    for lease in leases:
        app.end(lease, cost=10 * CENT)
    assert (app.limit()["spent"], app.limit()["set_aside"]) == (20 * CENT, 0)
    assert len(app.begin(10, money=40 * CENT)) == 2
    assert not app.limit()["paused"]


@pytest.mark.fault(54, 66)
@pytest.mark.req("J10")
@pytest.mark.parametrize(
    ("zone", "hours"), [("UTC", 16), ("America/New_York", 21), ("Australia/Lord_Howe", 5), ("Asia/Kathmandu", 10.25)]
)
def test_a_budget_per_day_begins_anew_when_the_day_does_where_its_author_lives(app, zone, hours):
    """The clock of the test stands at 08:00 UTC on the 15th of January 2027."""
    app.limited({"budget_per_day": "0.50", "zone": zone})
    [lease] = app.begin(1, money=40 * CENT)
    app.end(lease, cost=40 * CENT)
    blocked = app.admit(money=40 * CENT).blocked
    assert blocked.reason == "budget" and "0.50 per day: 0.40 spent" in blocked.text
    assert blocked.until == app.clock.now() + round(hours * 3600) * SECOND == app.limit()["paused_until"]
    app.clock.advance(hours * 3600 - 0.000_001)
    assert app.begin(money=40 * CENT) == []
    app.clock.advance(0.000_001)
    assert len(app.begin(money=40 * CENT)) == 1
    assert (app.limit()["spent"], app.limit()["spent_today"], app.limit()["paused"]) == (40 * CENT, 0, False)


@pytest.mark.req("J10")
def test_a_budget_in_all_stands_beside_the_one_per_day(app):
    app.limited({"budget_per_day": "1.00", "budget": "1.50"}, items=20)
    for spent in (2, 1, 0):
        leases = app.begin(10, money=50 * CENT)
        assert len(leases) == spent
        for lease in leases:
            app.end(lease, cost=50 * CENT)
        app.clock.advance(86400)
    blocked = app.admit(money=50 * CENT).blocked
    assert (blocked.until, "a budget of 1.50:" in blocked.text) == (None, True)


def test_a_budget_stop_tells_what_is_spent_now(app):
    """Not what was only set aside when it was reached first."""
    app.limited({"budget": 1}, items=4)
    [lease] = app.begin(money=60 * CENT)
    assert app.begin(money=60 * CENT) == []
    assert "0.00 spent, 0.60 set aside for running work" in app.limit()["reason"]
    app.end(lease, cost=60 * CENT)
    assert app.begin(money=60 * CENT) == []
    assert "0.60 spent, 0.60 more would not fit" in app.limit()["reason"]
    assert len(app.told("budget_reached")) == 1


def test_a_higher_budget_lets_work_go_on(app):
    app.limited({"budget": "0.50"})
    app.begin(10, money=40 * CENT)
    assert app.admit(money=40 * CENT).blocked.reason == "budget"
    app.tune({"api.budget": "0.90"})
    assert not app.limit()["paused"]
    assert len(app.begin(10, money=40 * CENT)) == 1


@pytest.mark.fault(66)
def test_many_who_claim_at_the_same_moment_never_set_aside_more_than_there_is(app):
    app.limited({"budget": "10.00"}, items=200)
    others = [app.beside() for _ in range(3)]
    try:
        at_once(
            *(
                lambda one=one: [one.begin(2, worker=f"w{id(one)}", money=40 * CENT) for _ in range(10)]
                for one in others
            )
        )
    finally:
        for other in others:
            other.store.close()
    assert app.limit()["set_aside"] == 25 * 40 * CENT == 10 * UNIT


# Cool-down, breaker, pause -------------------------------------------------------------------------------------------


def test_each_obstacle_is_named_with_when_it_clears(app):
    app.limited({"breaker": {"failures": 1, "probe_after": "60s"}}, items=10)
    first, second, third = app.begin(3)
    assert app.why("k9")["reason"] == "queue"
    app.fail(first)
    why = app.why("k9")
    assert (why["reason"], why["until"], why["resource"]) == ("breaker", app.clock.now() + 60 * SECOND, "api")
    assert why["text"] == "resource 'api' fails too often; it is tried again later"
    app.rate_limited(second, after=90)
    why = app.why("k9")
    assert (why["reason"], why["until"]) == ("cool_down", app.clock.now() + 90 * SECOND)
    app.pause("api", resource=True, seconds=120, reason="audit")
    why = app.why("k9")
    assert (why["reason"], why["until"]) == ("paused", app.clock.now() + 120 * SECOND)
    assert why["text"] == "resource 'api' is paused: audit"
    app.pause("p", seconds=150, reason="holiday")
    why = app.why("k9")
    assert (why["reason"], why["until"]) == ("paused", app.clock.now() + 150 * SECOND)
    assert why["text"] == "pipeline 'p' is paused: holiday"
    assert why["do"] == "to let it go on: holdfast resume p"
    app.end(third)


@pytest.mark.parametrize(
    ("allowed", "weight", "reason"),
    [
        ({"rate": "1/min", "burst": 1}, {}, "rate"),
        ({"concurrency": 1}, {}, "concurrency"),
        ({"units": {"tokens": "1/s"}}, {"units": {"tokens": 60}}, "units"),
        ({"budget_per_day": "0.50"}, {"money": 40 * CENT}, "budget"),
        ({"budget": "0.50"}, {"money": 40 * CENT}, "budget"),
    ],
)
def test_why_names_what_is_used_up(app, allowed, weight, reason):
    app.limited(allowed)
    assert len(app.begin(1, **weight)) == 1
    blocked = app.admit(**weight).blocked
    why = app.why("k5")
    assert (why["reason"], why.get("resource")) == (reason, "api")
    assert "api" in why["text"]
    # What the next item will use is not known to who asks: it may be lighter.
    assert why["until"] == blocked.until or (reason == "units" and app.clock.now() < why["until"] <= blocked.until)


def test_a_probe_is_one_attempt_whatever_was_asked_for(app):
    app.limited({"breaker": {"failures": 1, "probe_after": "60s"}}, items=10)
    app.fail(app.begin()[0])
    app.clock.advance(60)
    admitted = app.admit(10)
    assert len(admitted.leases) == 1
    assert admitted.blocked[:3] == (
        "breaker",
        "resource 'api' fails too often; one attempt is finding out whether it works again",
        None,
    )
    assert app.begin(10) == []
    app.end(admitted.leases[0])
    assert len(app.begin(5)) == 5


def test_a_probe_that_finds_nothing_to_do_is_none(app):
    app.limited({"breaker": {"failures": 1, "probe_after": "60s"}}, items=1)
    app.fail(app.begin()[0], delay=3600)
    app.clock.advance(60)
    assert app.begin() == []
    app.add(["new"])
    assert len(app.begin()) == 1


# A clock that is set -------------------------------------------------------------------------------------------------

HOUR = 3600


@pytest.mark.fault(52)
@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("what", ["rate", "units", "cool_down", "breaker", "paused"])
def test_setting_the_time_of_day_makes_no_limit_clear_earlier_or_later(app, what, hours):
    app.limited(
        {
            "rate": {"rate": "1/min", "burst": 1},
            "units": {"units": {"tokens": "1/s"}},
            "breaker": {"breaker": {"failures": 1, "probe_after": "60s"}},
        }.get(what, {})
    )
    app.promote()
    [lease] = app.begin(units={"tokens": 60} if what == "units" else None)
    if what == "breaker":
        app.fail(lease)
    elif what == "cool_down":
        app.rate_limited(lease, after=60)
    elif what == "paused":
        app.pause("api", resource=True, seconds=60)
    weight = {"units": {"tokens": 60}} if what == "units" else {}
    app.clock.advance(10)
    app.clock.set_wall(hours * HOUR)
    app.promote()
    assert app.admit(**weight).blocked.reason == what
    app.clock.advance(49)
    assert app.admit(**weight).blocked.reason == what
    app.clock.advance(1.1)
    assert len(app.begin(**weight)) == 1


# Who does not use a resource -----------------------------------------------------------------------------------------


def test_a_stage_without_a_resource_pays_nothing(app):
    """Not one statement more, from the claim to the end, also beside a pipeline that is limited."""
    app.limited({"rate": "10/s", "budget": "1.00"}, name="q")
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x", "y", "z", "dead", "more"])
    app.claim(most=0)
    with statements() as run:
        done, failed, back, _ = app.claim(most=4)
        app.complete(done, onward=["b"])
        app.fail(failed)
        app.release(back)
        app.kill("w")
    assert run["claim"] and not STATEMENTS & run.keys()


def test_a_claim_pays_only_for_the_kinds_of_limit_that_there_are(app):
    app.limited({"rate": "1000/s"}, items=100)
    app.begin()
    with statements() as run:
        app.begin()
    assert {name for name in run if name in STATEMENTS} == {"lock_gates", "read_buckets", "save_buckets"}


def test_what_a_claim_costs_does_not_grow_with_what_it_takes(app):
    app.limited({"rate": "1000/s", "budget": "1000", "concurrency": 500, "breaker": True}, items=300)
    app.begin(money=CENT)
    with statements() as few:
        app.begin(2, money=CENT)
    with statements() as many:
        app.begin(200, money=CENT)
    assert few == many
