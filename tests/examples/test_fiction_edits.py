"""Other sessions of the same ORM: what an author has loaded, edits, removes or sets while a phase runs.

Nothing is written over silently: not by the weaver over the author's edit, nor by the author's older object over the
weaver's work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from examples.fiction.fakes.fake_storyteller import FakeStoryteller
from examples.fiction.models import Checkpoint, Item, Requirement, Status, Task
from examples.fiction.resumer import Resumer
from examples.fiction.scheduler import Scheduler
from examples.fiction.storyteller import Between, Prompt
from examples.fiction.weaver import Weaver
from holdfast import LeaseLost
from holdfast.adopt import claim
from tests.examples.fiction_scene import Scene, scene_on

STALE_SECONDS = 60.0


@pytest.fixture
def scene_with(database: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Scene]]:
    with ExitStack() as stack:
        yield lambda *arguments, **settings: stack.enter_context(scene_on(database, request, *arguments, **settings))


class Interrupted(FakeStoryteller):
    """While a text is told, somebody does something."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__(0, 0)
        object.__setattr__(self, "_act", act)

    def tell(self, prompt: Prompt, between: Between) -> str:
        text = super().tell(prompt, between)
        self._act()  # type: ignore[attr-defined]
        return text


def weave(scene: Scene, act: Callable[[], None]) -> Weaver:
    """Weave the item while something is done."""
    weaver = Weaver(scene.database, Interrupted(act))
    assert weaver.one_pass() == 1
    return weaver


@pytest.fixture
def author(scene_with) -> Iterator[Any]:
    """Makes a scene whose item was scheduled, and a session that has loaded all its rows before that."""
    with ExitStack() as stack:

        def load(guards: str) -> tuple[Scene, Session, Any]:
            scene: Scene = scene_with(guards)
            scene.add_items(1)
            session = stack.enter_context(Session(scene.database.engine, expire_on_commit=False))
            item = session.get_one(Item, 1)
            session.rollback()
            session.refresh(item)
            session.commit()
            Scheduler(scene.database).one_pass()
            return scene, session, item

        yield load


@pytest.mark.req("F7", "F5")
@pytest.mark.fault(60)
@pytest.mark.parametrize("guards", ["holder,heartbeat", "none"])
def test_an_edit_of_a_row_that_was_loaded_before_is_kept_and_so_is_the_text(author, guards: str):
    scene, session, item = author(guards)

    def edit() -> None:
        item.notes = "less fog"
        item.title = "Fragment 1, revised"
        session.commit()

    assert weave(scene, edit).counters.woven == 1
    found = scene.rows()[0]
    assert (found.notes, found.title, found.status) == ("less fog", "Fragment 1, revised", Status.COMPLETE)
    assert scene.texts()[1].startswith("Fragment 1\n")  # what was asked for when it was begun


@pytest.mark.req("F7", "F5")
@pytest.mark.fault(60)
def test_with_a_row_version_an_object_that_is_behind_is_refused_and_can_be_edited_after_a_look(author):
    scene, session, item = author("holder,version,heartbeat")

    def edit() -> None:
        item.notes = "less fog"
        with pytest.raises(StaleDataError):
            session.commit()
        session.rollback()
        session.refresh(item)
        assert item.status is Status.IN_PROGRESS
        item.notes = "less fog"
        session.commit()

    # The edit counts the version up; the holder tells that the item is still the weaver's.
    assert weave(scene, edit).counters.woven == 1
    assert scene.rows()[0].notes == "less fog"
    scene.judge()


