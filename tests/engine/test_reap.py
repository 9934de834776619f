"""Reaping: dead workers are dead, their leases freed; the lost attempt counts."""

from __future__ import annotations

import pytest

from holdfast.engine import reap
from holdfast.engine.reap import remove_ended, remove_silent
from holdfast.errors import LeaseLost
from holdfast.model.retry_or_give_up import DEATHS_IN_ISOLATION
from holdfast.model.states import Alone
from tests.support.harness import connected
from tests.support.together import at_once, listening

MINUTE = 60.0


@pytest.mark.req("J2")
def test_work_of_a_dead_worker_returns_to_pending_and_the_lost_attempt_counts(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.claim("dead")
    assert app.kill("dead") == (1, 0)
    assert app.states("x") == {"a": "pending"}
    assert app.row("x", "a")["attempts"] == 1
    assert [lease.attempt for lease in app.claim("alive")] == [2]
    assert app.history("x") == ["lease_expired"]
    assert [event["why"] for event in app.events("worker_died")] == ["its process is gone"]
    assert app.counts() == {"a": {"in_progress": 1}} == app.recount()


@pytest.mark.req("J2", "D2")
@pytest.mark.parametrize(("silent", "alive"), [(29 * MINUTE, True), (31 * MINUTE, False)])
def test_with_a_lease_of_30_minutes_29_silent_minutes_are_alive_and_31_are_stale(app, silent, alive):
    app.pipeline({"a": []})
    app.add(["book"])
    app.join("w", lease_seconds=30 * MINUTE)
    app.claim("w")
    app.clock.advance(20 * MINUTE)
    assert app.beat("w")
    app.clock.advance(silent)
    assert (app.reap().released == 0) is alive
    assert ("w" in app.living()) is alive
    assert app.states("book") == {"a": "in_progress" if alive else "pending"}


@pytest.mark.req("D2")
def test_silence_is_measured_from_the_last_heartbeat_and_never_from_the_start_of_the_work(app):
    """Runtime alone never reclaims."""
    app.pipeline({"a": []})
    app.add(["book"])
    app.join("w", lease_seconds=30 * MINUTE)
    [lease] = app.claim("w")
    for _ in range(20):
        app.clock.advance(29 * MINUTE)
        assert app.reap().released == 0
        assert app.beat("w")
    app.complete(lease)
    assert app.row("book", "a")["attempts"] == 1


@pytest.mark.req("D2")
def test_a_lease_ends_with_its_last_microsecond(app, store):
    app.pipeline({"a": []})
    app.join("w", lease_seconds=30 * MINUTE)
    app.clock.advance(30 * MINUTE - 1e-6)
    app.reap()
    assert app.living() == {"w"}
    app.clock.advance(1e-6)
    app.reap()
    assert app.living() == set()


@pytest.mark.req("D2")
def test_each_worker_is_judged_by_the_lease_it_asked_for(app):
    app.pipeline({"a": []})
    app.join("short", lease_seconds=10)
    app.join("long", lease_seconds=100)
    app.clock.advance(50)
    app.reap()
    assert app.living() == {"long"}


@pytest.mark.req("D2", "D10")
def test_kinds_of_work_that_have_workers_of_their_own_have_silence_limits_of_their_own(app):
    app.pipeline({"extract": [], "connect": []})
    app.add(["book"])
    app.join("patient", lease_seconds=30 * MINUTE)
    app.join("impatient", lease_seconds=30)
    app.claim("patient", "extract")
    app.claim("impatient", "connect")
    app.clock.advance(5 * MINUTE)
    assert app.reap().released == 1
    assert app.states("book") == {"extract": "in_progress", "connect": "pending"}
    app.clock.advance(26 * MINUTE)
    assert app.reap().released == 1
    assert app.states("book") == {"extract": "pending", "connect": "pending"}


@pytest.mark.fault(52)
@pytest.mark.parametrize("hours", [1, -1, 24 * 365, -24 * 365])
def test_setting_the_time_of_day_touches_no_lease(app, hours):
    app.pipeline({"a": []})
    app.add(["x"])
    [lease] = app.claim("w")
    app.clock.set_wall(hours * 3600)
    assert app.reap().released == 0
    app.clock.advance(29)
    assert app.reap().released == 0
    assert app.beat("w")
    app.clock.advance(29)
    assert app.reap().released == 0
    app.complete(lease)
    assert app.states("x") == {"a": "done"}


@pytest.mark.fault(52)
@pytest.mark.parametrize("hours", [1, -1])
def test_setting_the_time_of_day_does_not_keep_a_dead_worker_alive_either(app, hours):
    app.pipeline({"a": []})
    app.add(["x"])
    app.claim("w")
    app.clock.set_wall(hours * 3600)
    app.clock.advance(31)
    assert app.reap().released == 1


def test_a_worker_of_another_boot_is_dead_at_once(app):
    """Its steady clock started elsewhere: its instants mean nothing here, and its process cannot be alive."""
    app.pipeline({"a": []})
    app.add(["x"])
    app.claim("w")
    app.execute("UPDATE holdfast_workers SET clock = 'boot of yesterday', alive_until = 9223372036854775807")
    assert app.reap().released == 1
    assert app.living() == set()


def test_a_worker_without_a_row_is_a_dead_worker(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.claim("w")
    app.leave("w")
    assert app.reap().released == 1
    assert app.states("x") == {"a": "pending"}


def test_neighbours_whose_process_is_gone_are_dead_without_waiting_for_their_lease(app):
    app.pipeline({"a": []})
    me = app.join("me", process="mine")
    app.join("gone", process="gone")
    app.join("alive", process="alive")
    app.join("elsewhere", process="gone", host="another host")
    dead = app.store.write(lambda tx: remove_ended(tx, "host", me.id, lambda process: process == "alive"))
    assert [name for _, name in dead] == ["gone"]
    assert app.living() == {"me", "alive", "elsewhere"}


def test_the_dead_are_named_once(app):
    app.pipeline({"a": []})
    app.join("w")
    app.clock.advance(31)
    clock = app.store.driver.clock_name
    assert [name for _, name in app.store.write(lambda tx: remove_silent(tx, clock))] == ["w"]
    assert app.store.write(lambda tx: remove_silent(tx, clock)) == []
    assert len(app.events("worker_died")) == 1


@pytest.mark.fault(11)
def test_what_died_with_its_worker_is_tried_in_isolation_before_its_last_attempt_counts(app):
    """A killer item does not exhaust the innocents in flight beside it."""
    app.pipeline({"a": []}, max_attempts=2)
    app.add(["innocent"])
    for _ in range(4):
        [lease] = app.claim("w")
        if lease.alone:
            break
        app.kill("w")
    assert (lease.attempt, lease.alone) == (2, 2)
    app.release(lease)
    [lease] = app.claim("w")
    app.complete(lease)
    assert app.states("innocent") == {"a": "done"}


@pytest.mark.req("J3")
@pytest.mark.fault(11)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_an_item_that_kills_its_process_ends_exhausted_after_its_attempts(app, most):
    """The first death takes a worker along; from then on it dies alone, and its worker tells of it."""
    app.pipeline({"a": []}, max_attempts=most)
    app.add(["killer"])
    app.claim("w")
    app.kill("w")
    starts = 1
    while leases := app.claim("w"):
        starts += 1
        assert leases[0].alone == Alone.ISOLATED
        app.fail(leases[0], "the process that ran it ended with signal 11")
        app.promote()
    assert starts == max(2, most)
    assert app.states("killer") == {"a": "exhausted"}
    assert app.row("killer", "a")["attempts"] == most


@pytest.mark.req("J2", "J3")
@pytest.mark.fault(13)
@pytest.mark.parametrize("most", [1, 2, 5])
def test_an_item_over_which_one_worker_after_the_other_dies_ends_exhausted_too(app, most):
    """It may take the whole machine's memory: isolation does not help, and somebody has to stop."""
    app.pipeline({"a": []}, max_attempts=most)
    app.add(["killer"])
    deaths = 0
    while leases := app.claim("w"):
        deaths += 1
        assert leases[0].attempt <= most
        app.kill("w")
    assert deaths == max(most, 1 + DEATHS_IN_ISOLATION)
    assert app.states("killer") == {"a": "exhausted"}
    assert app.row("killer", "a")["attempts"] == most
    assert "died" in app.row("killer", "a")["error"]
    assert app.history("killer")[-1] == "exhausted"
    assert app.counts() == {"a": {"exhausted": 1}} == app.recount()


@pytest.mark.req("P6")
@pytest.mark.fault(11)
@pytest.mark.parametrize("most", [1, 3])
def test_kills_from_outside_exhaust_nobody_who_had_company(app, most):
    """Also if all of it is isolated, and however often the plug is pulled."""
    app.pipeline({"a": []}, max_attempts=most)
    app.add([f"page-{number}" for number in range(16)])
    for _ in range(30):
        assert len(app.claim("w", most=16)) == 16
        assert app.kill("w") == (16, 0)
    attempts = {app.row(f"page-{number}", "a")["attempts"] for number in range(16)}
    assert attempts == {min(1, most - 1)}, "only the first death counts, where all ran side by side"
    assert app.run_through() == 16
    assert app.counts() == {"a": {"done": 16}} == app.recount()


@pytest.mark.req("P6")
@pytest.mark.fault(11)
@pytest.mark.parametrize("chunk", [1, 2, 4, 5])
@pytest.mark.parametrize("beside", [0, 3])
def test_who_had_company_is_judged_alike_in_every_chunk(app, chunk, beside):
    """The last lease of a dead worker to be freed had the same company as the first."""
    app.pipeline({"a": []}, max_attempts=1)
    app.add([f"page-{number}" for number in range(5)])
    app.claim("w", most=5)
    app.kill("w")
    for _ in range(DEATHS_IN_ISOLATION + 1):
        app.claim("w", most=5)
        app.add([f"new-{number}" for number in range(beside)])
        app.claim("w", most=beside)
        app.store.write(lambda tx: remove_ended(tx, "host", 0, lambda process: False))
        app._workers.clear()
        assert app.reap(most=chunk).exhausted == 0
    assert {app.row(f"page-{number}", "a")["attempts"] for number in range(5)} == {0}


@pytest.mark.req("P6", "J3")
@pytest.mark.fault(11, 13)
def test_an_item_that_kills_its_worker_from_isolation_is_found_and_its_neighbours_are_done(app):
    """Its neighbours never get far: they are only let off when each of them has had a worker to itself."""
    app.pipeline({"a": []}, max_attempts=3)
    app.add([f"page-{number}" for number in range(3)] + ["killer"] + [f"page-{number}" for number in range(3, 6)])
    deaths = 0
    while leases := app.claim("w", most=10):
        solitary = [lease for lease in leases if lease.alone >= Alone.SOLITARY]
        for lease in leases:
            if solitary and lease is not solitary[0]:
                app.release(lease)
        if "killer" in {lease.key for lease in (solitary[:1] or leases)}:
            deaths += 1
            app.kill("w")
            assert deaths < 40
        else:
            for lease in solitary[:1] or leases:
                app.complete(lease)
    assert app.states("killer") == {"a": "exhausted"}
    assert app.row("killer", "a")["attempts"] == 3
    assert app.counts() == {"a": {"done": 6, "exhausted": 1}} == app.recount()


def test_isolation_outlasts_a_failure_and_a_hand_back(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.claim("w")
    app.kill("w")
    app.fail(app.claim("v")[0])
    app.promote()
    app.release(app.claim("v")[0])
    assert [lease.alone for lease in app.claim("v")] == [2]


def test_a_moved_lease_is_freed_at_the_stage_it_is_at(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    app.complete(app.claim("w")[0], onward=["b"])
    app.kill("w")
    assert app.states("x") == {"a": "done", "b": "pending"}
    assert app.row("x", "b")["attempts"] == 1


def test_reaping_frees_no_lease_of_a_living_worker_beside_a_dead_one(app):
    app.pipeline({"a": []})
    app.add(["x", "y"])
    app.claim("dead")
    [kept] = app.claim("alive")
    assert app.kill("dead").released == 1
    app.complete(kept)
    assert (app.states("x"), app.states("y")) == ({"a": "pending"}, {"a": "done"})


@pytest.mark.fault(18)
def test_a_sweep_that_stops_half_way_is_finished_by_the_next(app):
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(10))
    app.claim("w", most=10)
    app.leave("w")
    assert app.store.write(lambda tx: reap.reap(tx, 3)).released == 3
    assert app.counts() == {"a": {"in_progress": 7, "pending": 3}} == app.recount()
    assert app.reap().released == 7
    assert app.counts() == {"a": {"pending": 10}} == app.recount()


@pytest.mark.req("V5")
@pytest.mark.fault(6)
@pytest.mark.parametrize("act", ["claim", "complete", "reap"])
def test_a_process_that_dies_as_soon_as_its_commit_is_done_leaves_true_counts(app, act):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x", "y"])
    [lease] = app.claim("w")
    app.leave("w")

    def die(point: str) -> None:
        if point == "commit.after":
            raise KeyboardInterrupt

    acts = {"claim": lambda: app.claim("v"), "complete": lambda: app.complete(lease), "reap": app.reap}
    with listening(die), pytest.raises(KeyboardInterrupt):
        acts[act]()
    assert app.counts() == app.recount()


@pytest.mark.fault(19)
def test_several_reapers_at_once_free_each_lease_once(app):
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(120))
    app.claim("w", most=120)
    app.clock.advance(31)
    with connected(app) as two, connected(app) as three:
        freed = at_once(*(lambda one=one: one.reap(most=10).released for one in (app, two, three)))
    assert sum(freed) == 120
    assert app.counts() == {"a": {"pending": 120}} == app.recount()
    assert len(app.events("lease_expired")) == 120


@pytest.mark.fault(20)
def test_a_reap_beside_a_completion_lets_one_of_them_win(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(f"k{n}" for n in range(60))
    leases = app.claim("w", most=60)
    app.leave("w")
    with connected(app) as other:
        lost, freed = at_once(lambda: _complete_all(app, leases), lambda: other.reap(most=3).released)
    assert lost == freed
    assert app.counts()["a"].get("done", 0) == 60 - freed
    assert app.counts() == app.recount()


def _complete_all(app, leases):
    lost = 0
    for lease in leases:
        try:
            app.complete(lease)
        except LeaseLost:
            lost += 1
    return lost
