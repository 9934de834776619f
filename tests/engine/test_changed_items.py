"""What is stale is known without looking at every item, and is what a look at every item would find.

Results are counted by the version that made them; items that may have changed are listed. Both are put right where they cannot
be trusted.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from holdfast.engine import changed_items, plan_and_reprocess, recount, selection
from holdfast.engine.actions import act
from holdfast.engine.delete import Delete
from holdfast.engine.plan_and_reprocess import Accept, Reprocess
from holdfast.engine.selection import Who
from holdfast.errors import LeaseLost
from holdfast.store import Store, Transaction
from holdfast.testing import ManualClock
from tests.support.effort import effort
from tests.support.harness import App, connected
from tests.support.steps import quick_store, wipe
from tests.support.waiting import STUCK_SECONDS, wait_for

pytestmark = pytest.mark.req("J13", "V14")

CHAIN = {"a": [], "b": ["a"], "c": ["b"]}
SHAPES = (
    CHAIN,
    {"a": [], "c": ["a"]},
    {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]},
    {"b": [], "a": ["b"], "c": ["a", "b"]},
)
EXAMPLES = {"sqlite": effort(12, 400), "postgres": effort(5, 400)}
STEPS = 40


def walk(tx: Transaction, stage: str | None = None, *, every_item: bool = True) -> list[tuple[str, str, str, bool]]:
    """What is stale: key, stage, why, and whether it comes first."""
    found, _, _ = plan_and_reprocess.stretch(tx, "p", stage, None, True, every_item, 0)
    return [(one.key, one.stage.name, one.why, one.first) for one in found]


def why(app: App, stage: str | None = None) -> str | None:
    return app.store.read(lambda tx: plan_and_reprocess.why_every_item(tx, "p", stage))


def recheck(app: App, most: int = 500) -> None:
    """What workers do: look at every item where that is due."""
    for pipeline, reason in app.store.read(lambda tx: tx.run("pipelines_to_recheck")):
        place: changed_items.WalkPlace | None = changed_items.WalkPlace(pipeline, 0, reason)
        while place is not None:
            _, place = app.store.write(lambda tx, place=place: changed_items.recheck(tx, place, most))  # type: ignore[misc]


def count_anew(app: App) -> list[str]:
    with connected(app) as reader:
        return recount.repair(reader.store, app.store)


def wrong(app: App) -> list[str]:
    return recount.check(app.store)


# Any order of anything ------------------------------------------------------------------------------------------------


class StaleMachine(RuleBasedStateMachine):
    """Items come, change, run, run again, are set aside, accepted and deleted, under versions and shapes that change."""

    store: Store
    clock: ManualClock

    @initialize()
    def begin(self) -> None:
        wipe(self.store)
        self.app = App(self.store, self.clock)
        self.shape: Any = CHAIN
        self.version = "1"
        self.hands: list[Any] = []
        self.app.pipeline(self.shape)
        count_anew(self.app)
        self.app.add([{"key": key, "n": 0} for key in "wxyz"])

    @rule(key=st.sampled_from("vwxyz"), n=st.integers(0, 1))
    def add(self, key: str, n: int) -> None:
        self.app.add([{"key": key, "n": n}])

    @rule(pick=st.integers(0, 9), most=st.integers(1, 4))
    def claim(self, pick: int, most: int) -> None:
        self.hands += self.app.claim(stage=self._stage(pick), most=most)

    @rule(
        pick=st.integers(0, 9),
        value=st.integers(0, 1),
        version=st.sampled_from("12"),
        how=st.sampled_from(["complete", "complete", "complete", "skip", "permanent", "release"]),
    )
    def finish(self, pick: int, value: int, version: str, how: str) -> None:
        if not self.hands:
            return
        lease = self.hands.pop(pick % len(self.hands))
        try:
            if how == "complete":
                self.app.complete(lease, value, version=version)
            else:
                getattr(self.app, how)(lease)
        except LeaseLost:
            pass

    @rule()
    def run_all(self) -> None:
        """Everything that waits runs, with today's versions."""
        while leases := self.app.claim(most=10):
            for lease in leases:
                self.app.complete(lease, 1, version=self.version)

    @rule(pick=st.integers(0, 9), key=st.sampled_from("wxyz"))
    def send_back(self, pick: int, key: str) -> None:
        self.app.retry(stage=self._stage(pick), key=key, states=["done", "skipped", "failed", "cancelled"])

    @rule(pick=st.integers(0, 9), key=st.sampled_from("wxyz*"))
    def cancel(self, pick: int, key: str) -> None:
        self.app.cancel(stage=self._stage(pick), key=key)

    @rule(version=st.sampled_from("12"), shape=st.sampled_from([None, None, *SHAPES]))
    def deploy(self, version: str, shape: Any) -> None:
        self.version, self.shape = version, shape or self.shape
        self.app.pipeline(self.shape, version=version)
        self.app.backfill()

    @rule(limit=st.sampled_from([None, 1]))
    def reprocess(self, limit: int | None) -> None:
        act(self.store, Reprocess("p", limit=limit), Who())

    @rule()
    def accept(self) -> None:
        act(self.store, Accept("p"), Who())

    @rule(most=st.integers(1, 5))
    def clear(self, most: int) -> None:
        self.app.clear(most)

    @rule(most=st.integers(1, 5))
    def recheck(self, most: int) -> None:
        recheck(self.app, most)

    @rule(key=st.sampled_from("wxyz"))
    def delete(self, key: str) -> None:
        act(self.store, Delete(selection.Which(pipeline="p", key=key)), Who())

    @invariant()
    def what_is_known_is_what_a_walk_finds(self) -> None:
        def look(tx: Transaction) -> None:
            for stage in (None, *self.shape):
                reason = plan_and_reprocess.why_every_item(tx, "p", stage)
                if reason is None:
                    assert walk(tx, stage, every_item=False) == walk(tx, stage)
                else:
                    assert reason in (plan_and_reprocess.VERSION, plan_and_reprocess.UNSURE)
                    assert reason == plan_and_reprocess.VERSION or tx.run("pipelines_to_recheck")

        self.store.read(look)

    @invariant()
    def what_is_kept_is_what_the_rows_say(self) -> None:
        assert wrong(self.app) == []

    def _stage(self, pick: int) -> str:
        return sorted(self.shape)[pick % len(self.shape)]


