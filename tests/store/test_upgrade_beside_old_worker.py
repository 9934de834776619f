"""Today's code brings up to date a store that an earlier version has made, while a worker of that version goes on working.

The earlier version is real: its code comes out of the history (`tools/old_version.py`), and runs in processes of its own.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.engine import plan_and_reprocess
from holdfast.model.money import micros
from holdfast.store import Store, open_store
from tests.support.killed_main import killed
from tests.support.ledger import Ledger
from tests.support.population import (
    ENDED,
    HELD,
    PRICE_MICROS,
    REPORTED_MICROS,
    SETTINGS,
    UNTOUCHED,
    is_open,
    open_app,
    seen,
)
from tests.support.schemas import Schemas, address
from tests.support.two_versions import TODAY, ends_of, wait
from tools import old_version

pytestmark = [pytest.mark.fault(70), pytest.mark.req("D8")]


@pytest.fixture
def run(url: str, ledger: Ledger) -> Callable[[str, Path], subprocess.CompletedProcess[str]]:
    """Run the program of `tests/support/population.py` to its end, by the code in a folder."""

    def run(what: str, code: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            old_version.command(what, url, ledger.path, code),
            env=old_version.environment(code),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def before(run: Any, old_code: Path) -> dict[str, Any]:
    """The old code has filled the store: what it sees in there."""
    filled = run("fill", old_code)
    assert filled.returncode == 0, filled.stderr
    found: dict[str, Any] = json.loads(filled.stdout)
    states = {state for item in found["items"].values() for _, state, _, _ in item["stages"]}
    assert states == {
        None,
        "pending",
        "retry_later",
        "in_progress",
        "done",
        "skipped",
        "failed",
        "exhausted",
        "cancelled",
    }
    assert found["items"].keys() >= {*ENDED, *HELD, *UNTOUCHED, "parent/first", "parent/slow", "shelf-1"}
    assert found["items"]["die"]["memos"] == [["extract", "answer", "intended"]]
    assert found["items"]["later"]["memos"] == [["extract", "answer", "done"]]
    assert found["counts"]["books/proofread"] == {"done": 6, "pending": 1}, "a stage that was removed"
    assert (found["paused"], found["wrong"]) == (["pages"], [])
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """The tables as they are: opening them brings nothing up to date."""
    store = open_store(url)
    yield store
    store.close()


@pytest.fixture
def up_to_date(database: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Another store, of today's schema, that was never anything else."""
    if database == "sqlite":
        store = open_store(f"sqlite:///{request.getfixturevalue('empty_file')}")
        yield store
        store.close()
        return
    schemas: Schemas = request.getfixturevalue("schemas")
    name = schemas.take()
    store = open_store(address(schemas.base, name))
    yield store
    store.close()
    schemas.give_back(name)


def ask(store: Store, text: str) -> list[tuple[Any, ...]]:
    driver = store.connect()
    driver.begin_read()
    try:
        return sorted((tuple(row) for row in driver.run(driver.dialect.render(text, text), {})), key=str)
    finally:
        driver.rollback()


def shape(store: Store) -> list[tuple[Any, ...]]:
    """Every table with its columns, and every index, constraint and view, as text."""
    dialect = store.connect().dialect
    if dialect.name == "sqlite":
        return ask(store, "SELECT type, name, sql FROM sqlite_master")
    name = dialect.schema_name
    found = ask(
        store,
        "SELECT table_name, column_name, data_type, is_nullable, column_default "
        f"FROM information_schema.columns WHERE table_schema = '{name}'",
    )
    found += ask(store, f"SELECT indexdef FROM pg_indexes WHERE schemaname = '{name}'")
    found += ask(store, f"SELECT viewname, definition FROM pg_views WHERE schemaname = '{name}'")
    found += ask(
        store,
        f"SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = to_regnamespace('{name}')",
    )
    return [tuple(str(part).replace(name, "schema") for part in row) for row in found]


def columns(store: Store) -> dict[str, list[str]]:
    """Of every table."""
    dialect = store.connect().dialect
    text = (
        "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c "
        "WHERE m.type = 'table' AND m.name LIKE 'holdfast!_%' ESCAPE '!'"
        if dialect.name == "sqlite"
        else f"SELECT 'holdfast_' || c.table_name, c.column_name FROM information_schema.columns c "
        f"JOIN information_schema.tables t USING (table_schema, table_name) "
        f"WHERE table_schema = '{dialect.schema_name}' AND table_type = 'BASE TABLE'"
    )
    found: dict[str, list[str]] = {}
    for table, column in ask(store, text):
        found.setdefault(table, []).append(column)
    return found


