"""One event log for all that is not routine; an item's history, events and outcomes read as one, tells where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Backoff, Permanent, Pipeline
from holdfast.answers import HistoryEntry, LoggedEvent
from holdfast.app import Holdfast
from holdfast.engine.memos import MemoWrite, remember
from holdfast.errors import LeaseLost, UsageError
from holdfast.model.history import MEANING
from holdfast.model.states import OPEN, PASSED, State
from holdfast.testing import ManualClock
from holdfast.worker import Settings
from tests.support.effort import effort
from tests.support.harness import App
from tests.support.histories import folded
from tests.support.steps import wipe

pytestmark = pytest.mark.req("J9")

CHAIN = {"a": [], "b": ["a"], "c": ["b"]}
DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


@pytest.fixture
def hold(url: str, app: App, clock: ManualClock) -> Iterator[Holdfast]:
    """What a person asks and does, on the same store."""
    app.pipeline(CHAIN)
    with Holdfast(url, clock=clock) as hold:
        yield hold


def names(history: Sequence[HistoryEntry]) -> list[str]:
    return [" ".join(filter(None, (one.event, one.stage))) for one in history]


def told(hold: Holdfast, key: str = "x") -> list[str]:
    return names(hold.history(key))


# The history of an item -----------------------------------------------------------------------------------------------


def test_an_uneventful_item_is_told_by_its_outcomes_and_has_no_events(app, hold, clock):
    app.add(["x"])
    clock.advance(1)
    app.run_through()
    assert hold.events(key="x") == ()
    assert told(hold) == ["added", "completed a", "completed b", "completed c"]


def test_everything_that_happened_is_told_in_the_order_it_happened(app, hold, clock):
    app.add(["x"])
    app.fail(app.claim()[0])
    app.promote()
    app.release(app.claim()[0])
    app.claim("dies")
    app.kill("dies")
    app.snooze(app.claim()[0], 0)
    app.promote()
    clock.advance(1)
    app.complete(app.claim()[0], 1)
    app.permanent(app.claim(stage="b")[0])
    clock.advance(1)
    app.retry(stage="b")
    app.skip(app.claim(stage="b")[0])
    app.cancel(stage="c")
    assert told(hold) == [
        "added",
        "attempt_failed a",
        "handed_back a",
        "lease_expired a",
        "snoozed a",
        "completed a",
        "failed b",
        "retried b",
        "skipped b",
        "cancelled c",
    ]


def test_a_stage_that_ran_again_says_so_and_whether_it_came_to_something_else(app, hold):
    """Without such an event nobody could tell, from the log alone, whether the stage is back."""
    app.add(["x"])
    app.run_through(1)
    for value in (1, 2):
        app.retry(stage="a", states=["done"])
        app.complete(app.claim(stage="a")[0], value)
    assert sorted(told(hold)[:3]) == ["added", "completed b", "completed c"]
    assert told(hold)[3:] == ["retried a", "completed a", "retried a", "completed a", "reopened b"]
    assert [one.data["changed"] for one in hold.history("x") if one.event == "completed" and "changed" in one.data] == [
        False,
        True,
    ]


def test_a_result_that_waits_to_be_replaced_is_told_before_what_sent_its_stage_back(app, hold):
    """All at the same instant: time cannot tell them apart."""
    app.add(["x"])
    app.complete(app.claim()[0], 1)
    app.retry(stage="a", states=["done"])
    assert told(hold) == ["added", "completed a", "retried a"]
    assert folded(hold.history("x"), CHAIN) == {"a": State.PENDING, "b": State.PENDING}


def test_a_clock_that_was_set_back_does_not_turn_the_history_around(app, hold, clock):
    app.add(["x"])
    clock.advance(100)
    app.complete(app.claim()[0], 1)
    clock.set_wall(-3600)
    app.retry(stage="a", states=["done"])
    app.fail(app.claim(stage="a")[0], delay=60)
    clock.set_wall(-3600)
    app.retry(stage="a", states=["retry_later"])
    assert told(hold) == ["added", "completed a", "retried a", "attempt_failed a", "retried a"]
    assert folded(hold.history("x"), CHAIN)["a"] is State.PENDING


def test_what_forgotten_events_told_is_told_by_the_outcome(app, hold, clock):
    app.add(["x", "y"])
    failed, done = app.claim(most=2)
    app.permanent(failed)
    app.complete(done, 1)
    app.retry(key="y", stage="a", states=["done"])
    app.complete(app.claim(stage="a")[0], 1)
    clock.advance(100 * 24 * 3600)
    hold.prune(events_older_than="90d")
    assert told(hold, "x") == ["added", "failed a"]
    assert told(hold, "y") == ["added", "completed a"]
    app.retry(key="y", stage="a", states=["done"])
    assert told(hold, "y") == ["added", "completed a", "retried a"]


def test_a_stage_that_waited_for_children_says_when_it_began(app, hold):
    """When children ended is not in their parent's history otherwise."""
    app.pipeline({"only": []}, name="parts")
    app.pipeline({"split": [], "join": ["split"]}, name="books", only={"join": {"after_children": "parts"}})
    app.add(["x"])
    after = {"split": (), "join": ("split",)}
    [lease] = app.claim()
    assert folded(hold.history("x", "books"), after, awaiting={"join"}) == {"split": State.PENDING}
    app.complete(lease, 1)
    assert names(hold.history("x", "books")) == ["added", "completed split", "children_ended join"]
    assert folded(hold.history("x", "books"), after, awaiting={"join"}) == {"split": State.DONE, "join": State.PENDING}


