"""Stale: made by an older version or from another input. `plan` says what would run, `reprocess` runs it, in order, once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

import pytest

from holdfast import Pipeline
from holdfast.app import Holdfast
from holdfast.engine import actions, plan_and_reprocess
from holdfast.engine.complete import complete
from holdfast.engine.finish_leases import Cost
from holdfast.engine.memos import MemoWrite, idempotency_key, remember
from holdfast.engine.selection import Who
from holdfast.errors import LeaseLost, UsageError
from holdfast.model.money import micros
from tests.support.harness import connected
from tests.support.money import charged
from tests.support.together import at_once, meeting_at

pytestmark = pytest.mark.req("J13")

CHAIN = {"extract": [], "analyse": ["extract"], "embed": ["analyse"]}
DONE = dict.fromkeys(CHAIN, "done")


@pytest.fixture
def hold(url, app, clock) -> Iterator[Holdfast]:
    """What a person asks and does, on the same store."""
    with Holdfast(url, clock=clock) as hold:
        yield hold


def versions(app, extract="1", analyse="1", embed="1", compatible=()) -> None:
    """Deploy the pipeline with these versions; `compatible` is what `analyse` says of earlier ones."""
    only = {"extract": {"version": extract}, "embed": {"version": embed}}
    app.pipeline(CHAIN, only={**only, "analyse": {"version": analyse, "compatible_from": compatible}})


def work(
    app, answer=lambda stage, key: f"{stage} of {key}", cost=lambda stage, key: 0, took=lambda key: 0.0
) -> list[str]:
    """Run whatever is waiting, with handlers of today's versions; what ran, in order."""
    ran = []
    while leases := app.claim(most=100):
        stage = next(name for name in app.layout().of_pipeline(app.name) if name.id == leases[0].stage)
        for lease in leases:
            one = app.finished(
                lease, answer(stage.name, lease.key), version=stage.version, took_seconds=took(lease.key)
            )
            if price := cost(stage.name, lease.key):
                one.costs = [Cost(micros(price), None)]
            app.store.write(lambda tx, one=one: complete(tx, [one]), exclusive=bool(lease.rerun))
            ran.append(f"{stage.name} {lease.key}")
    assert app.counts() == app.recount()
    return ran


@pytest.fixture
def finished(app, hold):
    """Two items that have been through all stages."""
    versions(app)
    app.add([{"key": "x", "n": 1}, {"key": "y", "n": 1}])
    work(app)
    return app


def forecast(hold, **which) -> dict[str, dict[str, int]]:
    return {one.stage: dict(one.why) for one in hold.plan("p", **which)}


def events(hold, event, key=None):
    return hold.events(event=event, key=key, most=1000)


# What is stale, and why -----------------------------------------------------------------------------------------------


def test_what_todays_version_made_from_todays_input_is_not_stale(finished, hold):
    assert hold.plan("p") == ()
    assert hold.reprocess("p") == {}
    assert work(finished) == []


def test_what_another_version_made_is_stale_and_what_follows_may_be(finished, hold):
    versions(finished, extract="2")
    assert forecast(hold) == {"extract": {"version": 2}, "analyse": {"upstream": 2}, "embed": {"upstream": 2}}
    [extract, analyse, embed] = hold.plan("p")
    assert [(one.sure, one.perhaps) for one in (extract, analyse, embed)] == [(2, 0), (0, 2), (0, 2)]


def test_a_version_that_comes_back_finds_its_results_as_good_as_ever(finished, hold):
    versions(finished, extract="2")
    versions(finished, extract="1")
    assert hold.plan("p") == ()


def test_results_of_a_version_that_is_named_compatible_stand(finished, hold):
    versions(finished, analyse="3", compatible=("2", "1"))
    assert hold.plan("p") == ()
    versions(finished, analyse="4", compatible=("3",))
    assert forecast(hold) == {"analyse": {"version": 2}, "embed": {"upstream": 2}}


