"""A store that an older holdfast made: its tables grow, what is in them stays, and the work goes on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Item, Pipeline, schema
from holdfast.errors import StoreBroken
from holdfast.model import codec
from holdfast.store import Store, open_store
from holdfast.store.postgres_address import read_url
from holdfast.worker import Settings
from tests.support.steps import ask
from tests.support.together import at_once
from tests.support.waiting import wait_for

pytestmark = pytest.mark.req("D8")

LATER = [f"{migration.number:04d} {migration.name}" for migration in schema.migrations()[1:]]

#: What the first schema had, column by column.
COLUMNS = {
    "pipelines": "id, name, generation, created_at, updated_at",
    "stages": "id, pipeline, name, position, after, version, max_attempts, active, created_generation, "
    "changed_generation, backfill_next, backfill_until",
    "items": "id, pipeline, key, data, priority, created_at, updated_at",
    "waiting": "stage, priority, item, attempts, alone, rerun",
    "delayed": "item, stage, due_at, attempts, alone, rerun, error",
    "leases": "id, item, stage, worker, attempt, alone, rerun, since",
    "outcomes": "item, stage, state, attempts, lease, started_at, ended_at, version, output_hash, error, result",
    "counts": "slot, stage, state, bucket, n, total_us, most_us",
    "events": "id, at, event, pipeline, item, stage, data",
}
EXTRACT, CHUNK = 1, 2
DONE, HALF, FRESH, LATE, HELD, FAILED, CANCELLED = range(1, 8)
KEYS = ("done", "half", "fresh", "later", "held", "failed", "cancelled")


def outcome(item: int, stage: int, state: str, result: Any = None, error: str | None = None) -> tuple[Any, ...]:
    text = None if result is None else codec.encode(result)
    hashed = None if result is None else codec.digest(result)
    return (item, stage, state, 1, 10 + item, 2_000_000, 3_000_000, "1", hashed, error, text)


ROWS: dict[str, list[tuple[Any, ...]]] = {
    "pipelines": [(1, "books", 1, 1_000_000, 1_000_000)],
    "stages": [
        (EXTRACT, 1, "extract", 0, "[]", "1", 5, 1, 1, 1, None, None),
        (CHUNK, 1, "chunk", 1, '["extract"]', "1", 5, 1, 1, 1, None, None),
    ],
    "items": [
        (number, 1, key, f'{{"path":"{key}.epub"}}', 0, 1_000_000, 1_000_000) for number, key in enumerate(KEYS, 1)
    ],
    "waiting": [(CHUNK, 0, HALF, 0, 0, 0), (EXTRACT, 0, FRESH, 0, 0, 0)],
    "delayed": [(LATE, EXTRACT, 4_000_000, 2, 0, 0, "ValueError: torn page")],
    "leases": [(99, HELD, EXTRACT, 12345, 1, 0, 0, 2_000_000)],
    "outcomes": [
        outcome(DONE, EXTRACT, "done", {"text": "done.epub"}),
        outcome(DONE, CHUNK, "done", {"chunks": 9}),
        outcome(HALF, EXTRACT, "done", {"text": "half.epub"}),
        outcome(FAILED, EXTRACT, "failed", error="Permanent: no such book"),
        (CANCELLED, EXTRACT, "cancelled", 0, None, None, 3_000_000, None, None, "not now", None),
    ],
    "counts": [
        (0, stage, state, -1, n, 0, 0)
        for stage, state, n in (
            (EXTRACT, "pending", 1),
            (EXTRACT, "retry_later", 1),
            (EXTRACT, "in_progress", 1),
            (EXTRACT, "done", 2),
            (EXTRACT, "failed", 1),
            (EXTRACT, "cancelled", 1),
            (CHUNK, "pending", 1),
            (CHUNK, "done", 1),
        )
    ],
    "events": [
        (1, 3_000_000, "failed", 1, FAILED, EXTRACT, '{"attempt":1,"error":"Permanent: no such book"}'),
        (2, 3_000_000, "attempt_failed", 1, LATE, EXTRACT, '{"attempt":1,"error":"ValueError: torn page"}'),
    ],
}


def execute(store: Store, text: str, **params: Any) -> list[tuple[Any, ...]]:
    """SQL of the test's own, on a store of any schema."""
    driver = store.connect()
    driver.begin_bare()
    try:
        rows = [tuple(row) for row in driver.run(driver.dialect.render(text, text), params)]
        driver.commit()
        return rows
    except BaseException:
        driver.rollback()
        raise


