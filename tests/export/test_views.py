"""The view of results, and the pages that show how to read them."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sqlite3
import subprocess
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from holdfast.cli import commands
from holdfast.store import Store
from holdfast.store.postgres_address import read_url
from holdfast.testing import ManualClock
from tests.support.harness import App

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


def test_the_view_has_names_and_times(filled: App, url: str, clock: ManualClock) -> None:
    asked = f"SELECT {', '.join(COLUMNS)} FROM holdfast_results ORDER BY key"
    if filled.store.kind == "sqlite":
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
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


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.skipif(shutil.which("psql") is None, reason="there is no psql here")
def test_psql_reads_the_view(filled: App, url: str) -> None:
    conninfo, schema, _ = read_url(url)
    asked = "SELECT key, result::jsonb ->> 'title' FROM results WHERE state = 'done'"
    given = ["psql", conninfo, "-At", "-c", f"SET search_path = {schema}", "-c", asked]
    assert subprocess.run(given, capture_output=True, text=True, check=True).stdout.splitlines()[-1] == "good|V."


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_reference_names_every_column_of_the_view_and_its_statements_run(filled: App, url: str) -> None:
    page = (DOCS / "reference" / "sql.md").read_text()
    listed = page.partition("## `holdfast_results`")[2].partition("##")[0]
    assert re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE) == COLUMNS
    with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
        for block in re.findall(r"^```sql\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
            assert file.execute(block.partition("-- PostgreSQL")[0].strip().rstrip(";")).fetchall()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
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