def test_changed_data_makes_every_stage_that_saw_it_stale(finished, hold):
    finished.add([{"key": "x", "n": 2}, {"key": "y", "n": 1}])
    assert forecast(hold) == {stage: {"input changed": 1} for stage in CHAIN}
    finished.add([{"key": "x", "n": 1}])
    assert hold.plan("p") == ()


def test_the_order_of_keys_in_the_data_is_no_change(app, hold):
    versions(app)
    app.add([{"key": "x", "n": 1, "m": {"a": 1, "b": 2}}])
    work(app)
    app.add([{"key": "x", "m": {"b": 2, "a": 1}, "n": 1}])
    assert hold.plan("p") == ()


def test_a_result_made_from_an_output_that_was_replaced_is_stale(finished, hold):
    """The re-run that would have followed was cancelled by a person; the result that stayed is told as stale."""
    finished.retry(stage="extract", states=["done"], key="x")
    [lease] = finished.claim(stage="extract")
    finished.complete(lease, "another")
    assert finished.states("x") == {**DONE, "analyse": "pending"}
    finished.cancel(stage="analyse")
    assert forecast(hold) == {"analyse": {"input changed": 1}, "embed": {"upstream": 1}}
    assert hold.reprocess("p") == {"analyse": 1}
    assert work(finished, answer=lambda stage, key: "new") == ["analyse x", "embed x"]
    assert hold.plan("p") == ()


def test_a_result_from_before_inputs_were_recorded_is_not_stale_for_its_input(finished, hold):
    finished.execute("UPDATE holdfast_outcomes SET input_hash = NULL")
    finished.add([{"key": "x", "n": 2}])
    assert hold.plan("p") == ()
    versions(finished, analyse="2")
    assert forecast(hold) == {"analyse": {"version": 2}, "embed": {"upstream": 2}}


def test_what_is_open_will_run_anyway_and_is_not_stale(finished, hold):
    finished.retry(stage="analyse", states=["done"], key="x")
    versions(finished, analyse="2")
    assert forecast(hold) == {"analyse": {"version": 1}, "embed": {"upstream": 2}}
    assert hold.reprocess("p") == {"analyse": 1}
    assert hold.reprocess("p") == {}
    assert sorted(work(finished)) == ["analyse x", "analyse y"]


def test_what_has_not_passed_is_not_stale(app, hold):
    versions(app)
    app.add(["x", "y", "z"])
    failed, cancelled, _waits = app.claim(most=3)
    app.permanent(failed)
    app.cancel(key=cancelled.key)
    versions(app, extract="2")
    assert hold.plan("p") == ()
    assert hold.reprocess("p") == {}


def test_what_stands_behind_a_stage_that_failed_is_left_alone(finished, hold):
    """It has nothing to be made from; once the failed stage has passed again, it follows by itself."""
    finished.retry(stage="extract", states=["done"], key="x")
    finished.permanent(finished.claim(stage="extract")[0])
    versions(finished, analyse="2")
    assert forecast(hold) == {"analyse": {"version": 1}, "embed": {"upstream": 1}}
    assert hold.reprocess("p") == {"analyse": 1}
    assert work(finished) == ["analyse y"]
    finished.retry(key="x")
    assert work(finished, answer=lambda stage, key: f"{stage} 2") == ["extract x", "analyse x", "embed x"]
    assert hold.plan("p") == ()


def test_what_stands_behind_a_stage_that_was_put_in_before_it_waits_for_that_stage(finished, hold):
    """A new stage in the middle: the one after it is stale, and runs again only when the new one has passed."""
    finished.pipeline({"extract": [], "clean": ["extract"], "analyse": ["clean"], "embed": ["analyse"]})
    assert hold.plan("p") == ()
    assert hold.reprocess("p") == {}
    finished.backfill()
    assert sorted(work(finished)) == ["clean x", "clean y"]
    assert forecast(hold) == {"analyse": {"input changed": 2}, "embed": {"upstream": 2}}
    assert hold.reprocess("p") == {"analyse": 2}
    assert sorted(work(finished)) == ["analyse x", "analyse y"]
    assert hold.plan("p") == ()