@pytest.mark.req("F7", "F5")
@pytest.mark.fault(60)
def test_with_a_row_version_alone_an_edit_takes_the_item_from_its_weaver_who_is_told(author):
    scene, session, item = author("version")

    def edit() -> None:
        session.refresh(item)
        item.notes = "less fog"
        session.commit()

    weaver = weave(scene, edit)
    assert (weaver.counters.woven, weaver.counters.taken_over) == (0, 1)
    assert (scene.words(), scene.texts()) == (0, {1: None})
    # The item comes back when it is stale; task and checkpoint are free at once.
    assert scene.statuses() == [("InProgress", "Pending", "Pending")]
    _resume_and_weave(scene)
    assert scene.rows()[0].notes == "less fog"
    scene.judge()


@pytest.mark.req("F7")
@pytest.mark.fault(60)
@pytest.mark.parametrize("guards", ["holder,heartbeat", "none"])
def test_a_status_that_an_author_sets_stands_and_the_weaver_is_told(author, guards: str):
    """Without a row version nobody refuses the older object; the weaver does not write over it, and saves nothing."""
    scene, session, item = author(guards)

    def set_status() -> None:
        item.status = Status.FAILED
        item.error = "not this one"
        session.commit()

    weaver = weave(scene, set_status)
    assert (weaver.counters.woven, weaver.counters.taken_over) == (0, 1)
    assert scene.statuses() == [("Failed", "Pending", "Pending")]
    assert scene.rows()[0].error == "not this one"
    assert (scene.words(), scene.texts()) == (0, {1: None})


@pytest.mark.req("F7")
@pytest.mark.fault(60)
def test_an_item_that_is_removed_while_it_is_woven_stays_removed(author):
    scene, session, item = author("holder,version,heartbeat")

    def remove() -> None:
        session.refresh(item)
        session.delete(item)
        session.commit()

    weaver = weave(scene, remove)
    assert (weaver.counters.woven, weaver.counters.taken_over) == (0, 1)
    assert [scene.all(model) for model in (Item, Task, Checkpoint, Requirement)] == [[]] * 4
    assert scene.words() == 0


@pytest.mark.req("F7")
@pytest.mark.fault(60)
def test_an_item_that_gets_another_key_while_it_is_woven_is_written_under_the_new_one(author):
    scene, _, _ = author("holder,version,heartbeat")
    weaver = weave(scene, lambda: scene.edit(Item, 1, id=1001))
    assert (weaver.counters.woven, weaver.counters.taken_over) == (0, 1)
    # Its task went along, and the claim that it carries is still good.
    assert scene.statuses() == [("InProgress", "Pending", "Pending")]
    assert Weaver(scene.database, FakeStoryteller(0, 0)).one_pass() == 1
    assert [item.id for item in scene.all(Item)] == [1001]
    scene.judge()


@pytest.mark.req("F7")
def test_an_object_of_the_session_that_claims_shows_the_claim_and_does_not_write_the_old_status_back(author):
    scene, _, _ = author("none")
    scene.add_items(1)
    with scene.sessions(autoflush=False) as session:
        item = session.get_one(Item, 2)
        assert item.status is Status.PENDING
        item.status, item.notes = Status.FAILED, "less fog"
        [won] = claim(session, scene.database.items, where=Item.id == 2)
        session.commit()
        assert (item.status, item.notes) == (Status.IN_PROGRESS, "less fog")
        assert won.row["notes"] == ""


@pytest.mark.req("F7")
def test_a_piece_whose_item_was_taken_tells_so_when_it_is_saved(author):
    scene, _, _ = author("holder,version,heartbeat")
    weaver = Weaver(scene.database, FakeStoryteller(0, 0))
    piece = weaver.take()
    assert piece is not None
    scene.edit(Item, 1, holder="somebody else")
    with pytest.raises(LeaseLost, match="backlog_items"):
        weaver.weave(piece)


def _resume_and_weave(scene: Scene) -> None:
    scene.age(Item, seconds=2 * STALE_SECONDS)
    assert Resumer(scene.database, stale=STALE_SECONDS).one_pass() == 1
    assert Scheduler(scene.database).one_pass() == 1
    assert Weaver(scene.database, FakeStoryteller(0, 0)).one_pass() == 1
