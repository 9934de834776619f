"""The views for people, the programs that read them, and the pages that show how."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from click.testing import CliRunner

from holdfast.cli import commands
from holdfast.model.states import State
from holdfast.store import Store, Transaction
from holdfast.store.postgres_address import read_url
from holdfast.testing import ManualClock
from tests.support.harness import App
from tests.support.steps import ask
from tests.support.waiting import wait_for

pytestmark = pytest.mark.req("P14")

DOCS = Path(__file__).resolve().parents[2] / "docs"
COLUMNS = [
    "pipeline",
    "key",
    "stage",
    "state",
    "attempts",
    "version",
    "cost",
    "started_at",
    "finished_at",
    "error",
    "data",
    "result",
]
STAGE_COLUMNS = [
    "pipeline",
    "key",
    "stage",
    "state",
    "attempts",
    "started_at",
    "finished_at",
    "next_attempt_at",
    "error",
]
PEOPLE = ("results", "item_stages_by_name", "costs")
sqlite_only = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
postgres_only = pytest.mark.parametrize("database", ["postgres"], indirect=True)


@pytest.fixture
def filled(store: Store, clock: ManualClock) -> App:
    made = App(store, clock)
    clock.advance(0.000007)
    made.pipeline({"summarise": []}, name="books")
    made.add([{"key": "good", "n": 1}, {"key": "bad"}])
    for lease in made.claim(most=2):
        if lease.key == "bad":
            made.permanent(lease, "no page")
        else:
            made.complete(lease, {"title": "V."})
    made.execute("UPDATE holdfast_outcomes SET cost = 250001 WHERE item = 1")
    return made


@pytest.fixture
def everything(filled: App) -> App:
    """A second pipeline with an item in every state, two of them made again; and a paid call."""
    filled.execute(
        "INSERT INTO holdfast_calls (stage, item, name, state, lease, life, amount, resource, model, tokens_in, "
        "tokens_out, facts, day, at) VALUES (1, 1, 'ask', 'done', 1, 1, 250001, '', 'gpt', 7, 8, '{}', 20000, 1)"
    )
    filled.pipeline({"read": [], "tell": ["read"]}, name="news", max_attempts=2)
    filled.add(
        ["good", "skipped", "failed", "exhausted", "cancelled", "again", "once more", "later", "open"], priority=3
    )
    for lease in filled.claim(most=9, stage="read"):
        match lease.key:
            case "skipped":
                filled.skip(lease, "an empty page")
            case "failed":
                filled.permanent(lease, "no page")
            case "exhausted" | "later" | "cancelled":
                filled.fail(lease, "torn page", delay=60)
            case "open":
                pass
            case _:
                filled.clock.advance(1.5)
                filled.complete(lease, {"page": 1})
    filled.cancel(key="cancelled", reason="not now")
    filled.clock.advance(100)
    filled.promote()
    for lease in filled.claim(most=9, stage="read"):
        if lease.key == "exhausted":
            filled.fail(lease, "torn page")
        else:
            filled.snooze(lease, 3600)
    filled.hold("tell", "skipped", "ask the editor")
    filled.retry(key="again", stage="read", states=["done"])
    filled.retry(key="once more", stage="read", states=["done"])
    [lease] = [one for one in filled.claim(most=9, stage="read") if one.key == "again"]
    filled.release(lease)
    states = {state for (state,) in filled.query("SELECT DISTINCT state FROM holdfast_item_stages")}
    assert states == set(State)
    return filled


def file_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def test_the_view_has_names_and_times(filled: App, url: str, clock: ManualClock) -> None:
    asked = f"SELECT {', '.join(COLUMNS)} FROM holdfast_results ORDER BY key"
    if filled.store.kind == "sqlite":
        with sqlite3.connect(file_of(url)) as file:
            names = [one[0] for one in file.execute("SELECT * FROM holdfast_results").description]
            bad, good = file.execute(asked).fetchall()
        assert datetime.fromisoformat(good[8]) == datetime.fromtimestamp(1_800_000_000, UTC).replace(microsecond=7)
    else:
        conninfo, schema, _ = read_url(url)
        with psycopg.connect(conninfo, options=f"-c search_path={schema}") as connection:
            names = [one.name for one in connection.execute("SELECT * FROM results").description or ()]
            bad, good = connection.execute(asked.replace("holdfast_results", "results")).fetchall()
        assert good[8] == datetime.fromtimestamp(1_800_000_000, UTC).replace(microsecond=7)
    assert names == COLUMNS
    assert good[:6] == ("books", "good", "summarise", "done", 1, "1")
    assert Decimal(str(good[6])) == Decimal("0.250001")
    assert good[9:] == (None, '{"n":1}', '{"title":"V."}')
    assert bad[3] == "failed" and bad[9] == "no page"


def test_stages_by_name_are_the_same_as_by_number(everything: App) -> None:
    numbered = everything.query(
        "SELECT p.name, x.key, s.name, x.state, x.attempts, x.started_at, x.ended_at, x.next_attempt_at, x.error "
        "FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage "
        "JOIN holdfast_pipelines p ON p.id = x.pipeline"
    )
    named = everything.query(f"SELECT {', '.join(STAGE_COLUMNS)} FROM holdfast_item_stages_by_name")
    assert sorted([(*row[:5], *map(micros, row[5:8]), row[8]) for row in named], key=str) == sorted(numbered, key=str)


def micros(instant: str | datetime | None) -> int | None:
    if instant is None:
        return None
    read = datetime.fromisoformat(instant) if isinstance(instant, str) else instant
    return (read - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


@postgres_only
@pytest.mark.skipif(
    shutil.which("psql") is None, reason="NOT PROVED HERE: psql reads the views; install postgresql-client"
)
def test_psql_reads_the_views(everything: App, url: str) -> None:
    conninfo, schema, _ = read_url(url)

    def psql(asked: str) -> list[str]:
        given = ["psql", conninfo, "-qAt", "-c", f"SET search_path = {schema}; SET TimeZone = 'UTC'", "-c", asked]
        return subprocess.run(given, capture_output=True, text=True, check=True).stdout.splitlines()

    assert psql("SELECT key, result::jsonb ->> 'title' FROM results WHERE pipeline = 'books' AND state = 'done'") == [
        "good|V."
    ]
    assert psql(
        "SELECT key, stage, attempts, next_attempt_at, error FROM item_stages_by_name WHERE state = 'on_hold'"
    ) == ["skipped|tell|0||ask the editor"]
    assert psql("SELECT item, day, costs, tokens_in FROM costs") == ["good|2024-10-04|0.250001|7"]


@sqlite_only
def test_the_reference_names_every_column_of_the_views_and_its_statements_run(everything: App, url: str) -> None:
    page = (DOCS / "reference" / "sql.md").read_text()
    for view, columns in (("results", COLUMNS), ("item_stages_by_name", STAGE_COLUMNS)):
        listed = page.partition(f"## `holdfast_{view}`\n")[2].partition("##")[0]
        assert re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE) == columns
        assert everything.store.read(lambda tx, view=view: columns_of(tx, view)) == columns  # type: ignore[misc]
    for_duckdb, others = [], []
    for block in re.findall(r"^```sql\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        (for_duckdb if block.startswith("-- DuckDB") else others).append(block)
    with sqlite3.connect(file_of(url)) as file:
        for block in others:
            assert file.execute(block.partition("-- PostgreSQL")[0].strip().rstrip(";")).fetchall()
    asked = [one for block in for_duckdb for one in block.replace("books.db", file_of(url)).strip().split(";\n")]
    _, sums, stages = in_duckdb(*asked)
    assert ["summarise", "0.250001", "2027-01-15 08:00:00.000007"] in sums
    assert [row[:4] for row in stages] == [["books", "good", "summarise", "done"]]


def columns_of(tx: Transaction, view: str) -> list[str]:
    ask(tx, f"SELECT * FROM holdfast_{view} LIMIT 0")
    return list(tx.store.driver.columns())


#: Of the command line: the extension, then statements. DuckDB has an SQLite of its own, and the locks of one are not seen by
#: another in the same process.
DUCKDB = """
import json, sys, duckdb
with duckdb.connect(config={"autoinstall_known_extensions": False}) as connection:
    connection.execute(f"LOAD '{sys.argv[1]}'")
    print(json.dumps([connection.execute(one).fetchall() for one in sys.argv[2:]], default=str))