# Folding --------------------------------------------------------------------------------------------------------------

numbers = count(1)
SHAPES = {"chain": CHAIN, "diamond": DIAMOND}
FINISH = ("complete", "onward", "skip", "permanent", "fail", "snooze", "release")
ACTS = (
    "claim",
    "claim",
    "claim",
    "finish",
    "finish",
    "finish",
    "finish",
    "kill",
    "promote",
    "wait",
    "set clock",
    "retry",
    "cancel",
    "reprocess",
    "deploy",
    "add",
    "accept",
)


class Person:
    """Does whatever it is told to a pipeline of its own with two items, and compares."""

    def __init__(self, app: App, hold: Holdfast, shape: dict[str, list[str]]) -> None:
        self.app, self.hold, self.shape = app, hold, shape
        self.name = f"p{next(numbers)}"
        self.version = 1
        self.leases: list[Any] = []
        app.pipeline(shape, name=self.name, max_attempts=2)
        app.add([{"key": "x", "n": 0}, {"key": "y", "n": 0}])

    def act(self, what: str, how: int) -> None:
        app, hold, stages = self.app, self.hold, list(self.shape)
        stage = stages[how % len(stages)]
        if what == "claim":
            self.leases += [(lease, how) for lease in app.claim(f"{self.name} {how % 2}", stage, most=2)]
        elif what == "finish" and self.leases:
            lease, _ = self.leases.pop(how % len(self.leases))
            try:
                self.finish(FINISH[how % len(FINISH)], lease, how)
            except LeaseLost:
                pass
        elif what == "kill" and f"{self.name} {how % 2}" in app._workers:
            app.kill(f"{self.name} {how % 2}")
        elif what == "promote":
            app.promote()
        elif what == "wait":
            app.clock.advance(how)
        elif what == "set clock":
            app.clock.set_wall(how - 8)
        elif what == "retry":
            states = [(), ("done",), ("done", "skipped", "failed"), ("retry_later",)][how % 4]
            app.retry(stage=stage if how % 3 else None, states=states, key="xy"[how % 2])
        elif what == "cancel":
            app.cancel(stage=stage, key="xy"[how % 2])
        elif what == "reprocess":
            hold.reprocess(self.name, stale_only=how % 3 > 0, stage=stage if how % 2 else None)
        elif what == "accept":
            hold.accept(self.name, stage=stage)
        elif what == "add":
            app.add([{"key": "xy"[how % 2], "n": how}])
        elif what == "deploy":
            self.version += 1
            bumped = {name: {"version": str(self.version)} for name in stages[: how % 3 + 1]}
            app.pipeline(self.shape, name=self.name, max_attempts=2, only=bumped)

    def finish(self, way: str, lease: Any, how: int) -> None:
        app = self.app
        row = app.layout().stages[lease.stage]
        if way in ("complete", "onward"):
            onward = self.shape if way == "onward" else ()
            moved = app.complete(lease, how % 2, version=row.version, onward=onward)
            self.leases += [(one, how) for one in moved]
        elif way == "fail":
            app.fail(lease, delay=how)
        elif way == "snooze":
            app.snooze(lease, how)
        else:
            getattr(app, way)(lease)

    def compare(self) -> None:
        """Where each stage is, by its history and by the tables."""
        for key in "xy":
            history = self.hold.history(key, self.name)
            by_history, by_tables = folded(history, self.shape), self.app.states(key)
            assert by_history.keys() == by_tables.keys(), names(history)
            for stage, state in by_history.items():
                real = State(by_tables[stage])
                if state is State.PENDING:
                    agrees = real in (State.PENDING, State.IN_PROGRESS)
                elif state is State.RETRY_LATER:
                    agrees = real in OPEN
                else:
                    agrees = real is state
                assert agrees, f"{stage} of {key} is {real}, its history says {state}: {names(history)}"
        assert self.hold.check() == []


