"""The migration: adds what is missing, twice is as once, and down leaves the catalogue as it was."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from sqlalchemy import Column, DateTime, Engine, Integer, MetaData, Table, Text

from holdfast.adopt import TableMapping, claim, complete, heartbeat, requeue_stale
from holdfast.adopt.ddl.migration import migration
from holdfast.adopt.ddl.missing_columns import NAMES, TableMigration, WantedColumns, literal, quoted
from holdfast.cli.adopt_sql import adopt_sql
from holdfast.errors import DefinitionError, UsageError

HOSTILE = ["jobs", "Order", 'we ird"name', 'x"; DROP TABLE sentinel;--', "$hf0$ $hf1$ */ */", "订单 %s", "n" * 60]


def catalogue(engine: Engine) -> list[Any]:
    """All that the database knows of its schema, in its own words."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            return list(
                connection.execute(sa.text("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2"))
            )
        asked = [
            (
                "SELECT c.relname, c.relkind, obj_description(c.oid, 'pg_class') FROM pg_class c "
                "WHERE relnamespace = current_schema()::regnamespace ORDER BY 1"
            ),
            (
                "SELECT attrelid::regclass::text, attname, format_type(atttypid, atttypmod), attnotnull, "
                "pg_get_expr(d.adbin, d.adrelid), col_description(attrelid, attnum) FROM pg_attribute a "
                "LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum JOIN pg_class c ON c.oid = attrelid "
                "WHERE c.relnamespace = current_schema()::regnamespace AND attnum > 0 AND NOT attisdropped ORDER BY 1, 2"
            ),
            "SELECT indexdef FROM pg_indexes WHERE schemaname = current_schema() ORDER BY 1",
            (
                "SELECT proname, pg_get_functiondef(oid), obj_description(oid, 'pg_proc') FROM pg_proc "
                "WHERE pronamespace = current_schema()::regnamespace ORDER BY 1, 2"
            ),
        ]
        return [tuple(row) for one in asked for row in connection.execute(sa.text(one))]


def apply(engine: Engine, script: str) -> None:
    """Run a script as the database's own client would."""
    raw: Any = engine.raw_connection()
    try:
        driver = raw.driver_connection
        if engine.dialect.name == "sqlite":
            driver.executescript(script)
        else:
            driver.rollback()
            driver.autocommit = True
            driver.execute(script)
            driver.autocommit = False
    finally:
        raw.close()


