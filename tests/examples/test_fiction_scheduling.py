"""Schedulers of examples.fiction: each item is enqueued once, whoever races for it, whoever dies.

FICTION_ITEMS sets the size of the race; 10000 is a full one.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from examples.fiction.fakes.fake_storyteller import FakeStoryteller
from examples.fiction.scheduler import Scheduler
from examples.fiction.weaver import Weaver
from tests.examples.fiction_scene import GUARDS, Scene

ITEMS = int(os.environ.get("FICTION_ITEMS", "40"))


@pytest.mark.req("F1", "F5", "F8")
@pytest.mark.parametrize("guards", GUARDS)
def test_of_two_schedulers_that_have_seen_the_same_items_each_item_is_enqueued_by_one(crew_on, guards: str):
    crew = crew_on(guards)
    crew.scene.add_items(10)
    both = crew.together("scheduler", 2, passes=1)
    assert crew.scene.tasks_per_item() == Counter(range(1, 11))
    assert set(crew.scene.statuses()) == {("InProgress", "Pending", "Pending")}
    count = Counter()
    for one in both:
        assert one.counters["won"] + one.counters["lost"] == 10
        count.update(one.counters)
    assert (count["won"], count["lost"], count["enqueued"], count["taken_twice"]) == (10, 10, 10, 0)
    assert all(f"claimed {one.counters['won']} items of 10 seen" in one.said for one in both)


@pytest.mark.req("F8", "F5")
@pytest.mark.parametrize("guards", ["holder,version,heartbeat", "none"])
def test_with_the_guard_off_both_enqueue_them_and_the_counters_tell(crew_on, guards: str):
    """What the guard prevents; and that finishing is guarded either way."""
    crew = crew_on(guards)
    scene: Scene = crew.scene
    scene.add_items(10)
    both = crew.together("scheduler", 2, passes=1, guarded=False)
    assert set(scene.tasks_per_item().values()) == {2}
    assert sum(one.counters["taken_twice"] for one in both) == 10
    assert all("the guarded claim is off" in one.said for one in both if one.counters["taken_twice"])
    weaver = Weaver(scene.database, FakeStoryteller(0, 0))
    while weaver.one_pass():
        pass
    assert weaver.counters.woven == 10
    scene.judge()


@pytest.mark.req("F8", "F1")
def test_the_guard_can_be_turned_off_and_on_again_in_the_middle_of_a_backlog(crew_on):
    crew = crew_on()
    crew.scene.add_items(30)
    weaver = crew.start("weaver")
    for guarded in (True, False, True):
        scheduler = crew.run("scheduler", passes=2, batch=5, guarded=guarded)
        assert (scheduler.counters["won"], scheduler.counters["taken_twice"]) == (10, 0)
        assert ("took 5 items without a guard" in scheduler.said) is not guarded
    assert weaver.wait() == 0, weaver.said
    crew.scene.judge()


@pytest.mark.req("F1")
def test_a_long_backlog_is_enqueued_once_by_schedulers_of_which_some_are_killed(crew_on):
    crew = crew_on()
    scene: Scene = crew.scene
    scene.add_items(ITEMS)
    dying = [crew.start("scheduler", batch=4, until="idle", die_at={"enqueue": nth}) for nth in (3, 10)]
    living = [crew.start("scheduler", batch=4, until="idle") for _ in range(2)]
    assert [one.wait() for one in living] == [0, 0], crew.all_said()
    assert {one.wait() for one in dying} <= {-9, 0}
    # Those that were killed in the middle of a claim have claimed nothing and enqueued nothing.
    crew.run("scheduler", until="idle")
    assert scene.tasks_per_item() == Counter(range(1, ITEMS + 1))
    assert set(scene.statuses()) == {("InProgress", "Pending", "Pending")}
    assert "Traceback" not in crew.all_said()


@pytest.mark.req("F1", "F3")
def test_a_scheduler_that_is_killed_between_claim_and_task_leaves_no_item_behind(crew_on):
    crew = crew_on()
    crew.scene.add_items(5)
    assert crew.start("scheduler", die_at={"enqueue": 3}).wait() == -9
    assert set(crew.scene.statuses()) == {("Pending", None, None)}
    assert Scheduler(crew.scene.database).one_pass() == 5
    assert crew.scene.tasks_per_item() == Counter(range(1, 6))


@pytest.mark.req("F1")
def test_an_item_is_enqueued_only_when_the_one_it_starts_from_is_complete(crew_on):
    scene = crew_on().scene
    scene.add_plan(chapters=1, scenes=1)
    scheduler = Scheduler(scene.database)
    assert [scheduler.one_pass(), scheduler.one_pass()] == [1, 0]
    assert [status for status, *_ in scene.statuses()] == ["InProgress", "Pending", "Pending", "Pending"]
    assert Weaver(scene.database, FakeStoryteller(0, 0)).one_pass() == 1
    assert scheduler.one_pass() == 1
    assert [status for status, *_ in scene.statuses()] == ["Complete", "InProgress", "Pending", "Pending"]