"""


def in_duckdb(*statements: str) -> Any:
    """What DuckDB answers, as JSON."""
    found = importlib.util.find_spec("duckdb_extension_sqlite_scanner")
    if found is None or found.origin is None:
        pytest.skip("NOT PROVED HERE: DuckDB reads the views; install duckdb-extension-sqlite-scanner")
    [extension] = Path(found.origin).parent.rglob("*.duckdb_extension")
    given = [sys.executable, "-c", DUCKDB, str(extension), *statements]
    return json.loads(subprocess.run(given, stdout=subprocess.PIPE, text=True, check=True).stdout)


@sqlite_only
def test_duckdb_reads_every_view_of_a_file_as_sqlite_does(everything: App, url: str) -> None:
    with sqlite3.connect(file_of(url)) as file:
        views = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
        rows = [as_text(file.execute(f"SELECT * FROM {view}").fetchall()) for view in views]
    assert {f"holdfast_{name}" for name in PEOPLE} < set(views)
    _, *read = in_duckdb(
        f"ATTACH '{file_of(url)}' AS hf (TYPE sqlite, READ_ONLY)", *(f"SELECT * FROM hf.{view}" for view in views)
    )
    for view, ours, theirs in zip(views, rows, read, strict=True):
        assert ours and as_text(theirs) == ours, view


def as_text(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    return sorted([str(value) for value in row] for row in rows)


@sqlite_only
@pytest.mark.skipif(
    importlib.util.find_spec("datasette") is None,
    reason="NOT PROVED HERE: Datasette reads the views; install datasette",
)
def test_datasette_serves_the_views(everything: App, url: str, tmp_path: Path) -> None:
    socket = tmp_path / "datasette"
    given = [sys.executable, "-m", "datasette", file_of(url), "--uds", str(socket)]
    with subprocess.Popen([*given, "--setting", "sql_time_limit_ms", "60000"]) as program:
        try:
            wait_for(socket.exists)
            folder = f"http://datasette/{Path(file_of(url)).stem}"
            by_socket = httpx.HTTPTransport(uds=str(socket), retries=5)
            with httpx.Client(base_url=folder, transport=by_socket, timeout=60) as client:

                def served(view: str, **conditions: str) -> Any:
                    return client.get(f"holdfast_{view}.json", params={"_shape": "array", **conditions}).json()

                [result] = served("results", pipeline="books", key="good")
                [stage] = served("item_stages_by_name", pipeline="news", state="on_hold")
                [cost] = served("costs")
        finally:
            program.terminate()
    assert list(result) == COLUMNS and result["cost"] == 0.250001 and result["result"] == '{"title":"V."}'
    assert list(stage) == STAGE_COLUMNS and stage["key"] == "skipped" and stage["error"] == "ask the editor"
    assert (cost["item"], cost["day"], cost["costs"]) == ("good", "2024-10-04", 0.250001)


@sqlite_only
def test_every_block_of_the_guide_is_true(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///books.db")
    page = (DOCS / "guide" / "results.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    program, frame = (text for language, text in blocks if language == "python")
    (tmp_path / "books.py").write_text(program)
    found = runpy.run_path("books.py", run_name="__main__")
    exec(frame, found)
    assert found["frame"]["result.pages"].tolist() == [12, 12]
    for line in (line for language, text in blocks if language == "sh" for line in text.splitlines()):
        done = CliRunner().invoke(commands, shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
    there = {file.name for file in tmp_path.iterdir()}
    assert there >= {"books.jsonl", "books.csv", "books.parquet", "books.cursor", "books-new.jsonl"}
    assert [name for name in there if name.endswith(".part")] == []
    [asked] = [text for language, text in blocks if language == "sql"]
    with sqlite3.connect("books.db") as file:
        rows: list[Any] = file.execute(asked).fetchall()
    assert sorted(row[0] for row in rows) == ["u.epub", "v.epub"]
    fields = re.findall(r"`(\w+)`", page.partition("| attribute | |")[2].partition("##")[0])
    [one, _] = found["books"].results("summarise")
    assert {field for field in fields if hasattr(one, field)} == set(one.__struct_fields__)