def rows(store: Store, tables: dict[str, list[str]]) -> dict[str, list[tuple[Any, ...]]]:
    """What is in these columns."""
    return {
        table: ask(store, f"SELECT {', '.join(names)} FROM {table}")
        for table, names in tables.items()
        if table != "holdfast_schema_version"
    }


def paid(store: Store) -> int:
    [(amount,)] = ask(store, "SELECT CAST(SUM(amount) AS BIGINT) FROM holdfast_events WHERE event = 'cost'")
    return int(amount)


def booked(app: Holdfast, by: str) -> dict[str | None, int]:
    """What was charged, in millionths."""
    return {getattr(row, by): micros(row.costs) for row in app.costs([by]).sums}


def kill_upgrades(store: Store, url: str) -> None:
    """Have an upgrade killed before its commit, before its first statement, its second, its fourth and so on, and at last
    right after its commit. Until then nothing has changed; after it, nothing that was there."""
    kept, was = columns(store), shape(store)
    there = rows(store, kept)
    nth, said = 0, ""
    while not said:
        code, said = killed("upgrade", url, str(nth))
        assert (code, said) in [(-signal.SIGKILL, ""), (-signal.SIGKILL, "committed\n")]
        if not said:
            assert shape(store) == was, f"killed before statement {nth}"
        assert rows(store, kept) == there
        nth = 2 * nth or 1
    # PostgreSQL builds indexes of large tables after the commit; the next upgrade does what a killed one has left.
    assert store.upgrade() == store.missing_indexes() == []


def test_tables_that_are_made_by_a_killed_process_are_all_there_or_none(store, url, up_to_date):
    kill_upgrades(store, url)
    assert shape(store) == shape(up_to_date)
    assert store.upgrade() == []


def test_an_upgrade_that_is_killed_and_done_again_keeps_everything_that_was_there(
    before, store, url, up_to_date, ledger
):
    assert store.schema_version() == old_version.SCHEMA
    empty = {table for table, found in rows(store, columns(store)).items() if not found}
    assert empty <= {"holdfast_clock"}, "a server has a clock of its own; every other table has something to lose"
    spent = paid(store)
    kill_upgrades(store, url)
    assert shape(store) == shape(up_to_date)
    with open_app(url, ledger) as app:
        assert app.upgrade() == []
        assert json.loads(json.dumps(seen(app))) == before
        assert sum(booked(app, "resource").values()) == spent
        assert app.check() == []


def test_old_code_that_starts_on_a_newer_store_refuses_it_with_the_reason(run, old_code, store):
    store.upgrade()
    assert store.schema_version() > old_version.SCHEMA
    refused = run("work", old_code)
    assert refused.returncode != 0
    assert f"has schema {store.schema_version()}, this holdfast knows {old_version.SCHEMA}: it " in refused.stderr
    assert "it belongs to a newer holdfast; upgrade this one with pip" in refused.stderr


def test_where_the_history_is_missing_the_script_says_so_and_has_an_exit_code_for_it(tmp_path, capsys):
    assert (
        old_version.main(["--store", f"sqlite:///{tmp_path}/store.db", "--commit", "0" * 40]) == old_version.NO_HISTORY
    )
    assert "commit 000000000000 is not in the history here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_script_makes_an_old_store_without_being_told_where_handlers_write(old_code, url, store):
    assert old_version.main(["--store", url]) == 0
    assert store.schema_version() == old_version.SCHEMA