def test_a_skipped_stage_is_stale_like_a_done_one(app, hold):
    versions(app)
    app.add(["x"])
    app.skip(app.claim()[0])
    work(app)
    versions(app, extract="2")
    assert hold.reprocess("p") == {"extract": 1}
    [event] = events(hold, "reprocessed")
    assert event.data["was"] == "skipped"


def test_a_worker_of_yesterday_makes_results_that_are_stale_today(app, hold):
    versions(app)
    app.add(["x"])
    [lease] = app.claim()
    versions(app, extract="2")
    app.complete(lease, 1, version="1")
    assert forecast(hold) == {"extract": {"version": 1}}


# Which ----------------------------------------------------------------------------------------------------------------


def test_a_stage_a_key_pattern_and_both(finished, hold):
    versions(finished, extract="2", analyse="2", embed="2")
    assert forecast(hold, stage="analyse") == {"analyse": {"version": 2}, "embed": {"version": 2}}
    assert forecast(hold, key="x*") == {stage: {"version": 1} for stage in CHAIN}
    assert hold.reprocess("p", stage="analyse", key="?", dry_run=True) == {"analyse": 2}
    assert hold.reprocess("p", stage="analyse", key="y") == {"analyse": 1}
    assert work(finished) == ["analyse y", "embed y"]
    assert forecast(hold) == {
        "extract": {"version": 2},
        "analyse": {"version": 1, "upstream": 1},
        "embed": {"version": 1, "upstream": 1},
    }


def test_a_dry_run_says_what_would_be_sent_back_and_writes_nothing(finished, hold):
    versions(finished, extract="2", embed="2")
    before = finished.query("SELECT COUNT(*) FROM holdfast_events")
    assert hold.reprocess("p", dry_run=True) == {"extract": 2}
    assert finished.query("SELECT COUNT(*) FROM holdfast_events") == before
    assert finished.states("x") == DONE


# What is fast ---------------------------------------------------------------------------------------------------------


FORKED = {"fetch": [], "thumb": ["fetch"], "analyse": ["fetch"]}


def forked(app, **only) -> None:
    app.pipeline(FORKED, only=only)


def left_out(hold, **which) -> dict[str, tuple[dict[str, int], int]]:
    return {
        one.stage: (dict(one.left_out), micros(one.left_out_cost))
        for one in hold.plan("p", fast=True, **which)
        if one.left_out
    }


@pytest.mark.req("J7", "J13")
def test_fast_is_what_costs_nothing_and_takes_five_seconds_at_most_for_an_item(app, hold):
    versions(app)
    app.add(["free", "dear", "slow"])
    seconds = {"free": 1.6, "dear": 0.0, "slow": 1.7}
    work(app, cost=lambda stage, key: "0.40" if (stage, key) == ("embed", "dear") else 0, took=seconds.__getitem__)
    versions(app, extract="2")
    assert {one.stage: (one.sure, one.perhaps) for one in hold.plan("p", fast=True)} == {
        "extract": (1, 0),
        "analyse": (0, 1),
        "embed": (0, 1),
    }
    assert left_out(hold) == {"extract": ({"cost": 1, "time": 1}, micros("0.40"))}
    assert hold.reprocess("p", fast=True, dry_run=True) == {"extract": 1}
    assert hold.reprocess("p", fast=True) == {"extract": 1}
    assert [one.item for one in events(hold, "reprocessed")] == ["free"]
    # What was left out is as stale as before.
    assert forecast(hold)["extract"] == {"version": 2}


