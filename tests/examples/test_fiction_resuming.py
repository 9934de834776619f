"""Resumers of examples.fiction: what nobody works on comes back once; what somebody works on is left to them.

FICTION_STALE_ITEMS (500) and FICTION_RACES (2000) set the sizes of the full races.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

import pytest

from examples.fiction.fakes.fake_storyteller import FakeStoryteller
from examples.fiction.models import Checkpoint, Item, Status, Task
from examples.fiction.resumer import Resumer
from examples.fiction.scheduler import Scheduler
from examples.fiction.weaver import Weaver
from tests.examples.fiction_scene import Scene
from tests.support.processes import wait_for

STALE_ITEMS = int(os.environ.get("FICTION_STALE_ITEMS", "25"))
RACES = int(os.environ.get("FICTION_RACES", "6"))
RESUMERS = 8
#: How long a row is silent before it is stale, in tests that wait for it.
STALE = 0.8


def hold(scene: Scene, count: int) -> None:
    """Let so many items be in the hands of a weaver that was never heard of again."""
    scene.add_items(count)
    while Scheduler(scene.database, batch=100).one_pass():
        pass
    weaver = Weaver(scene.database, FakeStoryteller(0, 0))
    assert sum(weaver.take() is not None for _ in range(count)) == count
    scene.age(Item, Task, Checkpoint)


@pytest.mark.req("F2", "F3")
@pytest.mark.fault(19)
def test_eight_resumers_at_once_bring_every_stale_item_back_once(crew_on):
    crew = crew_on()
    scene: Scene = crew.scene
    hold(scene, STALE_ITEMS)
    before = [item.version for item in scene.all(Item)]
    resumers = crew.together("resumer", RESUMERS, stale=60, batch=7, until="idle")
    assert sum(one.counters["resumed"] for one in resumers) == STALE_ITEMS
    assert set(scene.statuses()) == {("Pending", "Pending", "Pending")}
    assert [item.version for item in scene.all(Item)] == [version + 1 for version in before]
    for model in (Item, Task, Checkpoint):
        assert all("nothing was heard of it" in row.error for row in scene.all(model))
    assert {task.attempts for task in scene.all(Task)} == {1}
    assert "Traceback" not in crew.all_said() and "waiting for the database" not in crew.all_said()


@pytest.mark.req("F2")
@pytest.mark.parametrize("guards", ["holder,version,heartbeat", "none"])
def test_what_waits_in_the_queue_or_was_just_begun_is_not_stale(crew_on, guards: str):
    crew = crew_on(guards)
    scene: Scene = crew.scene
    scene.add_items(2)
    Scheduler(scene.database).one_pass()
    scene.age(Item)
    if guards == "none":
        # The time itself is what the task carries.
        for task, item in zip(scene.all(Task), scene.all(Item), strict=True):
            scene.edit(Task, task.id, item_started_at=item.started_at)
    weaver = crew.start("weaver", gate=crew.folder / "gate", beat=60)
    wait_for(lambda: scene.count(Checkpoint, Status.IN_PROGRESS) == 1, every=0.05)
    assert Resumer(scene.database, stale=60).one_pass() == 0
    assert weaver.is_alive
    assert sorted(scene.statuses()) == [("InProgress",) * 3, ("InProgress", "Pending", "Pending")]


@pytest.mark.req("F2", "F6")
def test_a_long_phase_that_beats_is_left_to_its_weaver_by_resumers_that_look_all_the_time(crew_on):
    crew = crew_on("holder,heartbeat")
    scene: Scene = crew.scene
    scene.add_items(1)
    Scheduler(scene.database).one_pass()
    weaver = crew.start("weaver", gate=crew.folder / "gate", beat=STALE / 5)
    resumers = [crew.start("resumer", stale=STALE, drain=False) for _ in range(2)]
    wait_for(lambda: scene.count(Checkpoint, Status.IN_PROGRESS) == 1, every=0.05)
    begun = datetime.now(UTC)

    def has_beaten_for_long() -> bool:
        beats = [row.last_heartbeat.replace(tzinfo=UTC) for row in scene.rows()]
        return all((beat - begun).total_seconds() > 2 * STALE for beat in beats)

    wait_for(has_beaten_for_long, every=0.1)
    assert all(one.is_alive for one in resumers)
    (crew.folder / "gate").touch()
    assert weaver.wait() == 0
    assert [one.stop() for one in resumers] == [0, 0]
    assert [one.counters["resumed"] for one in resumers] == [0, 0]
    assert scene.rows()[1].attempts == 1
    scene.judge()


@pytest.mark.req("F6", "F2", "F5")
@pytest.mark.parametrize("guards", ["none"])
def test_without_a_heartbeat_a_phase_that_takes_too_long_is_begun_again_and_saved_once(crew_on, guards: str):
    crew = crew_on(guards)
    scene: Scene = crew.scene
    scene.add_items(1)
    Scheduler(scene.database).one_pass()
    slow = crew.start("weaver", gate=crew.folder / "gate", blind=True)
    wait_for(lambda: scene.attempts() == ("InProgress", 1), every=0.05)
    crew.start("resumer", stale=STALE, drain=False)
    crew.start("scheduler")
    quick = crew.start("weaver")
    assert quick.wait() == 0, quick.said
    (crew.folder / "gate").touch()
    assert slow.wait() == 0, slow.said
    assert (quick.counters["woven"], slow.counters["woven"], slow.counters["taken_over"]) == (1, 0, 1)
    assert scene.rows()[1].attempts == 2
    scene.judge()


@pytest.mark.req("F2", "F3", "F5")
@pytest.mark.fault(6, 7, 8)
@pytest.mark.parametrize(
    ("guards", "how"),
    [("holder,version,heartbeat", "finishes"), ("version", "fails"), ("holder,heartbeat", "is asked to stop")],
)
def test_a_weaver_that_was_frozen_changes_nothing_of_what_another_one_has(crew_on, guards: str, how: str):
    """It wakes up and finishes, fails or hands back what was given to another one meanwhile."""
    crew = crew_on(guards)
    scene: Scene = crew.scene
    scene.add_items(1)
    Scheduler(scene.database).one_pass()
    late, gate, other_gate = how == "fails", crew.folder / "gate", crew.folder / "other gate"
    blind = how != "is asked to stop"
    frozen = crew.start("weaver", gate=gate, blind=blind, late=late, beat=0.05, grace=0.0, until="idle")
    wait_for(lambda: scene.attempts() == ("InProgress", 1), every=0.05)
    frozen.freeze()
    resumer = crew.start("resumer", stale=STALE, drain=False)
    scheduler = crew.start("scheduler", drain=False)
    other = crew.start("weaver", gate=other_gate, beat=60)
    wait_for(lambda: scene.attempts() == ("InProgress", 2), every=0.05)
    # From here on only the two weavers act.
    assert (resumer.stop(), scheduler.stop()) == (0, 0)
    before = scene.contents()
    if how == "is asked to stop":
        frozen.terminate()
    gate.touch()
    frozen.thaw()
    assert frozen.wait() == 0, frozen.said
    assert scene.contents() == before
    assert (frozen.counters["woven"], frozen.counters["retried"], frozen.counters["failed"]) == _expected(how)
    other_gate.touch()
    assert other.wait() == 0, other.said
    assert scene.rows()[1].attempts == 2
    scene.judge()


def _expected(how: str) -> tuple[int, int, int]:
    # The storyteller's own error goes on, and is counted where it is caught; no row has heard of it.
    return (0, 1, 0) if how == "fails" else (0, 0, 0)


@pytest.mark.req("F2", "F3", "F5")
@pytest.mark.fault(20)
@pytest.mark.parametrize("guards", ["none"])
def test_phases_that_end_at_the_moment_they_are_called_stale_are_saved_once(crew_on, guards: str):
    stale = 0.2
    crew = crew_on(guards, attempts=1000)
    scene: Scene = crew.scene
    resumer = crew.start("resumer", stale=stale, drain=False, poll=0.03)
    crew.start("scheduler", drain=False)
    for _ in range(2):
        crew.start("weaver", drain=False, pace=1.05 * stale, jitter=0.1)
    give_up_at = time.monotonic() + 60 + RACES
    items = 0
    # Chance decides who is first. Until a resumer was, there is no end.
    while (done := scene.count(Item, Status.COMPLETE)) < items or "resumed" not in resumer.said:
        assert time.monotonic() < give_up_at, crew.all_said()
        if done == items:
            scene.add_items(RACES)
            items += RACES
        time.sleep(0.05)
    for actor in crew.actors:
        assert actor.stop() == 0, actor.said
    scene.judge()
    count = {name: sum(one.counters[name] for one in crew.actors) for name in ("woven", "taken_over", "resumed")}
    assert count["woven"] == items
    assert count["resumed"] >= count["taken_over"]
