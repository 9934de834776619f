"""All of examples.fiction at once: two of each role, killed and frozen at random, and an author who edits meanwhile.

FICTION_KILLS sets how often something is struck (300 for a full run), FICTION_CHAPTERS how long the story is (40).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.fiction.models import Item
from examples.fiction.status import is_explained
from tests.examples.fiction_processes import Actor, Crew
from tests.examples.fiction_scene import scene_on

KILLS = int(os.environ.get("FICTION_KILLS", "6"))
CHAPTERS = int(os.environ.get("FICTION_CHAPTERS", "3"))
PATIENCE_SECONDS = 90 + 2 * KILLS + 2 * CHAPTERS
STALE = 1.0
ROLES = {
    "scheduler": {"drain": False, "batch": 3, "poll": 0.1},
    "weaver": {"drain": False, "pace": 0.01, "fail_one_in": 6, "beat": STALE / 5, "poll": 0.1},
    "resumer": {"drain": False, "stale": STALE, "poll": 0.2},
    "fulfiller": {"drain": False, "fail_one_in": 6, "stale": STALE, "poll": 0.2},
}


@pytest.fixture
def crew(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Crew]:
    with scene_on(database, request, attempts=1000) as scene:
        crew = Crew(scene, tmp_path)
        try:
            yield crew
        finally:
            crew.end()


@pytest.mark.req("F1", "F2", "F3", "F4", "F5", "F6", "F7")
@pytest.mark.fault(6, 60)
def test_a_story_whose_processes_are_killed_and_frozen_is_written_as_if_nothing_had_happened(crew: Crew):
    chance = random.Random(KILLS)
    scene = crew.scene
    scene.add_plan(chapters=CHAPTERS, scenes=2)
    items = scene.all(Item)
    notes: dict[int, str] = {}
    for role, settings in ROLES.items():
        for _ in range(2):
            crew.start(role, **settings)
    frozen: dict[Actor, float] = {}
    struck = 0
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while struck < KILLS or frozen or not is_explained(scene.database):
        assert time.monotonic() < give_up_at, f"struck {struck}: {scene.statuses()}\n{crew.all_said()}"
        for actor, until in list(frozen.items()):
            if time.monotonic() >= until:
                actor.thaw()
                del frozen[actor]
        if struck < KILLS:
            struck += 1
            victim = chance.choice([actor for actor in crew.actors if actor not in frozen and actor.is_alive])
            if chance.random() < 0.6:
                victim.kill()
                crew.start(victim.role, **ROLES[victim.role])
            else:
                victim.freeze()
                frozen[victim] = time.monotonic() + chance.uniform(0.5, 1.5) * STALE
        item = chance.choice(items)
        notes[item.id] = f"note {chance.random()}"
        scene.edit(Item, item.id, notes=notes[item.id])
        time.sleep(0.15)
    for actor in crew.actors:
        if actor.is_alive:
            assert actor.stop() == 0, actor.said
    scene.judge(is_explained=True)
    assert set(scene.tasks_per_item().values()) == {1}
    assert {item.id: item.notes for item in scene.all(Item)} == {one.id: "" for one in items} | notes
    assert "Traceback" not in crew.all_said()