def test_after_any_order_of_operations_the_quick_answer_is_that_of_a_walk(database, request):
    clock = ManualClock()
    with quick_store(database, request, clock) as store:

        class Machine(StaleMachine):
            pass

        Machine.store, Machine.clock = store, clock
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=int(os.environ.get("HOLDFAST_EXAMPLES", EXAMPLES[database])),
                stateful_step_count=STEPS,
                deadline=None,
                print_blob=True,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
                # To know that there is a failure is enough where one is expected.
                phases=[phase for phase in Phase if phase is not Phase.shrink or "HOLDFAST_MUTANT" not in os.environ],
            ),
        )


# The list ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(app: App) -> App:
    """Three items that have been through all stages."""
    app.pipeline(CHAIN)
    app.add([{"key": key, "n": 1} for key in "xyz"])
    app.run_through()
    return app


def test_nothing_is_listed_that_only_ran_through(finished):
    finished.add([{"key": "x", "n": 1}])
    assert finished.listed() == set()
    assert why(finished) is None


def test_an_item_whose_data_has_changed_is_listed_until_its_results_are_made_from_it(finished):
    finished.add([{"key": "x", "n": 2}])
    assert finished.listed() == {"x"}
    assert (finished.clear(), finished.listed()) == (0, {"x"})
    act(finished.store, Reprocess("p"), Who())
    assert finished.clear() == 0, "it is open"
    finished.run_through()
    assert (finished.clear(), finished.listed()) == (1, set())
    assert finished.store.read(walk) == []


def test_an_item_that_changed_before_it_ran_is_in_order_when_it_has_run(app):
    app.pipeline(CHAIN)
    app.add([{"key": "x", "n": 1}])
    app.add([{"key": "x", "n": 2}])
    assert (app.clear(), app.listed()) == (0, {"x"})
    app.run_through()
    assert (app.clear(), app.listed()) == (1, set())


def test_a_result_made_from_data_that_changed_meanwhile_stays_listed(app):
    """The worker was given the old data."""
    app.pipeline(CHAIN)
    app.add([{"key": "x", "n": 1}])
    [lease] = app.claim()
    app.add([{"key": "x", "n": 2}])
    app.complete(lease, 1)
    app.run_through()
    assert app.clear() == 0
    assert why(app) is None
    assert app.store.read(lambda tx: walk(tx, every_item=False)) == app.store.read(walk) != []


def test_an_item_stays_listed_where_a_re_run_was_cancelled_behind_another_output(finished):
    finished.retry(stage="a", key="x", states=["done"])
    finished.complete(finished.claim(stage="a")[0], "another")
    finished.cancel(stage="b")
    assert finished.clear() == 0
    assert finished.store.read(lambda tx: walk(tx, every_item=False)) == [
        ("x", "b", "input changed", True),
        ("x", "c", "upstream", False),
    ]


def test_items_that_are_deleted_leave_the_list(finished):
    finished.add([{"key": "x", "n": 2}])
    act(finished.store, Delete(selection.Which(pipeline="p", key="x")), Who())
    assert finished.clear() == 1
    assert finished.query("SELECT COUNT(*) FROM holdfast_changed") == [(0,)]


