"""Settling: what the end of an attempt means for those to come. Units and money are put right, a provider that asked for a
pause gets it from everyone, and failures open a breaker that one probe may close."""

from __future__ import annotations

import contextlib
import threading

import pytest

from holdfast import points
from holdfast.engine.complete import complete
from holdfast.engine.fail import fail
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.engine.pause import end_pauses
from holdfast.engine.resource_state import lock_resources
from holdfast.errors import LeaseLost, StoreConflict
from holdfast.model.budget_day import next_day_at
from holdfast.model.states import State
from holdfast.store.commit_once import Write
from tests.support.harness import connected
from tests.support.limits import CENT, SECOND, Limited
from tests.support.together import at_once, listening

pytestmark = pytest.mark.req("V11")


@pytest.fixture
def app(store, clock):
    return Limited(store, clock)


# Units ---------------------------------------------------------------------------------------------------------------


@pytest.mark.req("J14")
@pytest.mark.parametrize(("used", "wait"), [(None, 0.5), (50, 0.5), (150, 1.5), (10, 0.1), (0, 0)])
def test_what_was_really_used_counts_instead_of_what_was_expected(app, used, wait):
    """Of 100 a second; the next needs all of it."""
    app.limited({"units": {"tokens": "100/s"}})
    [lease] = app.begin(units={"tokens": 50})
    app.end(lease, used={} if used is None else {"tokens": used})
    blocked = app.admit(units={"tokens": 100}).blocked
    assert (0 if blocked is None else blocked.until - app.clock.now()) == pytest.approx(wait * SECOND, abs=2)


@pytest.mark.req("J14")
def test_units_count_however_an_attempt_ends(app):
    app.limited({"units": {"tokens": "100/s"}})
    [lease] = app.begin()
    lease.units = {}
    app.end(lease, used={"tokens": 60, "images": 3})
    blocked = app.admit(units={"tokens": 100}).blocked
    assert blocked.until - app.clock.now() == pytest.approx(0.6 * SECOND, abs=2)


# Cool-down -----------------------------------------------------------------------------------------------------------


@pytest.mark.fault(63)
def test_a_rate_limit_lets_everyone_wait_until_the_time_that_was_told_and_spends_no_attempt(app):
    app.limited({}, stages={"work": [], "more": []})
    [lease] = app.begin()
    app.rate_limited(lease, after=45, delay=46)
    assert app.row("k0", "work")["attempts"] == 0
    until = app.clock.now() + 45 * SECOND
    assert app.limit()["cool_until"] == until
    with connected(app) as other:
        for who, stage in ((app, "work"), (app, "more"), (other, "work")):
            assert who.admit(stage=stage, worker="other").blocked == (
                "cool_down",
                "resource 'api' asked for a pause and is cooling down",
                until,
                "api",
            )
    app.clock.advance(45 - 0.000_001)
    assert app.begin() == []
    app.clock.advance(0.000_001)
    assert len(app.begin(5)) == 5


@pytest.mark.fault(63)
def test_of_two_deadlines_the_later_wins(app):
    app.limited({})
    first, second, third = app.begin(3)
    begun = app.clock.now()
    app.rate_limited(first, after=60)
    app.rate_limited(second, after=10)
    assert app.limit()["cool_until"] == begun + 60 * SECOND
    app.rate_limited(third, after=90)
    assert app.limit()["cool_until"] == begun + 90 * SECOND
    assert [event["data"]["until"] - begun for event in app.told("cooled_down")] == [60 * SECOND, 90 * SECOND]


@pytest.mark.fault(63)
def test_a_rate_limit_without_a_time_cools_for_as_long_as_the_resource_says_and_none_for_longer_than_it_allows(app):
    app.limited({"cool": "20s", "cool_most": "100s"})
    first, second = app.begin(2)
    app.rate_limited(first)
    assert app.limit()["cool_until"] == app.clock.now() + 20 * SECOND
    app.rate_limited(second, after=86400)
    assert app.limit()["cool_until"] == app.clock.now() + 100 * SECOND


def test_lowering_the_longest_cool_down_does_not_end_one_that_runs(app):
    app.limited({})
    app.rate_limited(app.begin()[0], after=3000)
    app.tune({"api.cool_most": "10m"})
    assert app.admit().blocked.reason == "cool_down"


