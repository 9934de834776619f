"""Tables come by numbered migrations: all of one or nothing of it, once, whoever else is at it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast import schema
from holdfast.errors import StoreBroken
from holdfast.store import open_store


@pytest.fixture
def bare(url, clock):
    """A store without tables."""
    store = open_store(url, clock=clock)
    yield store
    store.close()


ALL = [f"{migration.number:04d} {migration.name}" for migration in schema.migrations()]


def test_migrations_are_numbered_from_one_without_a_gap():
    assert [migration.number for migration in schema.migrations()] == list(range(1, len(ALL) + 1))
    assert schema.newest() == len(ALL)


def test_an_upgrade_makes_the_tables_and_a_second_one_does_nothing(bare):
    assert bare.schema_version() == 0
    assert bare.upgrade() == ALL
    assert bare.schema_version() == schema.newest()
    assert bare.upgrade() == []
    bare.require_schema()


def test_a_store_without_tables_is_refused_with_what_to_do(bare):
    with pytest.raises(StoreBroken, match=r"no holdfast tables yet: .*`holdfast db upgrade`"):
        bare.require_schema()


def newer(bare):
    bare.upgrade()

    def work(tx):
        dialect = tx.store.driver.dialect
        tx.store.driver.run(
            dialect.render(
                "newer", "INSERT INTO holdfast_schema_version (version, name, migrated_at) VALUES (999, 'x', 0)"
            ),
            {},
        )

    bare.write(work)


@pytest.mark.fault(70)
def test_tables_of_a_newer_holdfast_are_refused_and_left_alone(bare):
    newer(bare)
    for call in (bare.require_schema, bare.upgrade):
        with pytest.raises(StoreBroken, match=rf"schema 999, this holdfast knows {schema.newest()}: .*newer holdfast"):
            call()
    assert bare.schema_version() == 999


def test_tables_of_an_older_holdfast_are_refused_with_what_to_do(bare, monkeypatch):
    bare.upgrade()
    there = schema.newest()
    monkeypatch.setattr(schema, "newest", lambda: there + 1)
    with pytest.raises(
        StoreBroken, match=f"has schema {there}, this holdfast needs {there + 1}: run `holdfast db upgrade`"
    ):
        bare.require_schema()


def test_a_migration_that_fails_leaves_nothing_of_itself_or_of_those_before_it(bare, monkeypatch):
    broken = schema.Migration(99, "broken", "CREATE TABLE holdfast_half (n INTEGER);\nNO SUCH STATEMENT;\n")
    both = [*schema.migrations(), broken]
    monkeypatch.setattr(schema, "migrations", lambda: both)
    monkeypatch.setattr(schema, "newest", lambda: 99)
    with pytest.raises(Exception, match="syntax"):
        bare.upgrade()
    assert bare.schema_version() == 0
    monkeypatch.undo()
    assert bare.upgrade() == ALL


def test_an_upgrade_keeps_what_is_there(bare, monkeypatch):
    bare.upgrade()
    bare.write(lambda tx: tx.run("add_pipeline", name="kept", now=0))
    more = schema.Migration(schema.newest() + 1, "more", "ALTER TABLE holdfast_pipelines ADD COLUMN note TEXT;\n")
    both = [*schema.migrations(), more]
    monkeypatch.setattr(schema, "migrations", lambda: both)
    monkeypatch.setattr(schema, "newest", lambda: more.number)
    assert bare.upgrade() == [f"{more.number:04d} more"]
    assert [row[1] for row in bare.read(lambda tx: tx.run("read_pipelines"))] == ["kept"]


UPGRADE = "import sys; from holdfast.store import open_store; print(open_store(sys.argv[1]).upgrade())"


def test_several_processes_that_upgrade_at_once_do_it_once(url):
    running = [
        subprocess.Popen(
            [sys.executable, "-c", UPGRADE, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=30) for process in running]
    assert [error for _, error in answers] == ["", "", ""]
    assert sorted(answer.strip() for answer, _ in answers) == sorted([str(ALL), "[]", "[]"])


def test_a_database_says_no_to_a_state_that_does_not_exist(store):
    """Text with a CHECK: the tables themselves know the states."""

    def work(tx):
        columns = tx.store.statements["insert_outcomes"].columns
        tx.run_rows("insert_outcomes", [["nearly done" if column == "state" else 1 for column in columns]])

    with pytest.raises(Exception, match=r"(?i)check constraint"):
        store.write(work)