@pytest.mark.req("J13")
def test_a_fast_branch_is_run_though_another_one_of_the_same_item_is_not_fast(app, hold):
    forked(app)
    app.add(["x", "y"])
    work(app, cost=lambda stage, key: "0.40" if (stage, key) == ("analyse", "x") else 0)
    forked(app, thumb={"version": "2"}, analyse={"version": "2"})
    assert left_out(hold) == {"analyse": ({"cost": 1}, micros("0.40"))}
    assert hold.reprocess("p", fast=True) == {"thumb": 2, "analyse": 1}
    assert sorted(work(app)) == ["analyse y", "thumb x", "thumb y"]


@pytest.mark.req("J13")
def test_what_may_pay_behind_it_is_not_fast_also_if_that_is_not_sure(app, hold):
    forked(app)
    app.add(["x"])
    work(app, cost=lambda stage, key: "0.40" if stage == "analyse" else 0)
    forked(app, fetch={"version": "2"})
    assert hold.reprocess("p", fast=True) == {} and left_out(hold) == {"fetch": ({"cost": 1}, micros("0.40"))}
    assert hold.actions() == ()


@pytest.mark.req("J7")
def test_what_is_left_out_uses_up_no_limit_and_the_choice_is_stored_with_the_action(app, hold):
    forked(app)
    app.add([f"k{n}" for n in range(6)])
    work(app, cost=lambda stage, key: "0.40" if stage == "analyse" and key in ("k0", "k1") else 0)
    forked(app, analyse={"version": "2"})
    assert hold.reprocess("p", fast=True, limit=3) == {"analyse": 3}
    [action] = hold.actions()
    assert action.filter == {"pipeline": "p", "stale_only": True, "limit": 3, "fast": True}
    assert sorted(one.item for one in events(hold, "reprocessed")) == ["k2", "k3", "k4"]


@pytest.mark.req("J7")
def test_whoever_goes_on_with_the_action_keeps_to_the_choice(app, hold, monkeypatch):
    monkeypatch.setattr(plan_and_reprocess, "CHUNK", 2)
    monkeypatch.setattr(plan_and_reprocess, "few_items", lambda *_: None)
    forked(app)
    app.add([f"k{n}" for n in range(6)])
    work(app, cost=lambda stage, key: "0.40" if stage == "analyse" and key in ("k1", "k4") else 0)
    forked(app, analyse={"version": "2"})
    kind = plan_and_reprocess.Reprocess("p", fast=True)
    action = app.store.write(lambda tx: actions.begin(tx, kind, Who("ann", "")))
    assert action.is_open and action.counts == {"analyse": 1}
    assert hold.continue_action(action.id) == {"analyse": 4}
    assert sorted(one.item for one in events(hold, "reprocessed")) == ["k0", "k2", "k3", "k5"]


@pytest.mark.req("J13")
def test_a_stage_that_declares_an_expected_cost_is_not_fast_though_it_was_free_until_now(url, app, clock):
    def books(**settings):
        pipeline = Pipeline("p", resources={"api": {}})
        pipeline.stage(name="read", **settings)(lambda item, ctx: None)
        return pipeline

    free, dear = books(version="1"), books(version="2", resource="api", estimate="0.40")
    with Holdfast(url, [free.spec], clock=clock) as before:
        before.add("p", ["x"])
        work(app)
    with Holdfast(url, [dear.spec], resources=dear.resources, clock=clock) as after:
        after.register()
        assert [dict(one.left_out) for one in after.plan("p", fast=True)] == [{"cost": 1}]
        assert after.reprocess("p", fast=True) == {}
        assert after.reprocess("p") == {"read": 1}


def test_a_limit_counts_items(finished, hold):
    versions(finished, extract="2")
    assert hold.reprocess("p", limit=0) == {}
    assert hold.reprocess("p", limit=1) == {"extract": 1}
    assert finished.states("x")["extract"] == "pending"
    assert hold.reprocess("p", limit=5) == {"extract": 1}