def test_a_rate_limit_means_what_lies_outside_and_not_limits_of_our_own(app):
    app.limited({}, stages={"work": [], "more": []}, uses=("api",))
    app.declare({}, p={"concurrency": 10})
    app.rate_limited(app.begin()[0], after=60)
    assert app.limits()["@p"]["cool_until"] is None


def test_a_resource_without_limits_can_be_cooled_down(app):
    app.limited({})
    app.rate_limited(app.begin()[0], after=60)
    assert app.admit().blocked.reason == "cool_down"


def test_a_late_rate_limit_of_a_lost_lease_changes_nothing(app):
    app.limited({})
    [lease] = app.begin(worker="late")
    app.kill("late")
    app.rate_limited(lease, after=60)
    assert app.limit()["cool_until"] is None
    with pytest.raises(LeaseLost):
        app.out_of_credit(lease)
    assert not app.limit()["paused"]


# Adaptive pace -------------------------------------------------------------------------------------------------------


def test_an_adaptive_pace_is_halved_once_for_all_that_ran_at_it_and_grows_back_slowly(app):
    app.limited({"rate": "10/s", "burst": 100, "adaptive": True}, items=200)
    leases = app.begin(5)
    app.clock.advance(1)
    app.rate_limited(*leases[:3], after=1)
    assert app.limit()["pace"] == 0.5
    app.rate_limited(leases[3], after=1)
    assert app.limit()["pace"] == 0.5
    app.clock.advance(2)
    app.rate_limited(*app.begin(1), after=1)
    assert app.limit()["pace"] == pytest.approx(0.25, abs=0.01)
    app.clock.advance(60)
    assert 0.3 < app.limit()["pace"] < 0.4
    app.clock.advance(600)
    assert app.limit()["pace"] == 1


def test_at_half_the_pace_half_as_many_begin(app):
    app.limited({"rate": "10/s", "burst": 1, "adaptive": True}, items=200)
    app.rate_limited(*app.begin(1), after=0.001)
    app.clock.advance(1)
    pace, began = app.limit()["pace"], 0
    for _ in range(100):
        began += len(app.begin(5))
        app.clock.advance(0.1)
    assert pace < 0.51
    assert 50 <= began <= 53


def test_the_pace_never_falls_to_nothing(app):
    app.limited({"rate": "10/s", "adaptive": True}, items=50)
    for _ in range(30):
        app.clock.advance(10)
        app.rate_limited(*app.begin(1), after=0.001)
    assert 0.015 <= app.limit()["pace"] < 0.1


def test_without_adaptation_the_pace_stays(app):
    app.limited({"rate": "10/s"})
    app.rate_limited(*app.begin(2), after=1)
    assert app.limit()["pace"] == 1


# Breaker -------------------------------------------------------------------------------------------------------------

BREAKER = {"breaker": {"failures": 3, "minimum": 100, "probe_after": "60s"}}


@pytest.mark.req("J19")
@pytest.mark.fault(62)
def test_failures_in_a_row_stop_everyone_and_one_probe_finds_out(app):
    app.limited(BREAKER)
    for lease in app.begin(3):
        app.fail(lease, delay=3600)
    assert app.limit()["breaker"] == "open"
    assert app.admit().blocked.until == app.clock.now() + 60 * SECOND
    app.clock.advance(60)
    [probe] = app.begin(5)
    assert app.limit()["breaker"] == "probing"
    app.fail(probe, delay=3600)
    assert app.admit().blocked.until == app.clock.now() + 60 * SECOND
    app.clock.advance(60)
    [probe] = app.begin(5)
    app.end(probe)
    assert app.limit()["breaker"] == "closed"
    assert len(app.begin(5)) == 5
    opened = [(event["resource"], event["data"]["again"]) for event in app.told("breaker_opened")]
    assert opened == [("api", False), ("api", True)]
    assert [event["resource"] for event in app.told("breaker_closed")] == ["api"]


@pytest.mark.req("J19")
@pytest.mark.parametrize("scope", ["resource", "stage", "pipeline"])
def test_a_breaker_holds_back_what_it_belongs_to_and_nothing_else(app, scope):
    app.limited({}, stages={"work": [], "more": []}, items=20)
    app.limited(None, name="q", stages={"work": []})
    app.name = "p"
    if scope == "resource":
        app.declare({"api": BREAKER})
    else:
        app.declare({}, p=BREAKER if scope == "pipeline" else {"stages": {"work": BREAKER}})
    for lease in app.begin(3):
        app.fail(lease, delay=3600)
    assert app.begin(stage="work") == []
    assert bool(app.begin(stage="more")) == (scope == "stage")
    app.name = "q"
    assert bool(app.begin(stage="work")) == (scope != "resource")


