"""An upgrade keeps nobody waiting for long: it copies and reads no large table, and does not queue in front of everybody."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, schema
from holdfast.errors import StoreConflict, StoreError, StoreUnavailable
from holdfast.store import Store, open_store, upgrading
from holdfast.store.postgres_address import read_url
from tests.support.waiting import wait_for
from tools.old_version import SCHEMA

pytestmark = [pytest.mark.req("D8"), pytest.mark.fault(70)]

LATER = [f"{migration.number:04d} {migration.name}" for migration in schema.migrations()[SCHEMA:]]
INDEX = "ix_holdfast_outcomes_group"

Make = Callable[[str], Store]


def execute(store: Store, text: str) -> list[tuple[Any, ...]]:
    """SQL of the test's own, on a store of any schema."""
    driver = store.connect()
    driver.begin_bare()
    try:
        rows = [tuple(row) for row in driver.run(driver.dialect.render(text, text), {})]
        driver.commit()
        return rows
    except BaseException:
        driver.rollback()
        raise


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make the tables of the version before."""
    made: list[Store] = []

    def make(url: str) -> Store:
        made.append(open_store(url))
        before = schema.migrations()[:SCHEMA]
        with monkeypatch.context() as patch:
            patch.setattr(schema, "migrations", lambda: before)
            made[-1].upgrade()
        assert made[-1].schema_version() == SCHEMA
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def old(make: Make, url: str) -> Store:
    return make(url)


@pytest.fixture
def server(database: str, url: str) -> tuple[str, str]:
    """How to reach the server, and the name of the schema."""
    if database == "sqlite":
        pytest.skip("readers of a SQLite file are in nobody's way, and indexes are built together with their tables")
    conninfo, name, _ = read_url(url)
    return conninfo, name


@pytest.fixture
def reader(server: tuple[str, str], old: Store) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that keeps a table in use for long, as pg_dump does."""
    conninfo, name = server
    with psycopg.connect(conninfo) as reader:
        reader.execute(f"SELECT COUNT(*) FROM {name}.outcomes")
        yield reader