@pytest.mark.req("V1")
@given(
    shape=st.sampled_from(sorted(SHAPES)),
    acts=st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 15)), min_size=5, max_size=30),
)
@settings(max_examples=effort(7, 100), deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_happens_to_items_folding_their_history_gives_where_they_are(
    app: App, hold: Holdfast, shape: str, acts: list[tuple[str, int]]
):
    """Claims and due times leave no trace: see model/history.py."""
    # What is looked at after each step is all there is: not what examples before this one have left.
    wipe(app.store)
    hold.store.cache.clear()
    person = Person(App(app.store, app.clock), hold, SHAPES[shape])
    person.compare()
    for what, how in acts:
        person.act(what, how)
        person.compare()


def test_what_is_due_folds_to_retry_later_until_its_next_attempt_ends(app, hold, clock):
    app.add(["x"])
    app.fail(app.claim()[0], delay=60)
    for _ in range(2):
        assert folded(hold.history("x"), CHAIN) == {"a": State.RETRY_LATER}
        clock.advance(60)
        app.promote()
        app.claim()
    app.kill("w")
    assert folded(hold.history("x"), CHAIN) == {"a": State.PENDING}


def test_stages_that_a_pipeline_no_longer_has_do_not_count(app, hold):
    app.add(["x"])
    app.complete(app.claim()[0])
    app.permanent(app.claim(stage="b")[0])
    app.pipeline({"a": [], "c": ["a"]})
    app.backfill()
    assert folded(hold.history("x"), {"a": (), "c": ("a",)}) == {"a": State.DONE, "c": State.PENDING}


def test_every_event_with_a_meaning_is_one_that_the_engine_records_or_an_outcome():
    assert set(MEANING.values()) == (OPEN | PASSED | {State.FAILED, State.EXHAUSTED, State.CANCELLED}) - {
        State.IN_PROGRESS
    }


# Events of a run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ran(url: str) -> Iterator[Holdfast]:
    """A run in which one item is done, one fails, one is out of attempts, and money is spent."""
    books = Pipeline("books")

    @books.stage(max_attempts=2, backoff=Backoff(first_seconds=0.001, most_seconds=0.001))
    def extract(item, ctx):
        ctx.cost("0.25", "gemini")
        if item.key == "gone":
            raise Permanent("no such book")
        if item.key == "broken":
            raise ValueError("torn page")
        return 1

    with Holdfast(url, [books.spec]) as app:
        app.add("books", ["fine", "gone", "broken"])
        app.run(Settings(name="night shift", poll_seconds=0.05))
        yield app


def test_a_run_begins_and_ends_with_an_event_and_says_what_it_did(ran):
    [started] = ran.events(event="worker_started")
    [stopped] = ran.events(event="worker_stopped")
    assert started.data["name"] == stopped.data["name"] == "night shift"
    assert started.data["worker"] == stopped.data["worker"]
    assert started.data["stages"] == 1
    assert stopped.data["done"] == {"done": 1, "failed": 1, "retry_later": 2}
    assert started.at < stopped.at


def test_a_pipeline_that_is_new_or_changed_is_told(ran):
    [event] = ran.events(event="pipeline_registered", pipeline="books")
    assert event.data == {"added": ["extract"], "changed": [], "removed": [], "renamed": [], "held": []}


def test_failures_are_told_with_the_error_and_where_it_came_from(ran):
    for event, key, error in (
        ("failed", "gone", "Permanent: no such book"),
        ("attempt_failed", "broken", "ValueError: torn page"),
        ("exhausted", "broken", "ValueError: torn page"),
    ):
        [found] = ran.events(event=event, key=key)
        assert (found.pipeline, found.stage, found.item) == ("books", "extract", key)
        assert found.data["error"] == error
        assert "in extract" in found.data["traceback"] and "Traceback" in found.data["traceback"]
    assert [one.data["attempt"] for one in ran.events(event="attempt_failed")] == [1]


def test_money_is_told_however_the_attempt_ended(ran):
    costs = {key: [one for one in ran.history(key) if one.event == "cost"] for key in ("broken", "fine", "gone")}
    assert {key: len(told) for key, told in costs.items()} == {"broken": 2, "fine": 1, "gone": 1}
    assert {(one.amount, one.stage) for told in costs.values() for one in told} == {(Decimal("0.25"), "extract")}


# Events of trouble, and of people -------------------------------------------------------------------------------------


def test_a_lease_that_was_lost_and_work_that_was_taken_over_are_told(app, hold):
    app.add(["x"])
    [late] = app.claim("late")
    app.kill("late")
    with pytest.raises(LeaseLost):
        app.complete(late, 1)
    [died] = hold.events(event="worker_died")
    assert (died.data["name"], died.data["why"]) == ("late", "its process is gone")
    [freed] = hold.events(event="lease_expired", key="x")
    assert (freed.stage, freed.data["attempt"], freed.data["worker"]) == ("a", 1, died.data["worker"])
    [lost] = hold.events(event="lease_lost", key="x")
    assert lost.data == {"lease": late.id, "attempt": 1, "refused": "done"}


def test_a_worker_that_fell_silent_is_told(app, hold, clock):
    app.claim("silent")
    clock.advance(31)
    app.reap()
    [died] = hold.events(event="worker_died")
    assert died.data["why"] == "its heartbeat stopped"


def test_a_call_in_doubt_is_told_with_what_was_decided_and_its_key(app, hold):
    app.add(["x"])
    [lease] = app.claim()
    app.store.write(lambda tx: remember(tx, [MemoWrite(lease, "gemini", "intended", "1", "k-1", doubt="called again")]))
    [event] = hold.events(event="in_doubt", key="x")
    assert event.stage == "a"
    assert event.data == {"memo": "gemini", "decided": "called again", "idempotency_key": "k-1"}


def test_what_a_person_did_is_told_with_who_and_why(app, hold):
    app.add(["x", "y"])
    app.permanent(app.claim()[0])
    hold.retry(key="x", by="ada", reason="the shelf is back")
    hold.cancel(key="x", by="bo", reason="no, it is not")
    for lease in app.claim(most=5):
        app.complete(lease, 1)
    app.pipeline(CHAIN, only={"a": {"version": "2"}})
    hold.accept("p", key="y", by="cy", reason="same model")
    app.pipeline(CHAIN, only={"a": {"version": "3"}})
    hold.reprocess("p", key="y", by="di", reason="new model")
    for event, key, was, by, reason in (
        ("retried", "x", "failed", "ada", "the shelf is back"),
        ("cancelled", "x", "pending", "bo", "no, it is not"),
        ("accepted", "y", None, "cy", "same model"),
        ("reprocessed", "y", "done", "di", "new model"),
    ):
        [found] = hold.events(event=event, key=key)
        data = found.data
        assert (found.stage, data.get("was"), data["by"], data["reason"]) == ("a", was, by, reason)


# Asking for events ----------------------------------------------------------------------------------------------------


@pytest.fixture
def log(app, hold, clock) -> list[int]:
    """Ten attempts that failed, a minute apart, of two items in two pipelines; their ids."""
    app.add(["x", "y"])
    for _ in range(3):
        for lease in app.claim(most=2):
            app.release(lease)
        clock.advance(60)
    app.pipeline({"a": []}, name="q")
    app.add(["x"])
    for _ in range(4):
        app.release(app.claim()[0])
        clock.advance(60)
    return [one.id for one in hold.events(event="handed_back", most=1000)]


def ids(events: Sequence[LoggedEvent]) -> list[int]:
    return [one.id for one in events]


def test_the_newest_events_are_told_oldest_first(hold, log):
    assert len(log) == 10 and log == sorted(log)
    assert ids(hold.events(event="handed_back", most=3)) == log[-3:]
    assert ids(hold.events(event="handed_back")) == log


def test_events_can_be_followed_from_any_place(hold, log):
    seen: list[int] = []
    while page := hold.events(event="handed_back", after=seen[-1] if seen else 0, most=4):
        seen += ids(page)
    assert seen == log
    assert ids(hold.events(event="handed_back", after=log[6])) == log[7:]
    assert hold.events(after=10**9) == ()


def test_events_from_a_time_on(hold, log, clock):
    events = hold.events(event="handed_back", most=1000)
    assert ids(hold.events(event="handed_back", since=events[4].at)) == log[4:]
    assert ids(hold.events(event="handed_back", since=events[-1].at + timedelta(microseconds=1))) == []
    assert ids(hold.events(event="handed_back", since=events[4].at, after=log[6])) == log[7:]


def test_events_of_a_kind_an_item_and_a_pipeline(hold, log):
    assert ids(hold.events(event="handed_back", pipeline="q")) == log[6:]
    assert ids(hold.events(event="handed_back", pipeline="p", key="x")) == log[0:6:2]
    assert ids(hold.events(key="y")) == log[1:6:2]
    assert hold.events(event="worker_died") == ()
    for unknown in ({"event": "hand_back"}, {"pipeline": "no such pipeline"}):
        with pytest.raises(UsageError, match=r"there is no .* there are: "):
            hold.events(**unknown)
    with pytest.raises(UsageError, match="several pipelines"):
        hold.events(key="x")
    with pytest.raises(UsageError, match="no item 'z'"):
        hold.events(key="z")


def test_an_event_is_told_with_names_not_numbers(hold, log):
    [event] = hold.events(event="handed_back", pipeline="q", most=1)
    assert (event.pipeline, event.item, event.stage) == ("q", "x", "a")
    assert event.data == {"reason": "shutdown"}