def test_two_versions_work_side_by_side_and_the_new_one_takes_over(
    before, store, url, ledger, start, old_code, tmp_path
):
    """An old worker goes on while the store is brought up to date beneath it and a new worker joins in. Nothing is lost,
    done twice, or paid twice, also when the old one is killed in the end. What handlers wrote into the ledger decides."""
    upgraded, dead = tmp_path / "upgraded", tmp_path / "dead"
    first = [{"key": f"first-{n}"} for n in range(20)]
    gated = [{"key": f"across-{n}", "until": str(upgraded), "children": {"a": "plain"}} for n in range(2)]
    old = start(old_code, first + gated)
    # The old worker has done some work, has more before it, and is in the middle of a paid stage.
    wait(lambda: len(ends_of(old, ledger)) >= 10 and all(ledger.lines("paid", one["key"]) for one in gated), old)

    with Holdfast(url) as app:
        app.upgrade()
    at = max(line.at for line in ledger.lines())
    upgraded.touch()
    new = start(TODAY, [])
    with open_app(url, ledger) as app:
        app.resume("pages")
        app.retry(pipeline="books", states=["failed", "exhausted", "cancelled", "retry_later"])
        app.retry(pipeline="pages", states=["retry_later"])
        numbers = itertools.count()

        def add_books(n: int, **data: Any) -> None:
            app.add("books", [{"key": f"more-{next(numbers)}", "children": {"a": "plain"}, **data} for _ in range(n)])

        def both_have_worked() -> bool:
            if not is_open(app):
                add_books(10)
            return all(len(ends_of(worker, ledger, since=at)) >= 10 for worker in (old, new))

        wait(both_have_worked, old, new)

        def old_is_in_the_middle() -> bool:
            held = {line.key for line in ledger.lines("paid")} - {line.key for line in ledger.ends(stage="extract")}
            if len(held) < 40:
                add_books(4, until=str(dead))
            return any(line.pid == old.pid and line.key in held for line in ledger.lines("paid"))

        wait(old_is_in_the_middle, old, new)
        assert "Traceback" not in old.said, old.said
        old.kill()
        dead.touch()
        wait(lambda: not is_open(app), new)
        judge(app, ledger)
        # One answer each, and what each attempt reports that was not killed; `later` was sent back by its first one. What old
        # workers have paid is entered into the ledger by new ones now and then, and by an upgrade at once.
        app.upgrade()
        price = PRICE_MICROS + REPORTED_MICROS
        costs = {line.key: price for line in ledger.ends(stage="extract") if line.key != "skip"}
        assert booked(app, "item") == costs | {"later": price + REPORTED_MICROS}
        assert app.check() == []
        # What old workers did is in no count of versions: until a person counts anew, every item is looked at.
        assert {why_every_item(app, name) for name in ("books", "pages")} == {plan_and_reprocess.UNSURE}
        told = {name: app.plan(name) for name in ("books", "pages")}
        assert app.repair() != []
        assert not {why_every_item(app, name) for name in ("books", "pages")} & {plan_and_reprocess.UNSURE}
        assert {name: app.plan(name) for name in ("books", "pages")} == told
        assert app.check() == app.repair() == []
    new.terminate()
    assert new.wait() == 0, new.said
    assert "Traceback" not in new.said, new.said


@pytest.mark.req("P4")
def test_what_a_new_version_is_to_do_again_is_not_done_by_an_old_worker(store, url, ledger, start, old_code):
    """It does not say which version it has, and is not asked."""
    old = start(old_code, [{"key": f"book-{n}"} for n in range(10)])
    wait(lambda: len(ledger.lines("end", stage="index")) == len(ledger.lines("end", stage="publish")) == 10, old)
    with Holdfast(url) as app:
        app.upgrade()
    with open_app(url, ledger, version="2") as app:
        assert app.reprocess("books", stage="index") == {"index": 10}
        assert "still runs an unknown version" in app.why("book-0").text
        app.add("books", ["another"])
        wait(lambda: ledger.lines("end", "another", "publish") != [], old)
        assert len(ledger.lines("end", stage="index")) == 11
        app.run(SETTINGS)
        assert len(ledger.lines("end", stage="index")) == 21
        assert not is_open(app)
        assert app.check() == []
    assert old.is_alive


def why_every_item(app: Holdfast, pipeline: str) -> str | None:
    return app.store.read(lambda tx: plan_and_reprocess.why_every_item(tx, pipeline, None))


def judge(app: Holdfast, ledger: Ledger) -> None:
    """Every stage of every item has ended once, and every answer was paid for once. Only what a killed worker held may have
    begun again, and a call was repeated only where the history says that it was in doubt."""
    for key, item in seen(app)["items"].items():
        again = Counter(stage for event, stage in item["history"] if event == "lease_expired")
        doubts = sum(event == "in_doubt" for event, _ in item["history"])
        assert item["status"] == "done", str(app.show(key))
        for stage, state, _, _ in item["stages"]:
            ended = len(ledger.lines("end", key, stage))
            assert state == "done" or (key, stage, state) == ("skip", "extract", "skipped")
            assert 1 <= ended <= 1 + again[stage], f"{key} ended {stage} {ended} times: {item['history']}"
        if key != "skip" and "extract" in (one[0] for one in item["stages"]):
            assert 1 <= len(ledger.lines("paid", key)) <= 1 + doubts, f"{key}: {item['history']}"
