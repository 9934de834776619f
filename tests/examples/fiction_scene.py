"""A writer's database, and what can be said of it: what the tests of examples.fiction play on."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from examples.fiction.database import Database
from examples.fiction.fakes.fake_storyteller import FakeStoryteller
from examples.fiction.models import Checkpoint, Entry, Item, Phase, Plan, Requirement, Status, Task
from examples.fiction.planning import add_plan
from examples.fiction.storyteller import Prompt, things_named
from tests.support.schemas import bare_schema

PREMISE = "Nobody has come back from the lamp road."
#: Every combination that guards differently.
GUARDS = ("holder,version,heartbeat", "holder,heartbeat", "version", "none")


@contextmanager
def address(database: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """SQLAlchemy's address of an empty database that is quick to write to: what dies here are clients, not disks."""
    if database == "sqlite":
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        folder = Path(tempfile.mkdtemp(prefix="fiction-", dir=memory))
        try:
            yield f"sqlite:///{folder / 'fiction.db'}"
        finally:
            shutil.rmtree(folder)
        return
    with bare_schema(request.getfixturevalue("postgres"), synchronous_commit="off", deadlock_timeout="3s") as url:
        yield url


class Scene:
    """One database with tables, which a test and its processes share."""

    def __init__(self, url: str, guards: str = GUARDS[0], *, attempts: int = 5) -> None:
        self.url = url
        self.made_with = {"url": url, "guards": guards, "attempts": attempts}
        self.database = open_database(**self.made_with)
        self.sessions = self.database.sessions
        self.database.create()

    def add_plan(self, chapters: int = 2, scenes: int = 1, title: str = "The Lamp Road") -> int:
        with self.sessions.begin() as session:
            return add_plan(session, title, PREMISE, chapters=chapters, scenes=scenes)

    def add_items(self, count: int, phase: Phase = Phase.VISION) -> None:
        """So many items of one plan that wait for nothing."""
        with self.sessions.begin() as session:
            plan = Plan(title="Fragments", premise=PREMISE)
            session.add(plan)
            session.flush()
            session.add_all(
                Item(plan_id=plan.id, backlog_id=f"fragment-{n}", phase=phase, position=0, title=f"Fragment {n}")
                for n in range(1, count + 1)
            )

    def add_requirements(self, *slugs: str) -> None:
        """An item for each, that names it."""
        self.add_items(len(slugs))
        with self.sessions.begin() as session:
            items = session.scalars(sa.select(Item).order_by(Item.id.desc()).limit(len(slugs)))
            for item, slug in zip(items, slugs, strict=True):
                session.add(Requirement(plan_id=item.plan_id, item_id=item.id, slug=slug))

    # What is there ----------------------------------------------------------------------------------------------------

    def all(self, model: Any) -> list[Any]:
        """The rows of a table as they are now, belonging to no session."""
        with self.sessions() as session:
            found = list(session.scalars(sa.select(model).order_by(model.id)))
            session.expunge_all()
            return found

    def statuses(self) -> list[tuple[str, str | None, str | None]]:
        """Of each item, with its first task and its checkpoint."""
        tasks = {one.item_id: str(one.status) for one in reversed(self.all(Task))}
        checkpoints = {one.item_id: str(one.status) for one in self.all(Checkpoint)}
        items = self.all(Item)
        return [(str(one.status), tasks.get(one.id), checkpoints.get(one.id)) for one in items]

    def rows(self, item: int = 1) -> list[Any]:
        """An item, its task and its checkpoint."""
        with self.sessions() as session:
            found = [session.get_one(Item, item)]
            found += [
                session.scalars(sa.select(one).where(one.item_id == item).order_by(one.id)).first()
                for one in (Task, Checkpoint)
            ]
            session.expunge_all()
            return found

    def attempts(self, task: int = 1) -> tuple[str, int] | None:
        """Status and attempts of a task."""
        model = Task
        with self.sessions() as session:
            found = session.execute(sa.select(model.status, model.attempts).where(model.id == task)).first()
        return None if found is None else (str(found[0]), found[1])

    def contents(self, item: int = 1) -> list[dict[str, Any]]:
        """All columns of the three rows."""
        return [
            {column.key: getattr(row, column.key) for column in sa.inspect(row).mapper.column_attrs}
            for row in self.rows(item)
        ]

    def tasks_per_item(self) -> Counter[int]:
        return Counter(one.item_id for one in self.all(Task))

    def texts(self) -> dict[int, str | None]:
        return {one.item_id: one.text for one in self.all(Checkpoint)}

    def words(self) -> int:
        return sum(one.words for one in self.all(Plan))

    def count(self, model: Any, status: Status) -> int:
        with self.sessions() as session:
            return session.execute(
                sa.select(sa.func.count()).select_from(model).where(model.status == status)
            ).scalar_one()

    # What others do to it ---------------------------------------------------------------------------------------------

    def edit(self, model: Any, key: int, **values: Any) -> None:
        with self.sessions.begin() as session:
            session.execute(sa.update(model).where(model.id == key).values(**values))

    def age(self, *models: Any, seconds: float = 3600.0) -> None:
        """Let rows that are InProgress be as old as this."""
        then = datetime.now(UTC) - timedelta(seconds=seconds)
        with self.sessions.begin() as session:
            for model in models:
                times = {
                    "started_at": then,
                    **({"last_heartbeat": then} if "heartbeat" in self.database.items.columns else {}),
                }
                session.execute(sa.update(model).where(model.status == Status.IN_PROGRESS).values(**times))

    def is_free(self) -> bool:
        """Does no transaction hold a lock on the rows?"""
        with self.database.engine.connect() as connection:
            try:
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("PRAGMA busy_timeout = 0")
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                else:
                    for model in (Item, Task, Checkpoint, Requirement, Plan):
                        connection.execute(sa.select(model.id).with_for_update(nowait=True)).all()
            except sa.exc.OperationalError:
                return False
            finally:
                connection.rollback()
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("PRAGMA busy_timeout = 30000")
        return True

    def judge(self, *, is_explained: bool = False) -> None:
        """Every item was written once, as it should be, and everything that follows from it is there once."""
        items = {one.id: one for one in self.all(Item)}
        assert {one.status for one in items.values()} == {Status.COMPLETE}
        assert {one.status for one in self.all(Task)} == {Status.COMPLETE}
        assert {one.status for one in self.all(Checkpoint)} == {Status.COMPLETE}
        assert self.tasks_per_item().keys() == items.keys()
        premises = {plan.id: plan.premise for plan in self.all(Plan)}
        texts: dict[int, str] = {}
        for key, item in items.items():
            before = texts.get(item.after_id, "")
            prompt = Prompt(item.phase, item.title, premises[item.plan_id], before)
            texts[key] = FakeStoryteller(0, 0).tell(prompt, lambda: None)
        assert self.texts() == texts
        assert self.words() == sum(len(text.split()) for text in texts.values())
        named = Counter((key, slug) for key, text in texts.items() for slug in things_named(text))
        found = self.all(Requirement)
        assert Counter((one.item_id, one.slug) for one in found) == named
        if is_explained:
            self.judge_lore()

    def judge_lore(self) -> None:
        """Every requirement has its entry, and every entry is wanted, and there once."""
        entries = {one.id: one for one in self.all(Entry)}
        found = self.all(Requirement)
        assert {one.status for one in found} <= {Status.COMPLETE}
        assert all(entries[one.entry_id].slug == one.slug for one in found)
        assert Counter(one.slug for one in entries.values()) == Counter({one.slug for one in found})
        assert entries.keys() == {one.entry_id for one in found}

    def close(self) -> None:
        self.database.close()


def open_database(url: str, guards: str, attempts: int) -> Database:
    return Database(url, [name for name in guards.split(",") if name != "none"], attempts)


@contextmanager
def scene_on(database: str, request: pytest.FixtureRequest, *arguments: Any, **settings: Any) -> Iterator[Scene]:
    with address(database, request) as url:
        scene = Scene(url, *arguments, **settings)
        try:
            yield scene
        finally:
            scene.close()
