"""Names of tables, columns and schemas that would break a statement made of strings: they work, and harm nobody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Column, DateTime, Engine, Integer, MetaData, Table, Text, UniqueConstraint

from holdfast.adopt import (
    Job,
    Loop,
    TableMapping,
    claim,
    complete,
    fail,
    heartbeat,
    insert_once,
    release,
    requeue_stale,
    waiting,
)
from tests.adopt.places import engine_on

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)

#: Its compiler for positional parameters replaced whatever looked like one, in quoted names as well.
_RELEASE = tuple(int(number) for number in re.findall(r"\d+", sa.__version__)[:3])
SQLALCHEMY_READS_NAMES = _RELEASE < (2, 0, 55) or (2, 1) <= _RELEASE < (2, 1, 2)

NAMES = [
    "Order",
    "select",
    'we ird"name',
    'x"; DROP TABLE sentinel;--',
    "x'); DROP TABLE sentinel;--",
    "заказ ß 订单",
    "100%s %(id)s :x ?",
    "a.b[c]`d`\\e",
]


@pytest.fixture
def sentinel(engine: Engine) -> Iterator[None]:
    """A table that must be there afterwards, as it was before."""
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE sentinel (id INTEGER)"))
        connection.execute(sa.text("INSERT INTO sentinel VALUES (7)"))
    yield
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT id FROM sentinel")).scalars().all() == [7]


def hostile_table(name: str, schema: str | None) -> Table:
    """Every name in it is the hostile one, with something to tell them apart."""
    times = [Column(f"{name} {role}", DateTime(timezone=True)) for role in ("next", "beat", "began", "changed")]
    return Table(
        name,
        MetaData(schema=schema),
        Column(f"{name} key", Integer, primary_key=True),
        Column(f"{name} status", Text, nullable=False),
        Column(f"{name} attempts", Integer),
        Column(f"{name} version", Integer),
        Column(f"{name} holder", Text),
        Column(f"{name} error", Text),
        *times,
        Column(f"{name} slug", Text),
        UniqueConstraint(f"{name} slug"),
    )


def hostile_mapping(name: str, table: Table) -> TableMapping:
    roles = {
        "attempts": "attempts",
        "version": "version",
        "holder": "holder",
        "error": "error",
        "next_attempt": "next",
        "heartbeat": "beat",
        "started": "began",
        "updated": "changed",
        "status": "status",
    }
    return TableMapping(table, **{role: f"{name} {word}" for role, word in roles.items()})


def work(engine: Engine, name: str, schema: str | None) -> None:
    """Everything that can be done with a table."""
    table = hostile_table(name, schema)
    table.create(engine)
    mapping = hostile_mapping(name, table)
    mapping.check(engine)
    slug, status = table.c[f"{name} slug"], table.c[f"{name} status"]
    for value in ("a", "b", "c", "d", "a"):
        insert_once(engine, table, {slug.name: value, status.name: "queued"}, unique_on=slug)
    rows = claim(engine, mapping, 4, now=NOON, order_by=f"-{slug.name}", where=slug != "zz")
    assert [row.row[slug.name] for row in rows] == ["d", "c", "b", "a"]
    heartbeat(engine, rows[0])
    complete(engine, rows[0], values={slug.name: "done"})
    fail(engine, rows[1], "no", retry_after=0)
    release(engine, rows[2])
    assert requeue_stale(engine, mapping, "30m").queued == (rows[3].key,)
    assert waiting(engine, mapping).rows == 3

    def handler(job: Job) -> None:
        job.set(**{slug.name: f"{job.row[slug.name]} again"})

    Loop(engine, mapping, handler, max_instances=1).run(drain=True)
    with engine.connect() as connection:
        found = connection.execute(sa.select(slug, status).order_by(slug)).all()
    assert found == [(text, "completed") for text in ("a again", "b again", "c again", "done")]


@pytest.mark.fault(79)
@pytest.mark.usefixtures("sentinel")
@pytest.mark.parametrize("name", NAMES)
def test_a_table_with_any_names_is_worked_off(engine: Engine, name: str):
    if "%(" in name and engine.dialect.name == "sqlite" and SQLALCHEMY_READS_NAMES:
        pytest.skip(
            f"SQLAlchemy {sa.__version__} takes %(id)s in a quoted name for a parameter; 2.0.55 and 2.1.2 do not"
        )
    work(engine, name, None)


@pytest.mark.fault(79)
@pytest.mark.parametrize("name", ["my status", "100 %", "a.b(c)"])
def test_a_loop_completes_rows_whose_status_column_has_any_name(engine: Engine, name: str):
    """Its statement is compiled once, and names a parameter after the column."""
    table = Table("jobs", MetaData(), Column("id", Integer, primary_key=True), Column(name, Text))
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(table.insert(), [{name: "queued"}] * 2)
    assert Loop(engine, TableMapping(table, status=name), lambda job: None).run(drain=True).completed == 2


@pytest.mark.fault(79)
@pytest.mark.parametrize("name", ["Order", 'x"; DROP TABLE sentinel;--', "заказ %s"])
def test_so_is_one_in_a_schema_of_any_name(engine: Engine, url: str, tmp_path: Path, name: str):
    schema = f"{name} schema"
    if engine.dialect.name == "sqlite":
        other = engine_on(url)
        quoted = other.dialect.identifier_preparer.quote_identifier(schema)
        sa.event.listen(
            other, "connect", lambda conn, _: conn.execute(f"ATTACH ? AS {quoted}", (str(tmp_path / "aux.db"),))
        )
        work(other, name, schema)
        other.dispose()
        return
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
    try:
        work(engine, name, schema)
    finally:
        with engine.begin() as connection:
            connection.execute(sa.schema.DropSchema(schema, cascade=True))


@pytest.mark.fault(79)
@pytest.mark.usefixtures("sentinel")
@pytest.mark.parametrize("word", ["it's", "a'; DROP TABLE sentinel;--", "back\\slash", "100% :x", "очередь"])
def test_words_of_the_status_column_may_be_anything(engine: Engine, word: str):
    table = Table(
        "jobs", MetaData(), Column("id", Integer, primary_key=True), Column("status", Text), Column("who", Text)
    )
    table.create(engine)
    mapping = TableMapping(table, holder="who", queued=word, processing=f"{word}!", completed=f"{word}!!", failed="x")
    mapping.check(engine)
    with engine.begin() as connection:
        connection.execute(table.insert().values(status=word))
    [row] = claim(engine, mapping)
    complete(engine, row)
    with engine.connect() as connection:
        assert connection.execute(sa.select(table.c.status)).scalar() == f"{word}!!"
