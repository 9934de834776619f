"""SQLite's driver spoken to directly: nobody misses SQLAlchemy's part in it, and all rows and values are the same."""

from __future__ import annotations

import enum
import logging
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Column, Engine, MetaData, Table, Text

from holdfast.adopt import Job, Loop, TableMapping
from holdfast.adopt.rows.compiled_statements import is_plain
from tests.adopt.tables import Jobs
from tests.adopt.test_connections import another
from tests.adopt.test_loop import nothing

#: What may be listened to, of an engine and its dialect, and what 25 rows in batches of ten let it hear at least. What is
#: sent as a text is not announced before it is one.
EVENTS = {
    "before_execute": 3,
    "after_execute": 3,
    "before_cursor_execute": 28,
    "after_cursor_execute": 28,
    "do_execute": 28,
    "begin": 28,
    "commit": 28,
    "engine_connect": 28,
}


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_whoever_listens_to_an_engine_hears_of_every_row(url: str, jobs: Jobs, name: str, concurrency: int):
    jobs.add(25)
    heard: Counter[str] = Counter()
    with another(url) as engine:
        sa.event.listen(engine, name, lambda *_: heard.update([name]))
        Loop(engine, jobs.mapping, nothing, batch=10, concurrency=concurrency).run(drain=True)
    assert jobs.statuses() == {"completed": 25}
    if name == "commit" and engine.dialect.name == "postgresql":
        return  # one statement is a transaction by itself there, and needs no commit
    assert heard[name] >= EVENTS[name]


def test_an_engine_that_logs_its_statements_logs_every_row(url: str, jobs: Jobs, caplog: pytest.LogCaptureFixture):
    jobs.add(25)
    with another(url) as engine, caplog.at_level(logging.INFO, logger="sqlalchemy.engine"):
        Loop(engine, jobs.mapping, nothing).run(drain=True)
    assert sum(line.message.startswith("UPDATE") for line in caplog.records) >= 25


def test_a_listener_that_has_gone_leaves_nothing_behind(engine: Engine):
    def listener(*_: Any) -> None: ...

    before = is_plain(engine)
    assert before == (engine.dialect.name == "sqlite")
    sa.event.listen(engine, "before_cursor_execute", listener)
    assert not is_plain(engine)
    sa.event.remove(engine, "before_cursor_execute", listener)
    assert is_plain(engine) == before


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Shouted(sa.types.TypeDecorator[str]):
    """In small letters in the table, in capitals in the program."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return value if value is None else value.lower()

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return value if value is None else value.upper()


class Odd:
    """A table of which no value is stored as it is seen."""

    ROWS = 12

    def __init__(self, engine: Engine) -> None:
        self.table = Table(
            "odd",
            MetaData(),
            Column("id", sa.Uuid, primary_key=True),
            Column("part", Shouted, primary_key=True),
            Column("status", sa.Enum("queued", "processing", "completed", "failed", name="odd_status")),
            Column("holder", sa.Uuid),
            Column("attempts", sa.Integer),
            Column("started", sa.DateTime(timezone=True)),
            Column("colour", sa.Enum(Colour)),
            Column("flag", sa.Boolean),
            Column("price", sa.Numeric(10, 2)),
            Column("facts", sa.JSON),
            Column("bytes", sa.LargeBinary),
            Column("day", sa.Date),
            Column("at", sa.DateTime),
            Column("long", sa.Interval),
            Column("empty", sa.JSON),
            Column("number", sa.Integer),
        )
        self.mapping = TableMapping(self.table, holder="holder", attempts="attempts", started="started")
        self.table.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(self.table.insert(), [self._row(number) for number in range(self.ROWS)])

    def _row(self, number: int) -> dict[str, Any]:
        return {
            "id": uuid.uuid4(),
            "part": f"PART {number}",
            "status": "queued",
            "colour": list(Colour)[number % 2],
            "flag": number % 3 == 0,
            "price": Decimal(number) / 4,
            "facts": {"n": [number]},
            "bytes": bytes([number]),
            "day": datetime(2024, 5, 1 + number).date(),
            "at": datetime(2024, 5, 1, number),
            "number": number,
            "long": timedelta(minutes=number),
            "empty": None,
        }

    def work_off(self, engine: Engine, **settings: Any) -> dict[Any, Any]:
        """What the handlers are given, but for what a claim has written; in order."""
        found: dict[Any, Any] = {}

        def handler(job: Job) -> None:
            assert isinstance(job.held.token, uuid.UUID)
            assert job.held.started_at is not None and job.held.started_at.tzinfo is UTC
            found[job.key] = {name: value for name, value in job.row.items() if name not in ("holder", "started")}

        with engine.begin() as connection:
            connection.execute(self.table.update().values(status="queued", attempts=0))
        Loop(engine, self.mapping, handler, batch=5, **settings).run(drain=True)
        return found


@pytest.mark.parametrize("columns", [None, ["price", "colour", "id"]])
def test_handlers_are_given_the_same_rows_with_and_without_sqlalchemy_between(engine: Engine, columns: Any):
    odd = Odd(engine)
    directly = odd.work_off(engine, columns=columns)
    sa.event.listen(engine, "before_cursor_execute", lambda *_: None)
    through = odd.work_off(engine, columns=columns)
    assert len(directly) == odd.ROWS
    assert list(directly.items()) == list(through.items())


def test_conditions_that_are_not_known_beforehand_are_asked_for_each_time(engine: Engine):
    odd = Odd(engine)
    column = odd.table.c.number
    bound = 4

    def least() -> int:
        return bound

    among = column.in_([1, 5, 7, 9])
    assert len(odd.work_off(engine, where=among)) == 4
    where = [among, column > sa.bindparam("least", callable_=least, type_=sa.Integer())]
    assert {row["number"] for row in odd.work_off(engine, where=where).values()} == {5, 7, 9}
    bound = 8
    assert {row["number"] for row in odd.work_off(engine, where=where).values()} == {9}
    alone = column > sa.bindparam("least", callable_=least, type_=sa.Integer())
    assert {row["number"] for row in odd.work_off(engine, where=alone).values()} == {9, 10, 11}
    bound = 10
    assert {row["number"] for row in odd.work_off(engine, where=alone).values()} == {11}