@pytest.mark.req("J19")
def test_a_breaker_that_was_removed_is_not_shown_and_holds_nothing_back(app):
    app.limited({"breaker": {"failures": 2, "probe_after": "60s"}}, items=20)
    for lease in app.begin(2):
        app.fail(lease, delay=3600)
    assert app.limit()["breaker"] == "open" and app.begin() == []
    app.declare({"api": {"rate": "1000/s"}})
    assert (app.limit()["breaker"], app.limit()["failures"]) == ("closed", 0)
    assert len(app.begin(2)) == 2


@pytest.mark.req("J19")
def test_what_says_nothing_about_the_outside_does_not_vote(app):
    """A rate limit, no credit, a snooze, work handed back, an item that can never work."""
    app.limited({"breaker": {"failures": 2, "probe_after": "60s"}}, items=20)
    bad, *rest = app.begin(8)
    app.fail(bad)
    app.rate_limited(rest[0], after=0.001)
    app.snooze(rest[1], 1)
    app.release(rest[2])
    app.permanent(rest[3])
    app.rate_limited(rest[4], after=0.001)
    assert app.limit()["breaker"] == "closed"
    assert app.limit()["failures"] == 1
    app.fail(rest[5])
    assert app.limit()["breaker"] == "open"


@pytest.mark.req("J19")
@pytest.mark.fault(63)
def test_a_storm_of_rate_limits_never_opens_the_breaker(app):
    app.limited({"breaker": {"failures": 1, "share": 0.1, "minimum": 1, "probe_after": "60s"}}, items=100)
    for _ in range(20):
        app.rate_limited(*app.begin(5), after=1)
        app.clock.advance(1)
        app.promote()
    assert app.limit()["breaker"] == "closed"
    assert app.row("k0", "work")["attempts"] == 0


@pytest.mark.req("J19")
@pytest.mark.parametrize("worked", [True, False])
def test_results_of_calls_from_before_it_opened_do_not_vote(app, worked):
    app.limited(BREAKER, items=30)
    old = app.begin(10)
    for lease in old[:3]:
        app.fail(lease, delay=3600)
    (app.end if worked else app.fail)(old[3])
    assert app.limit()["breaker"] == "open"
    app.clock.advance(60)
    [probe] = app.begin(5)
    (app.end if worked else app.fail)(old[4])
    assert app.limit()["breaker"] == "probing"
    app.end(probe)
    for lease in old[5:]:
        (app.end if worked else app.fail)(lease)
    assert app.limit()["breaker"] == "closed"
    assert app.limit()["failures"] == 0


@pytest.mark.req("J19")
@pytest.mark.fault(65)
@pytest.mark.parametrize(
    "lost", ["its worker dies", "it is handed back", "it is cancelled", "it is rate limited", "it snoozes"]
)
def test_a_probe_that_finds_nothing_out_makes_room_for_another(app, lost):
    app.limited(BREAKER)
    for lease in app.begin(3):
        app.fail(lease, delay=3600)
    app.clock.advance(60)
    [probe] = app.begin(5, worker="prober")
    assert app.begin(5) == []
    if lost == "its worker dies":
        app.clock.advance(31)
        app.join("w")
        assert app.begin(5) == []
        app.reap()
    elif lost == "it is handed back":
        app.release(probe)
    elif lost == "it is cancelled":
        app.cancel(key=probe.key)
    elif lost == "it is rate limited":
        app.rate_limited(probe, after=1)
        app.clock.advance(1)
    else:
        app.snooze(probe, 1)
    assert len(app.begin(5)) == 1
    assert app.begin(5) == []


@pytest.mark.req("J19")
@pytest.mark.fault(65)
def test_two_who_would_probe_at_the_same_moment_are_one(app):
    app.limited(BREAKER, items=50)
    for lease in app.begin(3):
        app.fail(lease, delay=3600)
    app.clock.advance(60)
    with connected(app) as second, connected(app) as third:
        counts = at_once(*(lambda one=one: len(one.begin(5, worker=f"w{id(one)}")) for one in (app, second, third)))
    assert sum(counts) == 1


@pytest.mark.req("J19")
def test_an_item_that_runs_out_of_attempts_votes_as_every_failure_does(app):
    app.limited({"breaker": {"failures": 2, "probe_after": "60s"}}, max_attempts=1)
    for lease in app.begin(2):
        app.fail(lease)
    assert app.states("k0") == {"work": "exhausted"}
    assert app.limit()["breaker"] == "open"