@pytest.fixture
def ask(engine: Engine, url: str) -> Callable[..., str]:
    """What the command prints."""

    def ask(*arguments: str, look: bool = True) -> str:
        where = ["--url", url] if look else ["--dialect", engine.dialect.name]
        done = CliRunner().invoke(adopt_sql, [*arguments, *where], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    return ask


def make(engine: Engine, name: str = "jobs", *more: Column[Any]) -> Table:
    """A table as it was before anybody thought of heartbeats."""
    table = Table(
        name,
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("status", Text, nullable=False),
        Column("started_at", DateTime(timezone=True)),
        *more,
    )
    table.create(engine)
    return table


@pytest.mark.req("D9")
@pytest.mark.fault(79)
@pytest.mark.parametrize("name", HOSTILE)
def test_down_leaves_the_catalogue_as_it_was_and_twice_is_as_once(engine: Engine, ask: Callable[..., str], name: str):
    make(engine, name)
    make(engine, "sentinel")
    before = catalogue(engine)
    apply(engine, ask("--table", name))
    once = catalogue(engine)
    assert once != before
    apply(engine, ask("--table", name))
    assert catalogue(engine) == once
    apply(engine, ask("--table", name, "--down"))
    assert catalogue(engine) == before
    apply(engine, ask("--table", name, "--down"))
    assert catalogue(engine) == before


@pytest.mark.req("D9")
def test_a_script_that_was_printed_before_may_be_run_twice(engine: Engine, ask: Callable[..., str]):
    """On PostgreSQL it looks for itself. On SQLite the second time is told that the column is there, and harms nothing."""
    make(engine)
    before = catalogue(engine)
    script = ask("--table", "jobs", look=False)
    apply(engine, script)
    once = catalogue(engine)
    if engine.dialect.name == "sqlite":
        with pytest.raises(Exception, match="duplicate column name"):
            apply(engine, script)
    else:
        apply(engine, script)
    assert catalogue(engine) == once
    apply(engine, ask("--table", "jobs", "--down", look=False))
    assert catalogue(engine) == before


@pytest.mark.req("D9")
def test_what_was_there_before_is_neither_changed_nor_taken_away(engine: Engine, ask: Callable[..., str]):
    make(engine, "jobs", Column("version", Integer, server_default="7"), Column("attempts", Text))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE INDEX ix_jobs_queued ON jobs (status)"))
    before = catalogue(engine)
    apply(engine, ask("--table", "jobs", "--older-than", "1h"))
    columns = {one["name"]: str(one["type"]) for one in sa.inspect(engine).get_columns("jobs")}
    assert columns["attempts"] == "TEXT" and "last_heartbeat" in columns and "holder" in columns
    apply(engine, ask("--table", "jobs", "--down"))
    assert catalogue(engine) == before


@pytest.mark.req("D9")
def test_a_second_wish_adds_to_the_first_and_down_takes_back_both(engine: Engine, ask: Callable[..., str]):
    make(engine)
    before = catalogue(engine)
    few = ["--attempts", "", "--row-version", "", "--next-attempt", ""]
    apply(engine, ask("--table", "jobs", *few))
    assert "attempts" not in {one["name"] for one in sa.inspect(engine).get_columns("jobs")}
    apply(engine, ask("--table", "jobs"))
    assert "attempts" in {one["name"] for one in sa.inspect(engine).get_columns("jobs")}
    apply(engine, ask("--table", "jobs", "--down"))
    assert catalogue(engine) == before


@pytest.mark.req("D9")
@pytest.mark.parametrize("zone", [True, False])
def test_is_job_stale_falls_back_to_when_work_was_started(engine: Engine, ask: Callable[..., str], zone: bool):
    """A start without a time zone is UTC, whatever the zone of the session. A row that has neither is stale, for nobody who
    works on it would leave it so."""
    table = Table(
        "jobs",
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("status", Text),
        Column("started_at", DateTime(timezone=zone)),
    )
    table.create(engine)
    apply(engine, ask("--table", "jobs"))
    if engine.dialect.name == "postgresql":
        sa.event.listen(engine, "connect", lambda conn, _: conn.execute("SET TIME ZONE 'Asia/Tokyo'") and conn.commit())
        engine.dispose()
    now = datetime.now(UTC)
    old, young = now - timedelta(minutes=31), now - timedelta(minutes=29)
    stored = (lambda at: at) if zone and engine.dialect.name == "postgresql" else (lambda at: at.replace(tzinfo=None))
    whole = Table("jobs", MetaData(), autoload_with=engine)
    rows = [
        ("processing", old, young),
        ("processing", young, old),
        ("processing", None, old),
        ("processing", None, young),
        ("processing", None, None),
        ("queued", old, old),
    ]
    with engine.begin() as connection:
        for status, beat, started in rows:
            beat_at = beat if engine.dialect.name == "postgresql" or beat is None else beat.replace(tzinfo=None)
            started_at = None if started is None else stored(started)
            connection.execute(whole.insert().values(status=status, last_heartbeat=beat_at, started_at=started_at))
    asked = (
        "SELECT id FROM jobs_is_job_stale WHERE is_job_stale ORDER BY id"
        if engine.dialect.name == "sqlite"
        else "SELECT id FROM jobs WHERE is_job_stale(jobs) ORDER BY id"
    )
    with engine.connect() as connection:
        assert connection.execute(sa.text(asked)).scalars().all() == [1, 3, 5]
        if engine.dialect.name == "postgresql":
            other = sa.text("SELECT count(*) FROM jobs WHERE is_job_stale(jobs, interval '1 hour')")
            assert connection.execute(other).scalar() == 1


@pytest.mark.req("D9")
def test_the_columns_it_adds_serve_a_mapping(engine: Engine, ask: Callable[..., str]):
    """Rows that were there before the migration can be claimed, and those in hand count from their start."""
    table = make(engine)
    with engine.begin() as connection:
        connection.execute(table.insert().values(status="queued"))
        hours_ago = datetime.now(UTC) - timedelta(hours=2)
        connection.execute(table.insert().values(status="processing", started_at=hours_ago))
    apply(engine, ask("--table", "jobs"))
    whole = Table("jobs", MetaData(), autoload_with=engine)

    mapping = TableMapping(whole, **NAMES)
    mapping.check(engine)
    assert requeue_stale(engine, mapping, "30m").queued == (2,)
    rows = claim(engine, mapping, 9)
    assert [(row.key, row.attempt) for row in rows] == [(1, 1), (2, 1)]
    heartbeat(engine, rows)
    complete(engine, rows)


@pytest.mark.req("D9")
@pytest.mark.parametrize("database", ["postgres"])
def test_a_function_of_the_users_own_is_not_replaced(engine: Engine, ask: Callable[..., str]):
    make(engine)
    with engine.begin() as connection:
        connection.execute(
            sa.text("CREATE FUNCTION is_job_stale(jobs, interval) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
        )
    before = catalogue(engine)
    with pytest.raises(Exception, match="not holdfast's"):
        apply(engine, ask("--table", "jobs"))
    assert catalogue(engine) == before


@pytest.mark.req("D9")
@pytest.mark.parametrize("database", ["postgres"])
def test_a_status_of_an_enumeration_and_another_schema_work(engine: Engine, ask: Callable[..., str]):
    with engine.begin() as connection:
        schema = connection.execute(sa.text("SELECT current_schema()")).scalar_one()
        connection.execute(sa.text("CREATE TYPE mood AS ENUM ('new', 'busy', 'done')"))
        connection.execute(sa.text("CREATE TABLE moods (a integer, b text, state mood, PRIMARY KEY (a, b))"))
    before = catalogue(engine)
    wish = ["--table", "moods", "--schema", schema, "--status", "state", "--queued", "new", "--processing", "busy"]
    apply(engine, ask(*wish))
    with engine.connect() as connection:
        found = connection.execute(
            sa.text("SELECT indexdef FROM pg_indexes WHERE indexname = 'ix_moods_queued'")
        ).scalar()
    assert "(a, b)" in str(found) and "'new'::" in str(found)
    apply(engine, ask(*wish, "--down"))
    assert catalogue(engine) == before


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"table": ""}, "need a name"),
        ({"key": ()}, "need a name"),
        ({"table": "a\0b"}, "zero byte"),
        ({"names": {"heartbeat": ""}}, "nothing to add"),
        ({"names": {**NAMES, "attempts": "id"}}, "two roles"),
        ({"names": {**NAMES, "mood": "m"}}, "not a column that can be added"),
        ({"older_than": "soon"}, "older_than"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(settings: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        migration(WantedColumns(**{"table": "jobs", "status": "status", **settings}), "postgresql")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (["--table", "nowhere"], DefinitionError, "no table 'nowhere'"),
        (
            ["--table", "jobs", "--status", "state"],
            DefinitionError,
            "no column 'state'; it has: id, started_at, status",
        ),
        (["--table", "jobs", "--dialect", "other"], None, "Invalid value for '--dialect'"),
    ],
)
def test_a_table_that_is_not_there_is_told(engine: Engine, url: str, arguments: list[str], error: Any, said: str):
    make(engine)
    done = CliRunner().invoke(adopt_sql, [*arguments, "--url", url])
    assert done.exit_code != 0
    assert said in (str(done.exception) if error is not None else done.output)


def test_a_database_that_cannot_be_looked_at_is_told():
    for url, said in (("sqlite:////nowhere/x.db", "no file"), ("nonsense", "--url"), ("mysql://x/y", "--url")):
        done = CliRunner().invoke(adopt_sql, ["--table", "jobs", "--url", url])
        assert done.exit_code != 0 and said in str(done.exception)
    with pytest.raises(UsageError, match="no migration can be written"):
        migration(WantedColumns("jobs", "status"), "oracle")


def test_names_are_quoted_as_each_database_reads_them():
    assert quoted("s", 'a"b%') == '"s"."a""b%"'
    assert literal("it's") == "'it''s'"
    assert len(WantedColumns("ü" * 60, "status").index("processing").encode()) <= 63
    assert TableMigration(("a;",), ()).script(("a;", "b;")) == "a;\nb;\n"
