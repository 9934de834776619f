"""Mappings: what cannot work is refused before anything is written, by the model's word or by the database's."""

from __future__ import annotations

import enum
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, DateTime, Engine, Integer, MetaData, String, Table, Text, Uuid
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from holdfast.adopt import Loop, TableMapping, claim, complete, fail, requeue_stale
from holdfast.adopt.table.check import written_checks
from holdfast.errors import DefinitionError
from tests.adopt.tables import Jobs

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


class State(enum.Enum):
    NEW = "new"
    BUSY = "busy"
    DONE = "done"
    BAD = "bad"


WORDS: dict[str, Any] = {"queued": State.NEW, "processing": State.BUSY, "completed": State.DONE, "failed": State.BAD}


def table(*columns: Column[Any], key: bool = True, **settings: Any) -> Table:
    own = [Column("id", Integer, primary_key=True)] if key else []
    status = [] if any(column.name == "status" for column in columns) else [Column("status", Text)]
    return Table("jobs", MetaData(), *own, *status, *columns, **settings)


def made(engine: Engine, ddl: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(ddl))


# What the model says --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "settings", "said"),
    [
        ([], {"status": "state"}, "no column 'state' \\(status\\); it has: id, status"),
        ([], {"heartbeat": "beat"}, "no column 'beat'"),
        ([Column("beat", Integer)], {"heartbeat": "beat"}, "must be a DateTime"),
        ([Column("beat", Text)], {"started": "beat"}, "must be a DateTime"),
        ([Column("n", Text)], {"attempts": "n"}, "must be an Integer"),
        ([Column("n", Text)], {"version": "n"}, "must be an Integer"),
        ([Column("who", Integer)], {"holder": "who"}, "a token is a text or a UUID"),
        ([Column("who", String(10))], {"holder": "who"}, "too short for a token"),
        ([Column("who", Text, nullable=False)], {"holder": "who"}, "must be nullable"),
        ([Column("oops", Integer)], {"error": "oops"}, "must be a text"),
        ([], {"version": "id"}, "part of the primary key"),
        ([Column("n", Integer)], {"version": "n", "attempts": "n"}, "at the same time"),
        ([], {"max_attempts": 3}, "counts attempts: attempts="),
        ([Column("n", Integer)], {"attempts": "n", "max_attempts": 0}, "from 1"),
        ([], {"queued": "new", "failed": "new"}, "four different words"),
        ([], {"queued": 1}, "does not fit"),
        ([], {"queued": None}, "must not be None"),
        ([Column("status", sa.Enum("a", "b", name="ab"))], {"queued": "a"}, "not one of the column's values: a, b"),
        ([Column("status", sa.Enum(State))], {"queued": "old"}, "not one of the column's values: NEW, BUSY, DONE, BAD"),
    ],
)
def test_a_mapping_that_cannot_work_is_refused_when_it_is_made(columns: list[Any], settings: dict[str, Any], said: str):
    with pytest.raises(DefinitionError, match=said):
        TableMapping(table(*columns), **settings)


def test_a_table_without_a_primary_key_and_what_is_no_table_are_refused():
    with pytest.raises(DefinitionError, match="no primary key"):
        TableMapping(table(key=False))
    with pytest.raises(DefinitionError, match="neither a SQLAlchemy model nor a Table"):
        TableMapping(State)


def test_columns_may_be_named_by_attribute_by_column_and_by_name():
    class Base(DeclarativeBase):
        pass

    class Task(Base):
        __tablename__ = "tasks"
        id: Mapped[int] = mapped_column(primary_key=True)
        state: Mapped[str] = mapped_column("task_state")
        oops: Mapped[str | None] = mapped_column("err")
        who: Mapped[str | None]

    mapping = TableMapping(Task, status=Task.state, error="oops", holder=Task.__table__.c.who)
    assert {role: column.name for role, column in mapping.columns.items()} == {
        "status": "task_state",
        "error": "err",
        "holder": "who",
    }
    assert TableMapping(Task, status="task_state").columns["status"].name == "task_state"
    assert mapping.attribute(mapping.columns["error"]) == "oops"