def test_an_upgrade_lets_others_go_first_while_a_transaction_keeps_a_table_in_use(
    old, reader, server, url, monkeypatch
):
    conninfo, name = server
    monkeypatch.setattr(upgrading, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(upgrading, "PAUSE_SECONDS", 0.2)
    waited: list[object] = []
    monkeypatch.setattr(upgrading.log, "info", lambda *said: waited.append(said))
    with psycopg.connect(conninfo) as worker, ThreadPoolExecutor(1) as pool:
        upgrade = pool.submit(old.upgrade)
        try:
            wait_for(lambda: waited)
            # Far longer than the upgrade tries at a time. It would be in vain if the upgrade waited for the reader.
            worker.execute("SET lock_timeout = '30s'")
            for _ in range(3):
                worker.execute(f"UPDATE {name}.outcomes SET attempts = attempts")
                worker.commit()
            assert not upgrade.done()
        finally:
            reader.rollback()
        assert upgrade.result() == LATER


def test_an_upgrade_that_is_never_let_in_gives_up_with_the_reason_and_changes_nothing(old, reader, monkeypatch):
    monkeypatch.setattr(upgrading, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(upgrading, "PATIENCE_SECONDS", 0)
    with pytest.raises(
        StoreUnavailable, match=r"kept its tables in use for 0 s .*: nothing was changed; run the upgrade"
    ):
        old.upgrade()
    assert old.schema_version() == SCHEMA
    reader.rollback()
    assert old.upgrade() == LATER


def test_the_tables_of_a_server_are_changed_in_place(old, server):
    """A table whose rows were copied would have another file."""
    _, name = server
    large = "'items', 'waiting', 'delayed', 'leases', 'outcomes', 'events', 'memos'"
    files = (
        "SELECT relname, pg_relation_filenode(oid) FROM pg_class "
        f"WHERE relname IN ({large}) AND relnamespace = to_regnamespace('{name}') ORDER BY relname"
    )
    before = execute(old, files)
    assert len(before) == 7
    assert old.upgrade() == LATER
    assert execute(old, files) == before
    memo = "INSERT INTO holdfast_memos (stage, item, name, state, version, idempotency_key, lease, at) VALUES (1, 1, {}, 1, 1)"
    execute(old, memo.format("'ask', 'rejected', '1', 'k'"))
    with pytest.raises(psycopg.errors.CheckViolation):
        execute(old, memo.format("'tell', 'lost', '1', 'k'"))


def test_a_file_takes_the_same_steps_whatever_the_number_of_its_rows(make: Make, tmp_path: Path) -> None:
    few, many = (steps_of_upgrade(make(f"sqlite:///{tmp_path}/{rows}.db"), rows) for rows in (10, 5_000))
    assert many < 1.2 * few


def test_a_library_that_guards_its_definitions_is_asked_to_let_the_upgrade_change_them(
    make: Make, tmp_path: Path
) -> None:
    store = make(f"sqlite:///{tmp_path}/store.db")
    raw: Any = store.connect()._conn  # type: ignore[attr-defined]
    if not hasattr(raw, "setconfig"):
        pytest.skip("Python 3.11 cannot set it")
    raw.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
    assert store.upgrade() == LATER


def steps_of_upgrade(store: Store, rows: int) -> int:
    """The steps that SQLite's virtual machine takes for an upgrade with so many finished stages and memos, in tens."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
    execute(
        store,
        f"INSERT INTO holdfast_outcomes (item, stage, state, attempts, ended_at) {numbers} "
        "SELECT i, 1, 'done', 1, 1 FROM n",
    )
    execute(
        store,
        "INSERT INTO holdfast_memos (stage, item, name, state, version, idempotency_key, lease, at) "
        f"{numbers} SELECT 1, i, 'ask', 'done', '1', 'k', 1, 1 FROM n",
    )
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    raw: sqlite3.Connection = store.connect()._conn  # type: ignore[attr-defined]
    raw.set_progress_handler(step, 10)
    assert store.upgrade() == LATER
    raw.set_progress_handler(None, 0)
    assert execute(store, "SELECT COUNT(*) FROM holdfast_memos WHERE state = 'done'") == [(rows,)]
    execute(store, "UPDATE holdfast_memos SET state = 'rejected' WHERE item = 1")
    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
        execute(store, "UPDATE holdfast_memos SET state = 'lost'")
    assert store.integrity() == "ok"
    return taken


@pytest.mark.parametrize(
    "damage",
    ["DROP INDEX {}", "UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass('{}')"],
    ids=["not begun", "half built"],
)
def test_an_index_that_an_interrupted_upgrade_has_not_built_is_reported_and_built_by_the_next(old, server, url, damage):
    old.upgrade()
    assert old.missing_indexes() == []
    name = f"{server[1]}.{INDEX}"
    execute(old, damage.format(name))
    assert old.missing_indexes() == [INDEX]
    with Holdfast(url) as app:
        assert app.check() == [f"index {INDEX} is missing or unusable: run `holdfast db upgrade` to build it"]
        assert app.upgrade() == []
        assert app.check() == []
    assert execute(old, f"SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{name}')") == [(True,)]


@pytest.mark.parametrize(
    "error",
    [StoreConflict("deadlock detected"), StoreUnavailable("tuple concurrently updated")],
    ids=["waits", "removes"],
)
def test_who_comes_in_the_way_of_another_upgrade_builds_the_index_after_all(
    make: Make, bare_url: str, database: str, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    """Two who build an index at once wait for each other, or remove the same half-built one; the server ends one of them."""
    if database == "sqlite":
        pytest.skip("readers of a SQLite file are in nobody's way, and indexes are built together with their tables")
    store = make(bare_url)
    driver = store.connect()
    run_text, begun = driver.run_text, []

    def ended(text: str) -> list[Any]:
        if "CONCURRENTLY" in text:
            begun.append(text)
            if len(begun) == 1:
                raise error
        return run_text(text)

    monkeypatch.setattr(driver, "run_text", ended)
    assert store.upgrade() == LATER
    assert len(begun) == 2
    assert driver.unbuilt(schema.later_indexes()) == []