def test_everything_can_be_asked_for_though_nothing_is_stale(finished, hold):
    """Each item begins again at its first stage; with a stage given, at that one. What follows runs if it must."""
    assert hold.reprocess("p", stale_only=False) == {"extract": 2}
    assert sorted(work(finished)) == ["extract x", "extract y"]
    assert hold.reprocess("p", stale_only=False, stage="embed", key="x") == {"embed": 1}
    assert {one.data["why"] for one in events(hold, "reprocessed")} == {"asked"}
    assert work(finished, answer=lambda stage, key: "new") == ["embed x"]
    assert hold.reprocess("p", stale_only=False, stage="extract", key="x") == {"extract": 1}
    assert work(finished, answer=lambda stage, key: "newer") == ["extract x", "analyse x", "embed x"]


def test_a_pipeline_or_stage_that_does_not_exist_is_named(finished, hold):
    for ask in (hold.plan, hold.reprocess, hold.accept):
        with pytest.raises(UsageError, match="no pipeline 'q'"):
            ask("q")
        with pytest.raises(UsageError, match="'p' has no stage 'nothing'"):
            ask("p", stage="nothing")


def test_who_reprocessed_what_and_why_is_in_the_log(finished, hold):
    versions(finished, extract="2")
    hold.reprocess("p", key="x", by="me", reason="the new model")
    [event] = events(hold, "reprocessed")
    assert (event.pipeline, event.item, event.stage) == ("p", "x", "extract")
    assert event.data == {"was": "done", "why": "version", "action": 1, "by": "me", "reason": "the new model"}


def test_more_items_than_go_into_one_transaction(app, hold):
    versions(app)
    app.add([f"i{number:04}" for number in range(1203)])
    leases = app.claim(stage="extract", most=1203)
    app.store.write(lambda tx: complete(tx, [app.finished(lease, 1) for lease in leases]))
    versions(app, extract="2")
    assert [(one.stage, one.sure) for one in hold.plan("p")] == [("extract", 1203)]
    assert hold.reprocess("p", limit=700) == {"extract": 700}
    assert hold.reprocess("p") == {"extract": 503}
    assert app.counts() == app.recount()
    assert app.counts()["extract"] == {"pending": 1203}


@pytest.mark.parametrize("database", ["postgres"])
def test_two_who_reprocess_at_once_send_each_item_back_once(finished, hold, url, clock):
    versions(finished, extract="2")
    with Holdfast(url, clock=clock) as other, meeting_at("store.lock_outcomes", 2):
        counts = at_once(lambda: hold.reprocess("p"), lambda: other.reprocess("p"))
    assert sum(count.get("extract", 0) for count in counts) == 2
    assert len(events(hold, "reprocessed")) == 2
    assert len(work(finished)) == 2


# The wave -------------------------------------------------------------------------------------------------------------


def test_an_output_that_is_the_same_stops_the_wave(finished, hold):
    versions(finished, extract="2")
    hold.reprocess("p")
    assert sorted(work(finished)) == ["extract x", "extract y"]
    assert hold.plan("p") == ()
    assert finished.outcome("x", "extract")["version"] == "2"


def test_only_items_whose_output_changed_go_on(finished, hold):
    versions(finished, extract="2")
    hold.reprocess("p")
    ran = work(finished, answer=lambda stage, key: f"{stage} of {key}" + ("!" if key == "x" else ""))
    assert sorted(ran) == ["analyse x", "embed x", "extract x", "extract y"]
    assert hold.plan("p") == ()


@pytest.mark.parametrize("changed", [False, True])
def test_when_every_version_is_new_every_stage_runs_once_per_item_and_in_order(finished, hold, changed):
    versions(finished, extract="2", analyse="2", embed="2")
    assert hold.reprocess("p") == {"extract": 2}
    ran = work(finished, answer=lambda stage, key: f"{stage} of {key}{changed or ''}")
    assert [one for one in ran if one.endswith("x")] == ["extract x", "analyse x", "embed x"]
    assert sorted(ran) == sorted(f"{stage} {key}" for stage in CHAIN for key in "xy")
    assert hold.plan("p") == ()


