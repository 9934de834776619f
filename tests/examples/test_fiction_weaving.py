"""Weavers of examples.fiction: a phase that raises, or whose process dies, lets go of its three rows together."""

from __future__ import annotations

import signal
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from examples.fiction.fakes.fake_storyteller import FakeStoryteller, NotInTheMood
from examples.fiction.models import Checkpoint, Item, Plan, Requirement, Status, Task
from examples.fiction.resumer import Resumer
from examples.fiction.scheduler import Scheduler
from examples.fiction.storyteller import Between, Prompt
from examples.fiction.weaver import Piece, Weaver
from holdfast import Permanent
from tests.examples.fiction_scene import GUARDS, Scene
from tests.support.processes import wait_for
from tests.support.slowness import slowness

STALE = 0.8
ALL_PENDING, ALL_FAILED = [("Pending",) * 3], [("Failed",) * 3]


def take(scene: Scene, weaver: Weaver) -> Piece:
    Scheduler(scene.database).one_pass()
    piece = weaver.take()
    assert piece is not None
    return piece


def errors(scene: Scene) -> list[str | None]:
    return [row.error for row in scene.rows()]


# A phase that raises --------------------------------------------------------------------------------------------------


@pytest.mark.req("F3", "F5")
@pytest.mark.parametrize("guards", GUARDS)
def test_a_phase_that_raises_lets_go_of_its_rows_with_the_error_which_goes_on(crew_on, guards: str):
    scene: Scene = crew_on(guards).scene
    scene.add_items(1)
    weaver = Weaver(scene.database, FakeStoryteller(0, 1), retry="5m")
    piece = take(scene, weaver)
    assert scene.statuses() == [("InProgress",) * 3]
    with pytest.raises(NotInTheMood, match="the words would not come"):
        weaver.weave(piece)
    assert scene.statuses() == ALL_PENDING
    [said] = set(errors(scene))
    assert said is not None and said.startswith("NotInTheMood: the words would not come, in paragraph")
    for row in scene.rows():
        assert (
            300 - 20 * slowness() < (row.next_attempt_at.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds() < 320
        )
    assert (scene.words(), scene.texts(), scene.all(Requirement)) == (0, {1: None}, [])
    assert Scheduler(scene.database).one_pass() == 0
    assert weaver.take() is None


@pytest.mark.req("F3")
def test_a_phase_that_has_no_attempt_left_fails_and_its_author_can_send_it_back(crew_on):
    scene: Scene = crew_on(attempts=2).scene
    scene.add_items(1)
    weaver = Weaver(scene.database, FakeStoryteller(0, 1), retry=0)
    for _ in range(2):
        Scheduler(scene.database).one_pass()
        assert weaver.one_pass() == 1
    assert scene.statuses() == ALL_FAILED
    assert (weaver.counters.retried, weaver.counters.failed) == (1, 1)
    assert Scheduler(scene.database).one_pass() == 0
    scene.edit(Item, 1, status=Status.PENDING)
    Scheduler(scene.database).one_pass()
    assert Weaver(scene.database, FakeStoryteller(0, 0)).one_pass() == 1
    assert scene.rows()[1].attempts == 1
    assert errors(scene) == [None] * 3
    scene.judge()


@pytest.mark.req("F3")
def test_what_can_never_be_written_fails_at_once(crew_on):
    scene: Scene = crew_on().scene
    scene.add_items(1)
    scene.edit(Item, 1, title=" ")
    weaver = Weaver(scene.database, FakeStoryteller(0, 0))
    piece = take(scene, weaver)
    with pytest.raises(Permanent):
        weaver.weave(piece)
    assert scene.statuses() == ALL_FAILED
    assert errors(scene) == ["Permanent: there is no title to write about"] * 3


# A process that dies --------------------------------------------------------------------------------------------------


@pytest.mark.req("F3", "F2", "F5")
@pytest.mark.parametrize("guards", ["holder,version,heartbeat", "none"])
def test_the_rows_of_a_killed_weaver_come_back_together_with_an_error(crew_on, guards: str):
    crew = crew_on(guards)
    scene: Scene = crew.scene
    scene.add_items(1)
    Scheduler(scene.database).one_pass()
    weaver = crew.start("weaver", gate=crew.folder / "gate")
    wait_for(lambda: scene.attempts() == ("InProgress", 1))
    weaver.kill()
    assert scene.statuses() == [("InProgress",) * 3]
    resumer = Resumer(scene.database, stale=STALE)
    wait_for(resumer.one_pass, every=0.1)
    assert scene.statuses() == ALL_PENDING
    assert errors(scene) == ["nothing was heard of it for 0.8 s: its process died, or was cut off"] * 3
    # The claim that the task carries is worth nothing until a scheduler has claimed the item again.
    assert Weaver(scene.database, FakeStoryteller(0, 0)).take() is None
    Scheduler(scene.database).one_pass()
    assert Weaver(scene.database, FakeStoryteller(0, 0)).one_pass() == 1
    assert scene.rows()[1].attempts == 2
    scene.judge()


@pytest.mark.req("F3", "F2")
def test_task_and_checkpoint_come_back_with_their_item_however_young_they_are(crew_on):
    scene: Scene = crew_on().scene
    scene.add_items(1)
    take(scene, Weaver(scene.database, FakeStoryteller(0, 0)))
    resumer = Resumer(scene.database, stale="1m")
    scene.age(Task, Checkpoint)
    assert resumer.one_pass() == 0
    assert scene.statuses() == [("InProgress",) * 3]
    scene.edit(Task, 1, last_heartbeat=datetime.now(UTC))
    scene.edit(Checkpoint, 1, last_heartbeat=datetime.now(UTC))
    scene.age(Item)
    assert resumer.one_pass() == 1
    assert scene.statuses() == ALL_PENDING


@pytest.mark.req("F3")
def test_an_item_that_kills_its_weaver_every_time_fails_with_all_its_rows(crew_on):
    crew = crew_on(attempts=2)
    scene: Scene = crew.scene
    scene.add_items(1)
    resumer = Resumer(scene.database, stale="1m")
    for _ in range(2):
        Scheduler(scene.database).one_pass()
        assert crew.start("weaver", die_at={"save": 1}).wait() == -signal.SIGKILL
        scene.age(Item, Task, Checkpoint)
        assert resumer.one_pass() == 1
    assert scene.statuses() == ALL_FAILED
    assert errors(scene) == ["nothing was heard of it for 60 s: its process died, or was cut off"] * 3
    assert (resumer.counters.resumed, resumer.counters.exhausted) == (2, 1)
    # What was written in the transaction that it died in is gone with it.
    assert (scene.words(), scene.texts(), scene.all(Requirement)) == (0, {1: None}, [])


# A process that is stopped --------------------------------------------------------------------------------------------


@pytest.mark.req("F3")
@pytest.mark.fault(9)
def test_a_weaver_that_is_asked_to_stop_finishes_what_is_short_and_hands_back_what_is_long(crew_on):
    crew = crew_on()
    scene: Scene = crew.scene
    scene.add_items(2)
    Scheduler(scene.database).one_pass()
    short = crew.start("weaver", gate=crew.folder / "short", grace=30)
    wait_for(lambda: scene.attempts(1) == ("InProgress", 1))
    long = crew.start("weaver", gate=crew.folder / "never", grace=0.3)
    wait_for(lambda: scene.attempts(2) == ("InProgress", 1))
    asked_at = time.monotonic()
    long.terminate()
    short.terminate()
    (crew.folder / "short").touch()
    assert (long.wait(), short.wait()) == (0, 0)
    assert time.monotonic() - asked_at < 20 * slowness()
    assert scene.statuses() == [("Complete",) * 3, ("Pending",) * 3]
    assert [task.attempts for task in scene.all(Task)] == [1, 0]
    assert (short.counters["woven"], long.counters["handed_back"]) == (1, 1)
    Scheduler(scene.database).one_pass()
    crew.run("weaver")
    scene.judge()


@pytest.mark.req("F3")
@pytest.mark.fault(10)
def test_a_second_sigterm_hands_back_at_once_and_a_kill_during_it_loses_nothing(crew_on):
    crew = crew_on()
    scene: Scene = crew.scene
    scene.add_items(2)
    Scheduler(scene.database).one_pass()
    hurried = crew.start("weaver", gate=crew.folder / "never", grace=600)
    wait_for(lambda: scene.attempts(1) == ("InProgress", 1))
    killed = crew.start("weaver", gate=crew.folder / "never", grace=600)
    wait_for(lambda: scene.attempts(2) == ("InProgress", 1))
    killed.terminate()
    killed.terminate()
    killed.kill()
    # Signals of one kind that nobody has heard yet are one signal: an impatient person sends another.
    wait_for(lambda: scene.attempts(1)[0] == "Pending" or hurried.terminate() or not hurried.is_alive)
    # The last one may come when the process is about to end, and listens no more.
    if hurried.wait() != -signal.SIGTERM:
        assert hurried.counters["handed_back"] == 1
    assert scene.statuses()[0] == ("Pending",) * 3
    assert scene.rows(1)[1].attempts == 0
    crew.start("resumer", stale=STALE, drain=False)
    crew.start("scheduler")
    crew.run("weaver")
    scene.judge()


# Locks of others ------------------------------------------------------------------------------------------------------


class Whenever(FakeStoryteller):
    """Goes on when the test says so."""

    def tell(self, prompt: Prompt, between: Between) -> str:
        assert GO_ON.wait(30)
        return super().tell(prompt, between)


GO_ON = threading.Event()


@pytest.mark.req("F3", "F7")
@pytest.mark.fault(31)
def test_an_author_who_locks_the_same_rows_in_another_order_costs_nobody_anything(crew_on, request):
    """The author has the plan and wants the item; the weaver's last transaction has the item and wants the plan."""
    scene: Scene = crew_on().scene
    is_postgres = scene.database.engine.dialect.name == "postgresql"
    if is_postgres:
        _look_for_deadlocks(scene, "= '4s'")
        request.addfinalizer(lambda: _look_for_deadlocks(scene, "TO DEFAULT"))
    scene.add_items(1)
    weaver = Weaver(scene.database, Whenever(0, 0), retry=None)
    piece = take(scene, weaver)
    GO_ON.clear()
    weaving = threading.Thread(target=weaver.weave, args=(piece,))
    weaving.start()
    with scene.sessions.begin() as author:
        if is_postgres:
            # The weaver is the one that the database chooses: it is the first to look for a deadlock.
            author.execute(sa.text("SET LOCAL deadlock_timeout = '60s'"))
        author.execute(sa.update(Plan).values(title="The Salt Stair"))
        GO_ON.set()
        if is_postgres:
            wait_for(lambda: _is_waiting_for_a_lock(scene))
        author.execute(sa.update(Item).values(notes="less fog"))
    weaving.join(30)
    assert not weaving.is_alive()
    assert weaver.counters.woven == 1
    assert [plan.title for plan in scene.all(Plan)] == ["The Salt Stair"]
    assert [item.notes for item in scene.all(Item)] == ["less fog"]
    assert scene.rows()[1].attempts == 1
    scene.judge()


def _look_for_deadlocks(scene: Scene, after: str) -> None:
    """The server looks once per wait: on a busy machine, the author may need more than the usual second to come."""
    engine = scene.database.engine
    with engine.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar()
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET deadlock_timeout {after}')
    engine.dispose()


def _is_waiting_for_a_lock(scene: Scene) -> bool:
    asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE plans%'"
    with scene.database.engine.connect() as connection:
        found: Any = connection.exec_driver_sql(asked.replace("%", "%%")).scalar()
    return bool(found)