# Money ---------------------------------------------------------------------------------------------------------------


@pytest.mark.req("J10")
def test_money_is_spent_when_it_is_recorded_and_no_longer_set_aside(app):
    app.limited({"budget": "10.00"})
    [lease] = app.begin(money=40 * CENT)
    app.intend(lease, estimate=40 * CENT)
    app.paid(lease, cost=38 * CENT)
    assert (app.limit()["spent"], app.limit()["set_aside"]) == (38 * CENT, 2 * CENT)
    app.end(lease, cost=1 * CENT)
    assert (app.limit()["spent"], app.limit()["set_aside"]) == (39 * CENT, 0)


@pytest.mark.req("J10")
@pytest.mark.parametrize("end", ["fail", "permanent", "release", "snooze"])
def test_money_that_was_spent_counts_however_the_attempt_ends(app, end):
    app.limited({"budget": "10.00"})
    [lease] = app.begin(money=40 * CENT)
    app.paid(lease, cost=38 * CENT)
    app.snooze(lease, 1) if end == "snooze" else getattr(app, end)(lease)
    assert (app.limit()["spent"], app.limit()["set_aside"]) == (38 * CENT, 0)


@pytest.mark.req("J10")
def test_a_payment_counts_for_the_resource_that_it_names_or_the_first_and_for_limits_of_our_own(app):
    app.limited({"budget": "10.00"}, uses=("api", "gpu"))
    app.declare({"gpu": {"budget": "10.00"}}, p={"budget": "10.00"})
    named, unnamed = app.begin(2)
    app.end(named, cost=5 * CENT, resource="gpu")
    assert {name: one["spent"] for name, one in app.limits().items()} == {"@p": 5 * CENT, "api": 0, "gpu": 5 * CENT}
    app.end(unnamed, cost=1 * CENT)
    assert {name: one["spent"] for name, one in app.limits().items()} == {
        "@p": 6 * CENT,
        "api": 1 * CENT,
        "gpu": 5 * CENT,
    }


@pytest.mark.req("J10")
def test_money_is_counted_on_the_day_on_which_it_was_spent(app):
    app.limited({"budget_per_day": "1.00"})
    [lease] = app.begin(money=40 * CENT)
    app.clock.advance(86400 - 30)
    app.join("w")
    app.paid(lease, cost=38 * CENT)
    assert (app.limit()["spent"], app.limit()["spent_today"]) == (38 * CENT, 38 * CENT)
    app.clock.advance(86400)
    assert (app.limit()["spent"], app.limit()["spent_today"]) == (38 * CENT, 0)


@pytest.mark.fault(66, 69)
def test_money_that_a_dead_worker_had_set_aside_is_free_as_soon_as_its_leases_are(app):
    app.limited({"budget": "1.00"})
    assert len(app.begin(5, worker="dead", money=40 * CENT)) == 2
    app.clock.advance(31)
    app.join("w")
    assert app.begin(money=40 * CENT) == []
    app.reap()
    assert (app.limit()["spent"], app.limit()["set_aside"]) == (0, 0)
    assert len(app.begin(5, money=40 * CENT)) == 2


@pytest.mark.fault(66)
@pytest.mark.parametrize("end", ["its worker dies", "it is handed back", "it is cancelled", "it fails"])
@pytest.mark.parametrize("estimate", [38 * CENT, None])
def test_money_that_may_have_been_spent_counts_as_spent(app, end, estimate):
    """A paid call was begun, and nobody knows what became of it. Without an estimate of its own, what was set aside counts."""
    app.limited({"budget": "1.00"})
    [lease] = app.begin(worker="dead", money=40 * CENT)
    app.intend(lease, estimate=estimate)
    if end == "its worker dies":
        app.kill("dead")
    elif end == "it is handed back":
        app.release(lease)
    elif end == "it is cancelled":
        app.cancel(key=lease.key)
    else:
        app.fail(lease)
    counted = 40 * CENT if estimate is None else estimate
    assert (app.limit()["spent"], app.limit()["set_aside"]) == (counted, 0)
    assert [event["data"]["counted"] for event in app.told("money_in_doubt")] == [counted]
    assert len(app.begin(5, money=40 * CENT)) == 1