def test_the_wave_goes_on_behind_a_stage_that_is_kept(finished, hold):
    """`analyse` is neither stale nor given anything new; `embed` behind it is stale all the same."""
    versions(finished, extract="2", embed="2")
    assert forecast(hold) == {"extract": {"version": 2}, "analyse": {"upstream": 2}, "embed": {"version": 2}}
    assert hold.reprocess("p") == {"extract": 2}
    assert sorted(work(finished)) == ["embed x", "embed y", "extract x", "extract y"]
    assert hold.plan("p") == ()


def test_changed_data_runs_every_stage_again_though_outputs_stay_the_same(finished, hold):
    """Every handler is given the data: a later stage may read what an earlier one ignores."""
    finished.add([{"key": "x", "n": 2}])
    assert hold.reprocess("p") == {"extract": 1}
    assert work(finished) == ["extract x", "analyse x", "embed x"]
    assert hold.plan("p") == ()


DIAMOND = {"extract": [], "text": ["extract"], "cover": ["extract"], "publish": ["text", "cover"]}


@pytest.mark.parametrize("changed", [False, True])
def test_where_stages_meet_what_follows_waits_for_all_of_them_and_runs_once(app, hold, changed):
    app.pipeline(DIAMOND)
    app.add(["x"])
    work(app)
    app.pipeline(DIAMOND, version="2")
    assert hold.reprocess("p") == {"extract": 1}
    app.complete(app.claim(stage="extract")[0], f"extract of x{changed or ''}", version="2")
    app.complete(app.claim(stage="text")[0], f"text of x{changed or ''}", version="2")
    assert app.claim(stage="publish") == []
    app.complete(app.claim(stage="cover")[0], "cover of x", version="2")
    app.complete(app.claim(stage="publish")[0], "new", version="2")
    assert work(app) == []
    assert hold.plan("p") == ()
    assert app.counts() == app.recount()


@pytest.mark.req("D4")
def test_what_an_attempt_on_a_replaced_output_remembers_is_not_taken_for_the_new_one(app, hold):
    """It was paid for, and counts; but it says nothing about the new output. Nor does its idempotency key."""
    versions(app)
    app.add(["x"])
    app.complete(app.claim()[0], "old")
    [first] = app.claim(stage="analyse")
    memo = MemoWrite(
        first, "gemini", "done", "1", idempotency_key(first, "gemini", "1"), cost=400_000, value='"of the old"'
    )
    doubt = MemoWrite(first, "mistral", "intended", "1", "key")
    app.store.write(lambda tx: remember(tx, [memo, doubt]))
    app.fail(first)
    app.promote()
    [again] = app.claim(stage="analyse")
    assert again.memos["gemini"].value == '"of the old"'
    app.retry(stage="extract", states=["done"])
    app.complete(app.claim("quick", "extract")[0], "new")
    [fresh] = app.claim("quick", "analyse")
    assert fresh.memos == {}
    assert idempotency_key(fresh, "gemini", "1") != memo.idempotency_key
    assert [event.data["memo"] for event in events(hold, "in_doubt")] == ["mistral"]
    assert charged(hold, ["stage"]) == [{"stage": "analyse", "amount": 400_000, "payments": 1}]


def test_a_result_waits_readable_until_the_new_one_replaces_it(finished, hold):
    versions(finished, extract="2")
    hold.reprocess("p", key="x")
    [lease] = finished.claim(stage="extract")
    assert finished.outcome("x", "extract")["result"] == "extract of x"
    finished.complete(lease, "new", version="2")
    assert finished.outcome("x", "extract")["result"] == "new"
    assert finished.outcome("x", "analyse")["result"] == "analyse of x"


