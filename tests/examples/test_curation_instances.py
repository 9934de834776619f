"""Several processes of examples.curation on one database: what the seed of it all was about.

Two instances looked for queued rows at the same moment, saw the same ones, and processed all of them twice. The first test
is that moment, held still; it is run with the guard off and on.

CURATION_KILLS sets how often a process is killed in the last test (50 for a full run).
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from examples.curation.fakes.fake_world import FakeWorld
from examples.curation.models import Page, Place
from tests.examples.curation_processes import Processes
from tests.examples.curation_scene import KINDS, Scene, scene_on
from tests.support.processes import wait_for

KILLS = int(os.environ.get("CURATION_KILLS", "2"))


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    processes.end()


@pytest.fixture
def scene(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_on(database, tmp_path, request) as scene:
        yield scene


@pytest.mark.req("S2", "F8")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("guarded", [False, True], ids=["unguarded", "guarded"])
def test_two_instances_that_look_at_the_same_moment_process_rows_twice_only_without_the_guard(
    scene: Scene, processes: Processes, kind: str, guarded: bool
):
    scene.add(kind, 20)
    meeting = scene.folder / "meeting"
    meeting.mkdir()
    orders = scene.orders(kind, guarded=guarded, concurrency=10)
    scene.site.pause()
    both = [processes.start(orders, until_done=True, meet=[str(meeting), 2]) for _ in range(2)]
    # Both have begun all that they took: neither is stopped, because all is done, before it asks.
    wait_for(lambda: sum(scene.asked(kind, 20)) == 20)
    scene.site.go_on()
    assert [one.wait() for one in both] == [0, 0], both[0].said + both[1].said
    processed_twice = [row for row, asked in enumerate(scene.asked(kind, 20), 1) if asked > 1]
    would_be = sum(one.counters[kind]["would_have_been_taken_twice"] for one in both)
    assert set(scene.words(kind)) == {"completed"}
    assert min(scene.asked(kind, 20)) >= 1
    if guarded:
        assert (processed_twice, would_be) == ([], 0)
        assert sum(one.counters[kind]["claimed"] for one in both) == 20
    else:
        assert set(processed_twice) >= set(range(1, 11)) and would_be >= 10


@pytest.mark.req("S2", "S3")
@pytest.mark.parametrize("kind", KINDS)
def test_instance_1_gets_rows_1_to_10_and_instance_2_gets_rows_11_to_20(scene: Scene, processes: Processes, kind: str):
    """Both hold theirs at the same time, and everybody can see it: the claims are committed before a handler runs."""
    scene.add(kind, 20)
    scene.site.pause()
    # A handler for each: a row that waits behind others is handed back after a second.
    orders = scene.orders(kind, concurrency=10)
    first = processes.start(orders, until_done=True)
    wait_for(lambda: scene.held_by(kind, first.pid) == list(range(1, 11)))
    second = processes.start(orders, until_done=True)
    wait_for(lambda: scene.held_by(kind, second.pid) == list(range(11, 21)))
    assert scene.held_by(kind, first.pid) == list(range(1, 11))
    scene.site.go_on()
    assert [first.wait(), second.wait()] == [0, 0]
    assert [one.counters[kind]["completed"] for one in (first, second)] == [10, 10]
    assert scene.asked(kind, 20) == [1] * 20


@pytest.mark.req("S2")
@pytest.mark.parametrize("database", ["postgres"])  # on SQLite there is one writer at a time
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_another_transaction_has_locked_are_passed_over_and_nothing_waits(
    scene: Scene, processes: Processes, kind: str
):
    scene.add(kind, 20)
    table = scene.schedulers[kind].mapping.table
    with scene.engine.connect() as person:
        person.execute(sa.select(table).where(table.c.id <= 10).with_for_update()).all()
        process = processes.start(scene.orders(kind), until_done=True)
        wait_for(lambda: scene.words(kind) == ["queued"] * 10 + ["completed"] * 10)
        person.rollback()
    assert process.wait() == 0
    assert set(scene.words(kind)) == {"completed"}


@pytest.mark.req("S4")
def test_no_more_instances_than_allowed_hold_rows_at_a_time(scene: Scene, processes: Processes):
    scene.add("deep scan", 24)
    scene.site.pause()
    orders = scene.orders("deep scan", max_instances=1, batch=4, report="100ms")
    running = [processes.start(orders, until_done=True) for _ in range(2)]
    wait_for(lambda: scene.counts("deep scan").get("processing") == 4)
    [holder] = {one for one in scene.holders("deep scan") if one is not None}
    [idle] = [one for one in running if str(one.pid) != holder]
    # It looks after claims that brought nothing: between two looks it has tried.
    wait_for(lambda: idle.said.count("waiting 20") >= 2)
    assert scene.counts("deep scan") == {"processing": 4, "queued": 20}
    scene.site.go_on()
    assert [one.wait() for one in running] == [0, 0]
    assert scene.counts("deep scan") == {"completed": 24}
    assert sum(one.counters["deep scan"]["claimed"] for one in running) == 24


@pytest.mark.req("S5")
@pytest.mark.fault(6)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_process_that_was_killed_come_back_and_the_lost_attempt_counts(
    scene: Scene, processes: Processes, kind: str
):
    scene.add(kind, 12)
    scene.site.pause()
    orders = scene.orders(kind, stale="1s")
    victim = processes.start(orders)
    # The sites know of as many as run at a time; the others are in its hands, too.
    wait_for(lambda: sum(scene.asked(kind, 12)) == 4 and len(scene.held_by(kind, victim.pid)) == 10)
    victim.kill()
    assert scene.counts(kind) == {"processing": 10, "queued": 2}
    scene.site.go_on()
    heir = processes.start(orders, until_done=True)
    assert heir.wait() == 0, heir.said
    assert scene.counts(kind) == {"completed": 12}
    assert scene.column(kind, "attempts") == [2] * 10 + [1] * 2
    assert scene.asked(kind, 12) == [2] * 4 + [1] * 8
    counters = heir.counters[kind]
    assert (counters["recovered"], counters["completed"]) == (10, 12)
    assert "queued 10 stale rows again" in heir.said


@pytest.mark.req("S5", "F2")
@pytest.mark.fault(6, 8)
def test_a_process_that_was_frozen_finds_its_row_taken_and_writes_nothing(scene: Scene, processes: Processes):
    scene.add("deep scan", 1)
    scene.site.pause()
    orders = scene.orders("deep scan", stale="1s")
    frozen = processes.start(orders)
    wait_for(lambda: scene.asked("deep scan", 1) == [1] and scene.held_by("deep scan", frozen.pid) == [1])
    frozen.send(signal.SIGSTOP)
    heir = processes.start(orders, until_done=True)
    wait_for(lambda: scene.asked("deep scan", 1) == [2] and scene.held_by("deep scan", heir.pid) == [1])
    frozen.send(signal.SIGCONT)
    scene.site.go_on(1)  # its own request, which came first: it has the answer, and the other one has the row
    wait_for(lambda: "is no longer held; " in frozen.said)
    assert scene.held_by("deep scan", heir.pid) == [1] and scene.counts("domain extraction") == {}
    scene.site.go_on()
    assert heir.wait() == 0, heir.said
    assert frozen.stop() == 0, frozen.said
    assert (frozen.counters["deep scan"]["lost"], heir.counters["deep scan"]["completed"]) == (1, 1)
    assert scene.holders("deep scan") == [str(heir.pid)] and scene.column("deep scan", "attempts") == [2]
    assert scene.counts("domain extraction") == {"queued": 1}


@pytest.mark.req("S5", "S3")
@pytest.mark.fault(9)
def test_sigterm_lets_handlers_in_hand_finish_and_hands_the_rest_back_uncounted(scene: Scene, processes: Processes):
    for kind in KINDS:
        scene.add(kind, 10)
    scene.site.pause()
    process = processes.start(scene.orders(grace="30s"))
    wait_for(lambda: all(sum(scene.asked(kind, 10)) == 4 for kind in KINDS))
    process.send(signal.SIGTERM)
    wait_for(lambda: all(scene.counts(kind) == {"processing": 4, "queued": 6} for kind in KINDS))
    scene.site.go_on()
    assert process.wait() == 0, process.said
    for kind in KINDS:
        assert scene.counts(kind) == {"completed": 4, "queued": 6}
        assert scene.column(kind, "attempts") == [1] * 4 + [0] * 6
        assert process.counters[kind]["released"] == 6


@pytest.mark.req("S2", "S3", "S5", "S6")
@pytest.mark.fault(6)
def test_three_processes_of_which_some_are_killed_find_all_there_is_once(
    database: str, tmp_path: Path, request: pytest.FixtureRequest, processes: Processes
):
    world = FakeWorld(places=12 if KILLS < 10 else 4 * KILLS, sites=3 if KILLS < 10 else 12, pages=4)
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    with scene_on(database, tmp_path, request, world) as scene:
        scene.site.delay_seconds = 0.01
        scene.add_places()
        # A process that dies takes the attempts of others along: nobody is to run out of them here but who deserves it.
        orders = scene.orders(stale="1s", poll="200ms", batch=5, concurrency=2, attempts=12, first_pause=0.002)
        running = [processes.start(orders, until_done=True) for _ in range(3)]
        for _ in range(KILLS):
            at = chance.randrange(3)
            asked = sum(scene.site.asked.values()) + chance.randint(1, 25)
            wait_for(lambda asked=asked: sum(scene.site.asked.values()) >= asked or is_done(scene))
            running[at].send(signal.SIGKILL)
            assert running[at].wait() in (0, -signal.SIGKILL), running[at].said
            running[at] = processes.start(orders, until_done=True)
        for one in running:
            assert one.wait() == 0, f"seed {seed}\n{one.said}"
            assert "Traceback" not in one.said and "ERROR" not in one.said, f"seed {seed}\n{one.said}"
        scene.judge()


def is_done(scene: Scene) -> bool:
    return not any({"queued", "processing"} & set(scene.words(name)) for name in scene.schedulers) and bool(
        scene.execute(sa.select(sa.func.count()).select_from(Page)).scalar()
    )


@pytest.mark.req("F7", "S3")
def test_what_people_edit_while_a_row_is_processed_stays(scene: Scene, processes: Processes):
    """Nobody has a transaction open: the edit does not wait, and the completion writes only what is its own."""
    scene.add("deep scan", 3)
    scene.site.pause()
    process = processes.start(scene.orders("deep scan"), until_done=True)
    wait_for(lambda: scene.counts("deep scan") == {"processing": 3})
    scene.execute(sa.update(Place).where(Place.id == 2).values(name="renamed", city="Whitby"))
    scene.site.go_on()
    assert process.wait() == 0
    assert scene.execute(sa.select(Place.name, Place.city).where(Place.id == 2)).one() == ("renamed", "Whitby")
    assert scene.counts("deep scan") == {"completed": 3}