def test_the_list_is_cleared_in_stretches(finished):
    finished.add([{"key": key, "n": 2} for key in "xyz"])
    finished.add([{"key": key, "n": 1} for key in "xz"])
    assert (finished.clear(most=1), finished.listed()) == (2, {"y"})


@pytest.mark.direct("knows a session by its process")
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_an_item_that_changes_while_it_is_taken_off_the_list_stays_on_it(finished):
    """Whoever changes the item waits for whoever has just found it in order, and lists it then. (On SQLite one writes at a
    time.)"""
    finished.add([{"key": "x", "n": 2}])
    finished.add([{"key": "x", "n": 1}])
    with connected(finished) as other, connected(finished) as watcher, ThreadPoolExecutor(1) as pool:
        process = other.store.connect().connection.info.backend_pid
        waits = f"SELECT 1 FROM pg_stat_activity WHERE pid = {process} AND wait_event_type = 'Lock'"

        def work(tx: Transaction) -> Any:
            changed_items.clear(tx, changed_items.WalkPlace())
            adding = pool.submit(other.add, [{"key": "x", "n": 3}])
            wait_for(lambda: watcher.query(waits))
            return adding

        finished.store.write(work).result(STUCK_SECONDS)
    assert finished.listed() == {"x"}


def test_results_that_are_deleted_are_not_counted_any_more(finished):
    finished.retry(stage="b", key="y", states=["done"])
    act(finished.store, Delete(selection.Which(pipeline="p", key=["x", "y"])), Who())
    assert finished.made_by() == finished.remade_by() == {stage: {"1": 1} for stage in CHAIN}


# Where every item must be looked at -----------------------------------------------------------------------------------


def test_a_version_that_does_not_stand_is_looked_for_in_every_item(finished):
    finished.pipeline(CHAIN, only={"b": {"version": "2"}})
    assert (why(finished), why(finished, "a"), why(finished, "b")) == (
        plan_and_reprocess.VERSION,
        None,
        plan_and_reprocess.VERSION,
    )
    act(finished.store, Reprocess("p"), Who())
    while leases := finished.claim(most=10):
        for lease in leases:
            finished.complete(lease, 2, version="2" if lease.stage == finished.stage("b").id else "1")
    assert why(finished) is None
    assert finished.store.read(walk) == []


def test_a_stage_that_was_moved_is_looked_for_in_every_item_until_each_was_looked_at_once(finished):
    finished.pipeline({"a": [], "b": ["a"], "c": ["a"]})
    assert why(finished) == plan_and_reprocess.UNSURE
    recheck(finished, most=2)
    assert why(finished) is None
    assert finished.listed() == {"x", "y", "z"}
    assert finished.store.read(lambda tx: walk(tx, every_item=False)) == finished.store.read(walk) != []


def test_an_item_that_was_looked_at_before_a_stage_put_in_had_run_is_found_when_it_has(finished):
    """Nothing could be said of what follows the new stage as long as that had not passed."""
    finished.pipeline({"a": [], "d": ["a"], "b": ["a", "d"], "c": ["b"]})
    finished.backfill()
    recheck(finished)
    finished.run_through()
    assert finished.clear() == 0
    assert why(finished) is None
    found = finished.store.read(lambda tx: walk(tx, every_item=False))
    assert found == finished.store.read(walk)
    assert [(stage, reason) for _, stage, reason, _ in found] == [("b", "input changed"), ("c", "upstream")] * 3


def test_a_shape_that_changes_while_items_are_looked_at_is_looked_at_anew(finished):
    finished.pipeline({"a": [], "b": ["a"], "c": ["a"]})
    [(pipeline, reason)] = finished.store.read(lambda tx: tx.run("pipelines_to_recheck"))
    begun = finished.store.write(lambda tx: changed_items.recheck(tx, changed_items.WalkPlace(pipeline, 0, reason), 2))[
        1
    ]
    assert begun is not None
    finished.pipeline({"a": [], "c": ["a"], "b": ["c"]})
    finished.store.write(lambda tx: changed_items.recheck(tx, begun))
    assert why(finished) == plan_and_reprocess.UNSURE


def test_a_worker_goes_on_where_it_stopped_and_begins_anew_for_another_shape(finished, monkeypatch):
    monkeypatch.setattr(changed_items.recheck, "__defaults__", (2,))
    finished.pipeline({"a": [], "b": ["a"], "c": ["a"]})

    def step(place: changed_items.WalkPlace) -> tuple[bool, changed_items.WalkPlace]:
        return finished.store.write(lambda tx: changed_items.one_stretch(tx, place))

    more, place = step(changed_items.WalkPlace())
    assert (more, place.recheck != 0, place.item != 0) == (True, True, True)
    assert step(place) == (True, changed_items.WalkPlace())
    assert why(finished) is None
    finished.pipeline({"a": [], "c": ["a"], "b": ["c"]})
    assert step(place)[1].item == place.item, "it began again, and has come as far"
    assert why(finished) == plan_and_reprocess.UNSURE