def test_whoever_works_on_a_replaced_output_loses_the_lease_and_the_work_waits_again(app, hold):
    versions(app)
    app.add(["x"])
    app.complete(app.claim()[0], "old")
    [late] = app.claim("late", "analyse")
    versions(app, extract="2")
    assert hold.reprocess("p") == {"extract": 1}
    app.complete(app.claim("quick", "extract")[0], "new", version="2")
    with pytest.raises(LeaseLost):
        app.complete(late, "made from the old")
    assert [one.stage for one in events(hold, "superseded")] == ["analyse"]
    [fresh] = app.claim(stage="analyse")
    assert (fresh.attempt, fresh.results[app.stage("extract").id]) == (1, '"new"')
    app.complete(fresh, "made from the new")
    assert app.counts() == app.recount()


def test_whoever_works_on_an_output_that_stays_the_same_is_left_alone(app, hold):
    versions(app)
    app.add(["x"])
    app.complete(app.claim()[0], "same")
    [busy] = app.claim("busy", "analyse")
    versions(app, extract="2")
    hold.reprocess("p")
    app.complete(app.claim("quick", "extract")[0], "same", version="2")
    app.complete(busy, "right")
    assert app.states("x") == {"extract": "done", "analyse": "done", "embed": "pending"}
    assert events(hold, "superseded") == ()


def test_a_wave_that_fails_leaves_what_follows_as_it_was(finished, hold):
    versions(finished, extract="2", analyse="2")
    hold.reprocess("p", key="x")
    finished.permanent(finished.claim(stage="extract")[0])
    assert finished.states("x") == {**DONE, "extract": "failed"}
    assert finished.outcome("x", "analyse")["result"] == "analyse of x"


def test_a_wave_that_is_cancelled_leaves_what_was_there_and_it_is_stale_still(finished, hold):
    versions(finished, extract="2")
    hold.reprocess("p")
    finished.cancel()
    assert finished.states("x") == DONE
    assert forecast(hold)["extract"] == {"version": 2}


# Accept ---------------------------------------------------------------------------------------------------------------


def test_results_of_an_older_version_can_be_accepted_as_good(finished, hold):
    versions(finished, extract="2", analyse="2")
    assert hold.accept("p", stage="extract", key="x", by="me", reason="a typo in a comment") == {"extract": 1}
    [event] = events(hold, "accepted")
    assert (event.item, event.stage) == ("x", "extract")
    assert event.data == {
        "version": "2",
        "why": "version",
        "action": 1,
        "by": "me",
        "reason": "a typo in a comment",
    }
    assert finished.outcome("x", "extract")["version"] == "2"
    assert finished.outcome("x", "analyse")["version"] == finished.outcome("y", "extract")["version"] == "1"
    assert hold.accept("p") == {"extract": 1, "analyse": 2}
    assert hold.plan("p") == ()
    assert hold.accept("p") == {}
    assert work(finished) == []


def test_what_is_being_run_again_is_not_accepted(finished, hold):
    versions(finished, extract="2")
    hold.reprocess("p", key="x")
    assert hold.accept("p") == {"extract": 1}
    assert finished.outcome("x", "extract")["version"] == "1"


# What it would cost ---------------------------------------------------------------------------------------------------

PRICES = {"a": "0.10", "b": "0.30", "c": "0.20", "d": "0.000001"}


@pytest.fixture
def paid(app, hold):
    """Four items whose extraction and analysis were paid for."""
    versions(app)
    app.add(PRICES)
    work(app, cost=lambda stage, key: {"extract": PRICES[key], "analyse": "1"}.get(stage), took=lambda key: 2.0)
    return app


