"""ORM sessions: an object that was loaded before a row was claimed or finished never wins against the row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from holdfast.adopt import TableMapping, claim, complete, fail, heartbeat, release, requeue_stale
from holdfast.errors import LeaseLost

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


class Base(DeclarativeBase):
    pass


class Task(Base):
    __tablename__ = "tasks"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column("task_state", default="queued")
    title: Mapped[str] = mapped_column(default="")
    who: Mapped[str | None]
    version: Mapped[int] = mapped_column(default=0)
    started: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    beat: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


TASKS = TableMapping(Task, status="state", holder="who", version="version", started="started", heartbeat="beat")


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Task(title=f"task {n}") for n in range(3)])
        session.commit()
        yield session


@pytest.mark.req("F7")
@pytest.mark.parametrize(
    "mapping", [TASKS, TableMapping(Task.__table__, status="task_state", holder="who", version="version")]
)
def test_an_object_of_the_same_session_shows_what_the_claim_wrote(session: Session, mapping: TableMapping):
    task = session.get_one(Task, 1)
    assert task.state == "queued"
    [row] = claim(session, mapping)
    assert (task.state, task.who, task.version) == ("processing", row.token, 2)
    complete(session, row)
    assert (task.state, task.version) == ("completed", 3)


@pytest.mark.req("F7")
def test_a_status_that_was_set_on_a_loaded_object_does_not_win_over_the_claim(session: Session):
    """The older program's habit: load, set, commit. What it set is forgotten; what it edited elsewhere is kept."""
    session.autoflush = False
    task = session.get_one(Task, 1)
    task.state = "failed"
    task.title = "edited"
    [row] = claim(session, TASKS)
    session.commit()
    assert (task.state, task.title, task.who) == ("processing", "edited", row.token)


@pytest.mark.req("F7")
def test_what_the_session_has_not_sent_yet_is_seen_by_the_claim(session: Session):
    session.add(Task(title="new", state="queued"))
    rows = claim(session, TASKS, 9)
    assert [row.row["title"] for row in rows] == ["task 0", "task 1", "task 2", "new"]


@pytest.mark.req("F7", "F5")
@pytest.mark.fault(60)
def test_an_object_of_another_session_that_is_behind_cannot_be_written_back(engine: Engine, session: Session):
    """The model's own version column is the mapping's: SQLAlchemy notices for the other session."""
    with Session(engine) as other:
        stale = other.get_one(Task, 1)
        [row] = claim(engine, TASKS)
        stale.state = "failed"
        with pytest.raises(StaleDataError):
            other.commit()
    assert complete(engine, row).won == (row,)
    session.expire_all()
    assert session.get_one(Task, 1).state == "completed"


@pytest.mark.req("F7", "F5")
@pytest.mark.fault(60)
def test_an_edit_by_another_session_bumps_the_version_and_costs_a_worker_with_a_token_nothing(
    engine: Engine, session: Session
):
    [row] = claim(engine, TASKS)
    session.get_one(Task, 1).title = "edited meanwhile"
    session.commit()
    heartbeat(engine, row)
    assert complete(engine, row).won == (row,)
    session.expire_all()
    task = session.get_one(Task, 1)
    assert (task.state, task.title, task.version) == ("completed", "edited meanwhile", 4)


@pytest.mark.req("F7")
def test_only_what_was_written_is_forgotten(session: Session):
    task = session.get_one(Task, 1)
    session.autoflush = False
    task.title = "not sent yet"
    [row] = claim(session, TASKS)
    for act in (lambda: heartbeat(session, row), lambda: release(session, row)):
        act()
        assert task.title == "not sent yet"
    session.commit()
    assert session.get_one(Task, 1).title == "not sent yet"


@pytest.mark.req("F2", "F7")
def test_a_stale_row_that_was_brought_back_is_seen_as_queued(session: Session):
    task = session.get_one(Task, 1)
    claim(session, TASKS, now=NOON)
    assert task.state == "processing"
    assert requeue_stale(session, TASKS, "30m").queued == (1,)
    assert (task.state, task.who) == ("queued", None)


@pytest.mark.parametrize("place", ["engine", "sessionmaker", "scoped session", "connection"])
def test_every_primitive_works_at_every_place(engine: Engine, session: Session, place: str):
    """An engine and a sessionmaker commit by themselves; a session and a connection are the caller's to commit."""
    scoped = scoped_session(sessionmaker(engine))
    connection = engine.connect()
    places = {
        "engine": engine,
        "sessionmaker": sessionmaker(engine),
        "scoped session": scoped,
        "connection": connection,
    }
    at: Any = places[place]
    try:
        rows = claim(at, TASKS, 3)
        if place in ("scoped session", "connection"):
            assert session.scalars(sa.select(Task.state)).all() == ["queued"] * 3
            session.rollback()
            at.commit()
        heartbeat(at, rows)
        complete(at, rows[0])
        fail(at, rows[1], "x")
        release(at, rows[2])
        requeue_stale(at, TASKS, "30m")
        if place in ("scoped session", "connection"):
            at.commit()
    finally:
        scoped.remove()
        connection.close()
    session.expire_all()
    assert session.scalars(sa.select(Task.state).order_by(Task.id)).all() == ["completed", "failed", "queued"]


def test_a_loss_inside_a_transaction_of_the_callers_is_theirs_to_undo(engine: Engine, session: Session):
    rows = claim(engine, TASKS, 2)
    release(engine, rows[1])
    with pytest.raises(LeaseLost), session.begin():
        complete(session, rows)
    session.expire_all()
    assert session.get_one(Task, 1).state == "processing"
