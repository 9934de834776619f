"""Fulfillers of examples.fiction: one entry for each thing, whoever races for it; none that nobody asked for."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from examples.fiction.fakes.fake_storyteller import FakeStoryteller
from examples.fiction.lore import fulfiller, link
from examples.fiction.models import Entry, Item, Requirement, Status
from tests.examples.fiction_scene import Scene
from tests.support.processes import wait_for

REQUIREMENTS = int(os.environ.get("FICTION_ITEMS", "25"))
SLUGS = ("salt-stair", "lamp-road", "tide-court", "ninth-bell", "ash-ferry")


def require(scene: Scene, count: int) -> None:
    scene.add_requirements(*(SLUGS[n % len(SLUGS)] for n in range(count)))


def quiet(scene: Scene) -> None:
    """No item waits: only lore is left to be done."""
    for item in scene.all(Item):
        scene.edit(Item, item.id, status=Status.COMPLETE)


@pytest.mark.req("F4", "F5")
@pytest.mark.parametrize("guards", ["holder,version,heartbeat", "none"])
def test_two_fulfillers_at_once_give_every_requirement_its_entry_and_write_none_twice(crew_on, guards: str):
    crew = crew_on(guards)
    scene: Scene = crew.scene
    require(scene, REQUIREMENTS)
    quiet(scene)
    both = crew.together("fulfiller", 2, fail_one_in=4)
    scene.judge_lore()
    assert len(scene.all(Requirement)) == REQUIREMENTS
    assert len(scene.all(Entry)) == len(SLUGS)
    assert sum(one.counters["completed"] for one in both) == REQUIREMENTS
    assert sum(one.counters["lost"] for one in both) == 0
    assert "Traceback" not in crew.all_said() and "IntegrityError" not in crew.all_said()


@pytest.mark.req("F4", "F8")
def test_the_same_requirement_fulfilled_by_two_at_the_same_time_has_one_entry_and_no_exception(crew_on):
    """With the guard off both have it in hand, and both have made up a text."""
    crew = crew_on()
    scene: Scene = crew.scene
    scene.add_requirements("salt-stair")
    ledger, gate = crew.folder / "ledger", crew.folder / "gate"
    fulfil_once = partial(
        crew.start, "fulfiller", guarded=False, gate=gate, ledger=ledger, passes=1, stale=60, concurrency=1
    )
    first = fulfil_once()
    _wait_for_lines(ledger, 1)
    # The second one has looked before the first one took it, and the first has no hand free to take it again.
    scene.edit(Requirement, 1, status=Status.PENDING)
    second = fulfil_once()
    _wait_for_lines(ledger, 2)
    gate.touch()
    assert (first.wait(), second.wait()) == (0, 0), crew.all_said()
    scene.judge_lore()
    assert len(scene.all(Entry)) == 1
    assert sorted(one.counters["completed"] for one in (first, second)) == [0, 1]
    assert sorted(one.counters["lost"] for one in (first, second)) == [0, 1]
    assert "Traceback" not in crew.all_said() and "IntegrityError" not in crew.all_said()


def _wait_for_lines(ledger: Path, count: int) -> None:
    wait_for(lambda: ledger.exists() and len(ledger.read_text().splitlines()) >= count)


@pytest.mark.req("F4")
def test_a_fulfiller_that_runs_twice_leaves_what_is_linked_alone(crew_on):
    scene: Scene = crew_on().scene
    require(scene, 7)
    assert fulfiller(scene.database, FakeStoryteller(0, 0)).run(drain=True).completed == 7
    before = [(one.id, one.entry_id) for one in scene.all(Requirement)]
    assert fulfiller(scene.database, FakeStoryteller(0, 0)).run(drain=True).claimed == 0
    # Sent back by hand although it is linked: it is found linked, and left.
    scene.edit(Requirement, 3, status=Status.PENDING)
    assert fulfiller(scene.database, FakeStoryteller(0, 1)).run(drain=True).completed == 1
    assert [(one.id, one.entry_id) for one in scene.all(Requirement)] == before
    scene.judge_lore()


@pytest.mark.req("F4", "F7")
def test_an_entry_that_its_author_wrote_is_linked_and_not_written_over(crew_on):
    scene: Scene = crew_on().scene
    scene.add_requirements("salt-stair")
    with scene.sessions.begin() as session:
        session.add(Entry(slug="salt-stair", text="Seven hundred steps, and one that is missing."))
    # It appears after the fulfiller has looked for it.
    with scene.sessions.begin() as session:
        link(session, 1, "salt-stair", "made up")
    assert fulfiller(scene.database, FakeStoryteller(0, 1)).run(drain=True).completed == 1
    assert [one.text for one in scene.all(Entry)] == ["Seven hundred steps, and one that is missing."]
    scene.judge_lore()


@pytest.mark.req("F4", "F2")
def test_a_fulfiller_that_is_killed_after_the_insert_leaves_no_entry_that_nobody_has(crew_on):
    crew = crew_on()
    scene: Scene = crew.scene
    require(scene, 6)
    quiet(scene)
    assert crew.start("fulfiller", die_at={"link": 2}, concurrency=1).wait() == -9
    done = [one for one in scene.all(Requirement) if one.status is Status.COMPLETE]
    assert [one.entry_id for one in done] == [one.id for one in scene.all(Entry)]
    assert len(done) == 1
    both = crew.together("fulfiller", 2, stale=0.8)
    assert sum(one.counters["completed"] for one in both) == 5
    assert sum(one.counters["recovered"] for one in both) == 2
    scene.judge_lore()