def test_a_forecast_adds_up_what_the_same_work_cost_and_took(paid, hold):
    versions(paid, extract="2")
    [extract, analyse, embed] = hold.plan("p")
    assert (extract.sure, extract.cost, extract.handler_time) == (4, Decimal("0.600001"), timedelta(seconds=8))
    assert (extract.perhaps, extract.perhaps_cost) == (0, 0)
    assert (analyse.sure, analyse.cost, analyse.handler_time) == (0, 0, timedelta())
    assert (analyse.perhaps, analyse.perhaps_cost) == (4, 4)
    assert (embed.perhaps_cost, embed.spread) == (0, 0)
    assert type(extract.cost) is Decimal


def test_a_forecast_says_how_far_off_it_may_be(paid, hold):
    """One standard deviation of a sum: that of a single cost, times the root of how many there are."""
    versions(paid, extract="2")
    single = statistics.pstdev([micros(price) for price in PRICES.values()])
    assert micros(hold.plan("p")[0].spread) == pytest.approx(single * math.sqrt(4), rel=1e-5)
    assert hold.plan("p", key="[a-c]*") == ()
    [extract, *_] = hold.plan("p", key="a")
    assert (micros(extract.cost), micros(extract.spread)) == (100_000, pytest.approx(single, rel=1e-5))


def test_where_all_costs_are_equal_nothing_is_uncertain(paid, hold):
    versions(paid, analyse="2")
    [analyse, _] = hold.plan("p")
    assert (analyse.cost, analyse.spread) == (4, 0)


def test_a_forecast_of_all_that_is_sure_counts_every_stage(paid, hold):
    versions(paid, extract="2", analyse="2", embed="2")
    assert [(one.stage, one.sure, micros(one.cost)) for one in hold.plan("p")] == [
        ("extract", 4, 600_001),
        ("analyse", 4, 4_000_000),
        ("embed", 4, 0),
    ]


BUDGETS = [("0.099999", 0), (0, 0), ("0.10", 1), ("0.399999", 1), (0.4, 2), ("0.6", 3), ("0.600001", 4), (1, 4)]


@pytest.mark.req("J10")
def test_a_budget_stops_before_the_item_that_does_not_fit(paid, hold):
    """In order: a later item that would still fit is not taken instead."""
    versions(paid, extract="2")
    for budget, sent in BUDGETS:
        assert hold.reprocess("p", budget=budget, dry_run=True) == ({"extract": sent} if sent else {})
    assert hold.reprocess("p", budget="0.399999") == {"extract": 1}
    assert paid.states("a")["extract"] == "pending"
    assert paid.counts()["extract"] == {"pending": 1, "done": 3}


def test_a_budget_counts_every_stage_that_is_sure_to_run(paid, hold):
    versions(paid, extract="2", analyse="2")
    assert hold.reprocess("p", budget="2.3", dry_run=True) == {"extract": 1}
    assert hold.reprocess("p", budget="2.4", dry_run=True) == {"extract": 2}


def test_a_stage_that_only_follows_is_not_held_against_the_budget(paid, hold):
    assert hold.reprocess("p", stale_only=False, budget="0.6", dry_run=True) == {"extract": 3}


def test_a_budget_that_is_no_amount_is_refused_and_nothing_is_sent_back(paid, hold):
    versions(paid, extract="2")
    for budget in (-1, "much", float("nan"), [1]):
        with pytest.raises(UsageError, match="budget: "):
            hold.reprocess("p", budget=budget)
    assert paid.counts()["extract"] == {"done": 4}


def test_a_second_reprocess_does_not_spend_a_second_budget_on_the_same_items(paid, hold):
    versions(paid, extract="2")
    assert hold.reprocess("p", budget="0.1") == {"extract": 1}
    assert hold.reprocess("p", budget="0.1") == {}
    assert hold.reprocess("p", budget="0.3") == {"extract": 1}


def test_a_look_does_not_disturb_who_writes_at_the_same_time(finished, hold):
    versions(finished, extract="2")
    with connected(finished) as other:
        plans, _ = at_once(lambda: hold.plan("p"), lambda: other.add([f"n{number}" for number in range(50)]))
    assert plans[0].why == {"version": 2}