@pytest.mark.fault(66)
def test_money_in_doubt_is_counted_once_for_each_call_that_may_have_been_made(app):
    app.limited({"budget": "10.00"})
    [lease] = app.begin(worker="dead", money=40 * CENT)
    app.intend(lease, "first", 10 * CENT)
    app.paid(lease, "first", 9 * CENT)
    app.intend(lease, "second", 20 * CENT)
    app.kill("dead")
    app.reap()
    assert app.limit()["spent"] == 29 * CENT
    [lease] = app.begin(worker="next", money=40 * CENT)
    app.kill("next")
    assert app.limit()["spent"] == 29 * CENT


@pytest.mark.fault(66)
def test_an_attempt_that_ended_well_leaves_no_doubt(app):
    app.limited({"budget": "10.00"})
    [lease] = app.begin(money=40 * CENT)
    app.intend(lease, estimate=40 * CENT)
    app.paid(lease, cost=38 * CENT)
    app.end(lease)
    assert app.limit()["spent"] == 38 * CENT
    assert app.told("money_in_doubt") == []


def test_money_set_aside_does_not_outlive_the_stage_it_was_set_aside_for(app):
    """The lease goes on to a stage that pays nothing; meanwhile the budget was taken away, and given again."""
    app.pipeline({"work": [], "free": ["work"]}, only={"work": {"resources": ("api",)}})
    app.declare({"api": {"budget": "1.00"}})
    app.add(["x"])
    [lease] = app.begin(money=40 * CENT)
    app.declare({"api": {}})
    app.complete(lease, onward=["free"])
    app.declare({"api": {"budget": "1.00"}})
    assert app.limit()["set_aside"] == 0


@pytest.fixture
def deadlocks(monkeypatch):
    """Each time that the database had to part two of them."""
    found: list[StoreConflict] = []
    once = Write._once

    def watched(self):
        try:
            return once(self)
        except StoreConflict as error:
            found.append(error)
            raise

    monkeypatch.setattr(Write, "_once", watched)
    return found


def test_payments_for_several_resources_at_the_same_moment_do_not_wait_for_each_other(app, deadlocks):
    """One worker records what it paid at stage one, then at two; another the other way round."""
    app.pipeline({"one": [], "two": []}, only={"one": {"resources": ("x",)}, "two": {"resources": ("y",)}})
    app.declare({"x": {"budget": "100"}, "y": {"budget": "100"}})
    app.add(["k0", "k1"])
    (first, second), (third, fourth) = app.begin(2, stage="one"), app.begin(2, stage="two")
    both = threading.Barrier(2)
    paid: list[list[int]] = []

    def listener(point: str) -> None:
        # Whoever is about to record payments waits a moment for the other to be there too.
        if point == "store.add_spent":
            paid.append([row[0] for row in points.about()[0]])
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.3)

    with connected(app) as other, listening(listener):
        at_once(lambda: app.paid_all(first, third), lambda: other.paid_all(fourth, second))
    assert {name: one["spent"] for name, one in app.limits().items()} == {"x": 20 * CENT, "y": 20 * CENT}
    assert paid[0] == paid[1] == sorted(paid[0]), "two orders, and one day a deadlock"
    assert deadlocks == []


def test_cancelling_work_that_ends_at_the_same_moment_does_not_wait_for_it(app, deadlocks):
    """Both take the lease and hold the resource: in the same order."""
    app.limited({"budget": "10.00"})
    [lease] = app.begin(money=40 * CENT)
    both = threading.Barrier(2)
    here = threading.local()

    def listener(point: str) -> None:
        # Each waits a moment before its second lock, for the other to have its first.
        if point in ("store.lock_gates", "store.take_leases", "store.revoke_leases"):
            here.times = getattr(here, "times", 0) + 1
            if here.times == 2:
                with contextlib.suppress(threading.BrokenBarrierError):
                    both.wait(0.3)

    one = app.finished(lease)
    with connected(app) as other, listening(listener):
        at_once(
            lambda: app.store.write(lambda tx: (lock_resources(tx, [lease.stage]), complete(tx, [one]))),
            lambda: other.cancel(key=lease.key),
        )
    assert app.states(lease.key)["work"] in ("done", "cancelled")
    assert deadlocks == []


# Out of credit -------------------------------------------------------------------------------------------------------