def insert(store: Store, table: str, rows: list[tuple[Any, ...]]) -> None:
    names = COLUMNS[table].split(", ")
    numbered = "id" in names and store.connect().dialect.name == "postgres"
    override = "OVERRIDING SYSTEM VALUE " if numbered else ""
    text = (
        f"INSERT INTO holdfast_{table} ({COLUMNS[table]}) {override}VALUES ({', '.join(f':{name}' for name in names)})"
    )
    for row in rows:
        execute(store, text, **dict(zip(names, row, strict=True)))
    if numbered:
        name = f"{store.connect().dialect.schema}.{table}"
        execute(store, f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), (SELECT MAX(id) FROM holdfast_{table}))")


def content(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """What the columns of the first schema hold."""
    return {
        table: sorted(execute(store, f"SELECT {names} FROM holdfast_{table}"), key=str)
        for table, names in COLUMNS.items()
    }


@pytest.fixture
def old(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store of the first schema, with items in every state."""
    first = schema.migrations()[:1]
    store = open_store(url)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", lambda: first)
        patch.setattr(schema, "newest", lambda: 1)
        assert store.upgrade() == ["0001 engine"]
    for table, rows in ROWS.items():
        insert(store, table, rows)
    yield store
    store.close()


def library(version: str = "1") -> Pipeline:
    books = Pipeline("books")

    @books.stage(version=version)
    def extract(item: Item, ctx: Any) -> dict[str, str]:
        return {"text": item.data["path"]}

    @books.stage(after="extract")
    def chunk(item: Item, ctx: Any) -> dict[str, int]:
        return {"chunks": len(ctx.result("extract")["text"])}

    return books


@pytest.fixture
def app(url: str, old: Store) -> Iterator[Holdfast]:
    """Today's holdfast on that store, brought up to date."""
    with Holdfast(url, [library().spec]) as app:
        if app.schema_version() != schema.newest():
            app.upgrade()
        yield app


def test_a_sqlite_file_brings_itself_up_to_date_and_a_server_is_brought_by_a_person(old, url, database):
    with Holdfast(url, [library().spec]) as app:
        if database == "postgres":
            with pytest.raises(StoreBroken, match=r"has schema 1, this holdfast needs .*: run `holdfast db upgrade`"):
                app.status()
            assert app.schema_version() == 1
            assert app.upgrade() == LATER
        [books] = app.status().pipelines
        assert app.schema_version() == schema.newest()
    assert {stage.name: stage.states for stage in books.stages} == {
        "extract": {"pending": 1, "retry_later": 1, "in_progress": 1, "done": 2, "failed": 1, "cancelled": 1},
        "chunk": {"pending": 1, "done": 1},
    }


def test_nothing_that_was_there_is_changed_and_a_second_upgrade_does_nothing(old):
    before = content(old)
    assert {table: len(rows) for table, rows in before.items()} == {table: len(rows) for table, rows in ROWS.items()}
    assert old.upgrade() == LATER
    assert content(old) == before
    assert old.upgrade() == []
    assert content(old) == before
    assert old.schema_version() == schema.newest()


@pytest.mark.req("P9")
@pytest.mark.parametrize("junk", ["'seven'", "'seven' || ''"])
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("items", "priority"),
        ("leases", "since"),
        ("outcomes", "attempts"),
        ("waiting", "alone"),
        ("stages", "position"),
    ],
)
def test_a_column_for_numbers_refuses_a_text_also_in_a_store_that_is_older(app, table, column, junk):
    with pytest.raises(
        (sqlite3.IntegrityError, psycopg.Error), match=r"cannot store TEXT|is of type|invalid input syntax"
    ):
        app.store.write(lambda tx: ask(tx, f"UPDATE holdfast_{table} SET {column} = {junk}"))


@pytest.mark.req("P9")
def test_every_column_of_every_table_takes_values_of_one_type_only(app, url, database):
    if database == "postgres":
        text = (
            "SELECT DISTINCT data_type FROM information_schema.columns JOIN information_schema.tables "
            "USING (table_schema, table_name) WHERE table_schema = :schema AND table_type = 'BASE TABLE'"
        )
        kinds = app.store.write(lambda tx: ask(tx, text, schema=read_url(url)[1]))
        assert {kind for (kind,) in kinds} <= {"bigint", "integer", "smallint", "text"}
        return
    tables = app.store.write(lambda tx: ask(tx, "SELECT name, strict FROM pragma_table_list WHERE type = 'table'"))
    ours = {name: strict for name, strict in tables if name.startswith("holdfast_")}
    assert len(ours) > 30
    assert set(ours.values()) == {1}, ours


def test_a_table_of_the_users_own_beside_ours_is_left_as_it_is(old):
    """On SQLite it even has a name like ours, and a type that our tables cannot have."""
    old.write(lambda tx: ask(tx, "CREATE TABLE holdfast_of_mine (title VARCHAR(20), pages BIGINT)"))
    old.upgrade()
    old.write(lambda tx: ask(tx, "INSERT INTO holdfast_of_mine VALUES ('dune', 412)"))
    assert old.write(lambda tx: ask(tx, "SELECT title, pages FROM holdfast_of_mine")) == [("dune", 412)]