# What the database says -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        (None, "does not exist"),
        ("id INTEGER PRIMARY KEY, state TEXT", "no column 'status' \\(status\\) in this database"),
        ("id INTEGER PRIMARY KEY, status TEXT", "no column 'who' \\(holder\\) in this database"),
        ("id INTEGER PRIMARY KEY, status INTEGER, who TEXT, n INTEGER", "is INTEGER in this database"),
        ("id INTEGER PRIMARY KEY, status TEXT, who TEXT, n TEXT", "'n' \\(attempts\\) is TEXT in this database"),
        ("id INTEGER PRIMARY KEY, status TEXT, who TEXT NOT NULL, n INTEGER", "NOT NULL in this database"),
        ("id INTEGER, status TEXT, who TEXT, n INTEGER", "the database's is none"),
        ("other INTEGER PRIMARY KEY, id INTEGER, status TEXT, who TEXT, n INTEGER", "the database's is other"),
        (
            "id INTEGER PRIMARY KEY, status TEXT CHECK (status IN ('queued', 'completed', 'failed')), who TEXT, n INTEGER",
            "forbids processing='processing'",
        ),
        (
            """id INTEGER PRIMARY KEY, status TEXT, who TEXT, n INTEGER, x TEXT DEFAULT 'CHECK (0',
               CONSTRAINT "w'o(r" CHECK (length(status) < 8 OR status = ':%s "')""",
            "forbids processing=",
        ),
    ],
)
def test_a_table_that_is_not_as_the_model_says_is_refused_before_anything_is_written(
    engine: Engine, ddl: str | None, said: str
):
    if ddl is not None:
        made(engine, f"CREATE TABLE jobs ({ddl})".replace(":", "\\:"))
    mapping = TableMapping(table(Column("who", Text), Column("n", Integer)), holder="who", attempts="n")
    with pytest.raises(DefinitionError, match=said):
        mapping.check(engine)
    with pytest.raises(DefinitionError, match=said):
        Loop(engine, mapping, print).run(drain=True)


@pytest.mark.parametrize("database", ["postgres"])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("varchar(8)", "has 8 characters; processing='processing' does not fit"),
        ("mood", "processing='processing' is not one of its values: queued, completed, failed"),
    ],
)
def test_a_word_that_the_type_has_no_room_for_is_refused(engine: Engine, kind: str, said: str):
    made(engine, "CREATE TYPE mood AS ENUM ('queued', 'completed', 'failed')")
    made(engine, f"CREATE TABLE jobs (id integer PRIMARY KEY, status {kind})")
    with pytest.raises(DefinitionError, match=said):
        TableMapping(table()).check(engine)


def test_a_check_that_also_looks_at_other_columns_is_not_judged(engine: Engine):
    made(
        engine,
        "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT, n INTEGER, CHECK (status <> 'failed' OR n > 1))",
    )
    TableMapping(table()).check(engine)
    with engine.connect() as connection:
        TableMapping(table()).check(connection)


def test_a_good_table_passes_also_with_its_key_as_a_unique_index(engine: Engine):
    made(
        engine,
        "CREATE TABLE jobs (id INTEGER NOT NULL, status TEXT NOT NULL CHECK (status IN "
        "('queued', 'processing', 'completed', 'failed')))",
    )
    made(engine, "CREATE UNIQUE INDEX own_key ON jobs (id)")
    TableMapping(table()).check(engine)


def test_checks_are_found_in_the_text_that_sqlite_keeps():
    text = """CREATE TABLE "CHECK (a)" ( a TEXT CHECK(a <> ')') /* CHECK (b) */ , -- CHECK (c)
        recheck INTEGER, [CHECK (d)] TEXT, CONSTRAINT n check  ( (a = 'it''s (') AND 1 ), `CHECK (e)` TEXT)"""
    assert list(written_checks(text)) == ["a <> ')'", "(a = 'it''s (') AND 1"]
    assert list(written_checks("CHECK (open")) == ["open"]


# Keys and words -------------------------------------------------------------------------------------------------------