def test_a_pipeline_that_is_new_is_known(app):
    app.pipeline(CHAIN)
    assert why(app) is None


# Counted anew ---------------------------------------------------------------------------------------------------------


def forget_what_is_kept(app: App) -> None:
    """As a store is that was just brought up to date."""
    app.execute("DELETE FROM holdfast_versions")
    app.execute("DELETE FROM holdfast_changed")
    app.execute("UPDATE holdfast_pipelines SET recheck = -1")


def test_what_was_never_counted_is_not_wrong_and_is_counted_once(finished):
    finished.add([{"key": "x", "n": 2}])
    forget_what_is_kept(finished)
    assert (why(finished), wrong(finished)) == (plan_and_reprocess.UNSURE, [])
    recheck(finished)
    assert why(finished) == plan_and_reprocess.UNSURE, (
        "workers leave it alone: one of the version before may be at work"
    )
    told = count_anew(finished)
    assert told == [
        *(f"p/{stage}, version '1': counted 0, there are 3" for stage in CHAIN),
        "p: 1 items that may have changed are not listed as such",
    ]
    assert (why(finished), finished.listed(), wrong(finished), count_anew(finished)) == (None, {"x"}, [], [])


def test_results_of_a_worker_that_does_not_count_versions_are_looked_for_in_every_item(finished):
    """One of the version before writes outcomes and counts, and nothing else."""
    finished.add(["v"])
    finished.complete(finished.claim()[0])
    finished.execute("DELETE FROM holdfast_versions WHERE stage = 1 AND slot <> 0")
    finished.execute("INSERT INTO holdfast_versions (slot, stage, version, type, n) VALUES (0, 1, '1', '', 3)")
    assert (why(finished), why(finished, "b")) == (plan_and_reprocess.UNSURE, None)
    assert wrong(finished) == ["p/a, version '1': counted 3, there are 4"]
    count_anew(finished)
    assert (why(finished), wrong(finished)) == (None, [])


def test_an_item_that_should_be_listed_and_is_not_is_found_by_a_check(finished):
    finished.add([{"key": "x", "n": 2}])
    finished.execute("DELETE FROM holdfast_changed")
    assert wrong(finished) == ["p: 1 items that may have changed are not listed as such"]
    count_anew(finished)
    assert (finished.listed(), wrong(finished)) == ({"x"}, [])


def test_work_that_goes_on_while_versions_are_counted_anew_is_counted_once(finished):
    """How far the counts are off does not change when rows and counts change together."""
    forget_what_is_kept(finished)
    real = finished.store.write

    def write(work: Any, **given: Any) -> Any:
        finished.store.write = real  # type: ignore[method-assign]
        finished.add(["v"])
        finished.run_through()
        finished.retry(stage="b", key="x", states=["done"])
        return real(work, **given)

    finished.store.write = write  # type: ignore[method-assign]
    count_anew(finished)
    assert finished.made_by() == finished.remade_by() == {"a": {"1": 4}, "b": {"1": 3}, "c": {"1": 4}}


def test_of_two_who_count_anew_at_once_one_does(finished):
    forget_what_is_kept(finished)
    real = finished.store.write

    def write(work: Any, **given: Any) -> Any:
        finished.store.write = real  # type: ignore[method-assign]
        count_anew(finished)
        return real(work, **given)

    finished.store.write = write  # type: ignore[method-assign]
    count_anew(finished)
    assert finished.made_by() == finished.remade_by()


# What it costs --------------------------------------------------------------------------------------------------------


def test_a_walk_is_told_with_its_reason_and_a_quick_answer_is_not(finished, monkeypatch):
    monkeypatch.setattr(plan_and_reprocess, "CHUNK", 2)
    monkeypatch.setattr(plan_and_reprocess, "few_items", lambda *_: None)
    told: list[tuple[str, int]] = []
    plan_and_reprocess.plan(finished.store, "p", on_walk=lambda *said: told.append(said))
    assert told == []
    finished.pipeline(CHAIN, version="2")
    plan_and_reprocess.plan(finished.store, "p", on_walk=lambda *said: told.append(said))
    assert told == [(plan_and_reprocess.VERSION, 2), (plan_and_reprocess.VERSION, 3)]


def test_an_attempt_that_began_before_its_stage_was_put_behind_another_is_listed(app):
    app.pipeline({"a": []})
    app.add(["x"])
    [lease] = app.claim(stage="a")
    app.pipeline({"b": [], "a": ["b"]})
    recheck(app, 500)
    app.complete(lease, 1)
    assert wrong(app) == []