def test_two_who_upgrade_at_once_do_it_once(old, url):
    def upgrade() -> list[str]:
        store = open_store(url)
        try:
            return store.upgrade()
        finally:
            store.close()

    before = content(old)
    assert sorted(at_once(upgrade, upgrade)) == [[], LATER]
    assert content(old) == before


def test_an_upgrade_that_a_reader_is_in_the_way_of_is_done_again(old, url, database):
    """The reader has one table and waits for another, the upgrade the other way round. PostgreSQL ends the upgrade: it is the
    first to look for a deadlock."""
    if database == "sqlite":
        pytest.skip("readers of a SQLite file are in nobody's way")
    conninfo, schema_name, _ = read_url(url)
    other = open_store(url)
    with psycopg.connect(conninfo) as reader, ThreadPoolExecutor(1) as pool:
        reader.execute("SET deadlock_timeout = '60s'")
        reader.execute(f"SELECT COUNT(*) FROM {schema_name}.stages")
        upgrade = pool.submit(other.upgrade)
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = to_regclass(%s)"
        wait_for(lambda: reader.execute(waits, [f"{schema_name}.stages"]).fetchone())
        reader.execute(f"SELECT COUNT(*) FROM {schema_name}.outcomes")
        reader.rollback()
        assert upgrade.result() == LATER
    other.close()


def test_old_rows_are_read_like_new_ones(app):
    done = app.show("done")
    assert (done.status, done.data) == ("done", {"path": "done.epub"})
    assert [stage.result for stage in done.stages] == [{"text": "done.epub"}, {"chunks": 9}]
    assert [one.event for one in app.history("later")] == ["added", "attempt_failed"]
    assert [one.event for one in app.history("done")] == ["added", "completed", "completed"]
    assert app.show("failed").stages[0].error == "Permanent: no such book"
    assert app.events(event="failed")[0].data["error"] == "Permanent: no such book"
    assert (app.events(event="failed")[0].amount, app.costs(["item"]).sums) == (None, ())
    assert app.memos("held") == ()
    assert app.check() == []


def test_old_work_goes_on_from_where_it_was(app):
    """Waiting, delayed, held by a worker that is gone: everything that was open comes to its end."""
    app.run(Settings(poll_seconds=0.05, lease_seconds=1.0))
    assert app.check() == []
    states = {key: [stage.state for stage in app.show(key).stages] for key in KEYS}
    assert states == {
        **{key: ["done", "done"] for key in ("done", "half", "fresh", "later", "held")},
        "failed": ["failed", None],
        "cancelled": ["cancelled", None],
    }
    # What was finished before was not run again, and what was begun went on with its attempts.
    assert app.show("done").stages[1].result == {"chunks": 9}
    assert app.show("later").stages[0].attempts == 3
    app.retry(pipeline="books")
    app.run(Settings(poll_seconds=0.05))
    assert {item.status for item in app.items()} == {"done"}


def test_old_results_are_not_stale_until_their_version_is(app, url):
    """What they were made from was not recorded, so it cannot have changed."""
    app.run(Settings(poll_seconds=0.05, lease_seconds=1.0))
    app.add("books", [{"key": "done", "path": "another.epub"}])
    assert app.plan("books") == ()
    with Holdfast(url, [library("2").spec]) as new:
        [extract, chunk] = new.plan("books", key="done")
        assert (extract.why, extract.cost, chunk.why) == ({"version": 1}, 0, {"upstream": 1})
        assert new.reprocess("books", key="done") == {"extract": 1}
        new.run(Settings(poll_seconds=0.05))
        assert new.show("done").stages[1].result == {"chunks": len("another.epub")}
        assert new.plan("books", key="done") == ()
        assert new.check() == []


def test_a_worker_of_yesterday_can_go_on_writing_after_the_upgrade(app, old):
    """Columns were only added, and each has a value of its own for rows that do not name it."""
    insert(old, "items", [(50, 1, "late", "{}", 0, 5_000_000, 5_000_000)])
    insert(old, "outcomes", [outcome(50, EXTRACT, "done", {"text": "late"}), outcome(50, CHUNK, "done", {"chunks": 4})])
    insert(old, "events", [(70, 5_000_000, "handed_back", 1, 50, EXTRACT, json.dumps({"reason": "stop"}))])
    assert [stage.result for stage in app.show("late").stages] == [{"text": "late"}, {"chunks": 4}]
    assert "handed_back" in [one.event for one in app.history("late")]
    assert app.plan("books") == ()