@pytest.mark.req("S1")
@pytest.mark.parametrize("kind", ["composite", "uuid", "text"])
def test_keys_may_be_composite_uuids_or_texts(engine: Engine, kind: str):
    if kind == "composite":
        own = [Column("shelf", Text, primary_key=True), Column("place", Integer, primary_key=True)]
        keys: list[dict[str, Any]] = [{"shelf": shelf, "place": n} for shelf in "ba" for n in (2, 1)]
    elif kind == "uuid":
        own = [Column("id", Uuid, primary_key=True)]
        keys = [{"id": uuid.UUID(int=n)} for n in (3, 1, 2)]
    else:
        own = [Column("id", Text, primary_key=True)]
        keys = [{"id": key} for key in ("ß", "o'clock", 'a"b', "%s :x")]
    jobs = Jobs(engine, key=own)
    jobs.mapping.check(engine)
    jobs.add(0, *keys)
    rows = claim(engine, jobs.mapping, 9, now=NOON)
    assert [row.key for row in rows] == sorted(
        (tuple(key.values()) if len(key) > 1 else key["id"] for key in keys),
        key=lambda key: key.encode() if isinstance(key, str) else key,
    )
    assert rows[0].key_values == (rows[0].key if kind == "composite" else (rows[0].key,))
    jobs.set(jobs.mapping.key[-1] == rows[1].key_values[-1], holder="somebody else")
    finished = complete(engine, rows, report=True)
    assert rows[1] in finished.lost and len(finished.won) + len(finished.lost) == len(rows)
    assert set(requeue_stale(engine, jobs.mapping, "30m").queued) == {row.key for row in finished.lost}


@pytest.mark.req("S1")
@pytest.mark.parametrize("native", [True, False])
def test_the_words_may_be_members_of_an_enumeration(engine: Engine, native: bool):
    jobs = Jobs(
        engine,
        status_type=sa.Enum(State, name="job_state", native_enum=native, create_constraint=True),
        max_attempts=1,
        **WORDS,
    )
    jobs.mapping.check(engine)
    jobs.add(3)
    rows = claim(engine, jobs.mapping, 3, now=NOON)
    assert rows[0].row["status"] is State.BUSY
    complete(engine, rows[0])
    fail(engine, rows[1], "x")
    assert requeue_stale(engine, jobs.mapping, "1m").failed == (3,)
    assert [row.status for row in jobs.rows()] == [State.DONE, State.BAD, State.BAD]


def test_an_enumeration_may_be_given_by_its_values(engine: Engine):
    jobs = Jobs(
        engine,
        status_type=sa.Enum(State, name="job_state"),
        queued="new",
        processing="busy",
        completed="done",
        failed="BAD",
    )
    jobs.add(1)
    [row] = claim(engine, jobs.mapping)
    fail(engine, row, "x")
    assert jobs.row(1).status is State.BAD


def test_a_text_column_takes_the_values_of_members_and_a_number_takes_numbers(engine: Engine):
    jobs = Jobs(engine, **WORDS)
    jobs.add(1)
    claim(engine, jobs.mapping)
    assert jobs.row(1).status == "busy"
    numbers = Jobs(engine, (), name="numbers", status_type=Integer, queued=0, processing=1, completed=2, failed=3)
    numbers.mapping.check(engine)
    numbers.add(1)
    [row] = claim(engine, numbers.mapping)
    complete(engine, row)
    assert numbers.row(1).status == 2


def test_a_holder_may_be_a_uuid(engine: Engine):
    own = Table(
        "tasks",
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("status", Text),
        Column("who", Uuid),
        Column("beat", DateTime),
    )
    own.create(engine)
    mapping = TableMapping(own, holder="who", heartbeat="beat")
    mapping.check(engine)
    with Session(engine) as session:
        session.execute(own.insert().values(status="queued"))
        [row] = claim(session, mapping)
        assert isinstance(row.token, uuid.UUID)
        complete(session, row)
        session.commit()


def test_a_check_constraint_of_the_model_is_found_in_the_database(engine: Engine):
    strict = table(CheckConstraint("status IN ('queued', 'processing', 'completed')", name="words"))
    strict.create(engine)
    with pytest.raises(DefinitionError, match="forbids failed='failed'; allow it first"):
        TableMapping(strict).check(engine)
