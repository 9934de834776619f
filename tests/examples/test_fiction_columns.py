"""The tables of examples.fiction with and without the columns that guard a claim."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from examples.fiction.fakes.fake_storyteller import FakeStoryteller, NotInTheMood
from examples.fiction.lore import fulfiller
from examples.fiction.models import Checkpoint, Item, Task
from examples.fiction.resumer import Resumer
from examples.fiction.scheduler import Scheduler
from examples.fiction.settings import Settings
from examples.fiction.storyteller import Between, Prompt
from examples.fiction.weaver import Weaver
from holdfast.errors import DefinitionError, LeaseLost, UsageError
from tests.examples.fiction_scene import GUARDS, Scene, address, open_database, scene_on


@pytest.fixture
def url(database: str, request: pytest.FixtureRequest) -> Iterator[str]:
    with address(database, request) as url:
        yield url


class Moody(FakeStoryteller):
    """Fails the first time."""

    def tell(self, prompt: Prompt, between: Between) -> str:
        if prompt.attempt == 1:
            raise NotInTheMood("not now")
        return super().tell(prompt, between)


def write_it_all(scene: Scene) -> None:
    """Scheduler, weaver, resumer and fulfiller take turns until the plan is written."""
    scheduler = Scheduler(scene.database)
    weaver = Weaver(scene.database, Moody(0, 0), retry=0)
    resumer = Resumer(scene.database, stale="1h")
    for _ in range(100):
        if not scheduler.one_pass() + weaver.one_pass() + resumer.one_pass():
            break
    assert fulfiller(scene.database, FakeStoryteller(0, 2), retry=0, poll=0.01).run(drain=True).failed == 0
    assert weaver.counters.retried == weaver.counters.woven > 0
    scene.judge(is_explained=True)


@pytest.mark.req("F5", "F6")
@pytest.mark.parametrize("guards", ["version,heartbeat", "none"])
def test_a_plan_is_written_with_whichever_of_the_columns_there_are(database, request, guards: str):
    with scene_on(database, request, guards, attempts=30) as scene:
        scene.add_plan(chapters=1, scenes=2)
        before = {item.id: item.version for item in scene.all(Item)}
        write_it_all(scene)
        # What a mapping does not name is not written: the table may as well lack it.
        for item in scene.all(Item):
            assert (item.holder is not None) == ("holder" in guards)
            assert (item.version != before[item.id]) == ("version" in guards)
            assert (item.last_heartbeat is not None) == ("heartbeat" in guards)


@pytest.mark.req("F5")
@pytest.mark.parametrize("guards", GUARDS)
def test_a_weaver_that_is_late_is_told_whatever_tells_its_claim_from_the_next(database, request, guards: str):
    with scene_on(database, request, guards) as scene:
        scene.add_items(1)
        late, quick = Weaver(scene.database, FakeStoryteller(0, 0)), Weaver(scene.database, FakeStoryteller(0, 0))
        Scheduler(scene.database).one_pass()
        piece = late.take()
        scene.age(Item, Task, Checkpoint)
        assert Resumer(scene.database, stale="1m").one_pass() == 1
        Scheduler(scene.database).one_pass()
        mine = quick.take()
        assert piece is not None and mine is not None
        before = scene.contents()
        with pytest.raises(LeaseLost, match="backlog_items"):
            late.weave(piece)
        assert scene.contents() == before
        quick.weave(mine)
        scene.judge()


@pytest.mark.req("F5")
def test_tables_that_lack_a_column_are_refused_before_anything_is_written(url: str):
    scene = Scene(url, "holder")
    scene.add_items(1)
    with scene.database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE backlog_items DROP COLUMN version")
    other = open_database(url, "holder,version", 5)
    with pytest.raises(DefinitionError, match="'backlog_items' has no column 'version'"):
        other.create()
    with scene.sessions() as session:
        assert session.scalars(sa.select(Item.status)).all() == ["Pending"]
    other.close()
    scene.close()


def test_a_setting_that_is_none_is_refused_and_says_what_there_is():
    with pytest.raises(UsageError, match="rowversion: there are holder, version, heartbeat"):
        Settings.read({"FICTION_COLUMNS": "holder,rowversion"})
    with pytest.raises(UsageError, match="FICTION_GUARDED='maybe': write on or off"):
        Settings.read({"FICTION_GUARDED": "maybe"})
    assert Settings.read({"FICTION_COLUMNS": "none", "FICTION_STALE": "2m"}) == Settings(columns=(), stale=120.0)