def test_out_of_credit_pauses_the_resource_at_once_and_spends_no_attempt(app):
    app.limited({})
    first, second, third = app.begin(3)
    app.out_of_credit(first, "pay first")
    blocked = app.admit().blocked
    assert blocked == ("paused", "resource 'api' is paused: out of credit: pay first", None, "api")
    assert app.row("k0", "work")["attempts"] == 0
    assert not app.state_of().paused
    app.end(second)
    app.out_of_credit(third)
    assert app.limit()["paused"]
    assert app.resume("api", resource=True)
    assert len(app.begin(3)) == 3


def test_out_of_credit_with_a_budget_per_day_waits_for_the_end_of_that_day(app):
    app.limited({"budget_per_day": "5.00", "zone": "Asia/Tokyo"})
    app.out_of_credit(app.begin()[0], "pay first")
    assert app.limit()["paused_until"] == next_day_at(app.clock.now(), "Asia/Tokyo")
    app.clock.advance(seconds=86_400)
    assert app.admit().blocked is None


def test_out_of_credit_without_a_resource_pauses_the_stage_until_a_person_resumes_it(app):
    app.pipeline({"work": [], "other": []})
    app.add(["x", "y"])
    [lease] = app.claim(stage="work")
    app.out_of_credit(lease, "pay first")
    stage = app.stage("work")
    assert (stage.paused, stage.reason, stage.retry_after) == (True, "out of credit: pay first", None)
    assert not app.state_of().paused and not app.stage("other").paused


def test_a_rate_limit_without_a_resource_pauses_the_stage_for_as_long_as_was_asked(app):
    app.pipeline({"work": []})
    app.add(f"k{n}" for n in range(6))
    first, second, third, fourth = app.claim(most=4)
    app.rate_limited(first, after=60)
    assert not app.stage("work").paused, "a reply to a plain request says nothing about the other servers"
    begun = app.clock.now()
    app.rate_limited(second, third, after=60, pauses_stage=True)
    assert (app.stage("work").reason, app.stage("work").retry_after) == ("429", begun + 60 * SECOND)
    app.rate_limited(fourth, after=10, pauses_stage=True)
    assert app.stage("work").retry_after == begun + 60 * SECOND
    app.clock.advance(seconds=61)
    app.store.write(end_pauses)
    assert not app.stage("work").paused


@pytest.mark.parametrize(("named", "meant"), [(None, "first"), ("second", "second"), ("elsewhere", "first")])
@pytest.mark.parametrize("said", ["wait", "pay", "key"])
def test_a_provider_means_the_resource_that_its_call_names_or_else_the_first_of_the_stage(app, named, meant, said):
    """Not the one with the lowest number, and not every one of them."""
    app.limited(None, uses=("first", "second"))
    app.declare({"second": {}, "first": {}})
    for _ in range(3):
        [lease] = app.begin()
        if said == "wait":
            app.rate_limited(lease, after=60, limited_resource=named)
            break
        if said == "pay":
            app.out_of_credit(lease, limited_resource=named)
            break
        one = FinishedAttempt(lease, State.RETRY_LATER, snooze=True, key_refused=True, limited_resource=named)
        app.store.write(lambda tx, one=one: fail(tx, [one]))
    other = {"first": "second", "second": "first"}[meant]
    assert app.limit(meant)["cool_until"] or app.limit(meant)["paused"]
    assert not app.limit(other)["cool_until"] and not app.limit(other)["paused"]


@pytest.mark.req("J11")
@pytest.mark.parametrize("uses", [("api",), ()])
def test_out_of_credit_does_not_shorten_the_pause_of_a_person(app, uses):
    app.limited({"budget_per_day": "5.00"} if uses else None, uses=uses)
    [lease] = app.begin()
    app.pause("api", resource=True, reason="stop") if uses else app.pause("p/work", reason="stop")
    app.out_of_credit(lease)
    stage = app.stage("work")
    told = app.limit() if uses else {"reason": stage.reason, "paused_until": stage.retry_after}
    assert (told["reason"], told["paused_until"]) == ("stop", None)


def test_several_who_are_out_of_credit_at_the_same_moment_do_not_stop_each_other(app):
    app.pipeline({"work": []})
    app.add(f"k{n}" for n in range(8))
    others = [app.beside() for _ in range(4)]
    try:
        leases = [other.claim(worker=f"w{n}")[0] for n, other in enumerate(others)]
        at_once(
            *(lambda one=one, lease=lease: one.out_of_credit(lease) for one, lease in zip(others, leases, strict=True))
        )
    finally:
        for other in others:
            other.store.close()
    assert app.stage("work").paused
    assert app.counts() == {"work": {"pending": 4, "retry_later": 4}} == app.recount()
