"""`holdfast import-legacy`: what it asks for, what it tells, and that it can be repeated."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Commands
from tests.support.old_database import CASES, RESULTS, TABLE, raw, results, write_old_database

pytestmark = pytest.mark.req("J8")

FILE = """
from holdfast import Pipeline

books = Pipeline("books")


@books.stage()
def fetch(item, ctx):
    return {}


@books.stage(after="fetch")
def extract(item, ctx):
    return {}


@books.stage(after="extract")
def embed(item, ctx):
    return {}
"""
TWO = (
    FILE
    + """

films = Pipeline("films")


@films.stage()
def look(item, ctx):
    return {}
"""
)


@pytest.fixture
def file(write: Callable[[str, str], str]) -> str:
    return write("library.py", FILE)


@pytest.fixture
def old() -> str:
    """A row of every kind, named after it."""
    conn = sqlite3.connect("old.db")
    with conn:
        conn.execute(TABLE)
        conn.executemany(
            "INSERT INTO work_items (job_id, item_key, stages, data) VALUES ('books', ?, ?, ?)",
            [(name, raw(case.stages), case.data) for name, case in CASES.items()],
        )
        conn.execute(RESULTS)
        kept = [row for name, case in CASES.items() if case.results for row in results(name, case.stages)]
        conn.executemany("INSERT INTO results VALUES (?, ?, ?, ?, ?)", kept)
    conn.close()
    return "old.db"


def test_an_old_database_is_imported_and_can_be_imported_again(cli: Commands, file: str, old: str):
    told = cli.json("import-legacy", file, old)
    assert (told["read"], told["imported"], told["already_there"]) == (len(CASES), len(CASES), 0)
    assert cli.states() == {stage.partition("/")[2]: counts for stage, counts in told["stages"].items()}
    assert told["problems"]["out_of_order"]["count"] == 3
    assert told["problems"]["status_unknown"]["examples"] == [
        {"row": 22, "key": "a status that nobody knows", "stage": "fetch", "found": "finished"}
    ]
    again = cli.json("import-legacy", file, old)
    assert (again["imported"], again["already_there"], again["problems"]) == (0, len(CASES), told["problems"])
    assert cli("db", "check").stdout == "All is well.\n"


def test_it_tells_people_what_came_over_and_what_could_not_be_read(lite: Commands, file: str, old: str):
    said = lite("import-legacy", file, old).stdout
    assert f"{len(CASES)} rows read: {len(CASES)} imported, 0 already there" in said
    assert "books/fetch" in said
    assert "1 status_unknown: a status that nobody knows: begins anew" in said
    assert "row 22, a status that nobody knows, fetch: finished" in said
    again = lite("import-legacy", file, old, "--examples", "0").stdout
    assert "nothing has changed" in again and "    row" not in again


def test_the_items_go_on_where_they_were(cli: Commands, file: str, old: str):
    cli("import-legacy", file, old)
    cli("run", file, code=3)
    assert cli.json("show", "in progress")["status"] == "done"
    shown = cli.json("show", "failed")
    assert [stage["state"] for stage in shown["stages"]] == ["done", "failed", None]
    assert shown["stages"][1]["error"] == "no pages"
    assert cli("db", "check").stdout == "All is well.\n"


def test_what_could_not_be_read_of_an_item_is_in_its_history(lite: Commands, file: str, old: str):
    lite("import-legacy", file, old)
    assert "kind=error_of_passed_stage, found=but how" in lite("show", "done with an error").stdout


def test_a_dry_run_makes_nothing_not_even_a_store(lite: Commands, file: str, old: str):
    told = lite.json("import-legacy", file, old, "--dry-run")
    assert (told["dry_run"], told["imported"]) == (True, len(CASES))
    assert not Path(lite.url.removeprefix("sqlite:///")).exists()
    assert "would be imported" in lite("import-legacy", file, old, "--dry-run").stdout


def test_a_dry_run_on_a_store_knows_what_is_there(cli: Commands, file: str, old: str):
    cli("add", file, "failed")
    told = cli.json("import-legacy", file, old, "--dry-run")
    assert (told["imported"], told["already_there"]) == (len(CASES) - 1, 1)
    assert cli.states() == {"fetch": {"pending": 1}, "extract": {}, "embed": {}}


def test_the_table_and_its_columns_may_have_any_names(lite: Commands, file: str, write: Callable[[str, str], str]):
    conn = sqlite3.connect("old.db")
    with conn:
        conn.execute("CREATE TABLE things (name TEXT, kind TEXT, progress TEXT, facts TEXT)")
        conn.execute(
            """INSERT INTO things VALUES ('x', 'novels', '{"fetch": "failed", "fetch_ended": 5}', '{"n": 1}')"""
        )
    conn.close()
    stages = "{state: 'progress.{stage}', ended: 'progress.{stage}_ended'}"
    mapping = write("old.yaml", f"table: things\nkey: name\npipeline: kind\nstages: {stages}\ndata: facts\n")
    said = lite("import-legacy", file, "old.db", "--mapping", mapping).stdout
    assert "0 imported, 0 already there, 1 of other pipelines" in said
    assert "1 of pipeline 'novels': to import them, name it with --job" in said
    lite("import-legacy", file, "old.db", "--mapping", mapping, "--job", "novels")
    shown = lite.json("show", "x")
    assert (shown["data"], shown["stages"][0]["state"]) == ({"n": 1}, "failed")


def test_a_function_says_what_a_row_means(lite: Commands, file: str, write: Callable[[str, str], str]):
    conn = sqlite3.connect("old.db")
    with conn:
        conn.execute("CREATE TABLE things (name TEXT, step INTEGER)")
        conn.executemany("INSERT INTO things VALUES (?, ?)", [("a", 0), ("b", 1), ("c", 3), ("d", -1), ("e", None)])
    conn.close()
    write(
        "meaning.py",
        """
def row(row):
    step = int(row["step"])
    if step < 0:
        return None
    done = ["fetch", "extract", "embed"][:step]
    return {"key": row["name"], "data": {"step": step}, "stages": {name: {"state": "done", "result": name} for name in done}}
""",
    )
    told = lite.json("import-legacy", file, "old.db", "--mapping", "meaning:row", "--table", "things")
    assert (told["read"], told["imported"], told["left_out"]) == (5, 3, 1)
    [failed] = told["problems"]["mapping_failed"]["examples"]
    assert failed["row"] == 5 and "TypeError" in failed["found"]
    assert [stage["state"] for stage in lite.json("show", "b")["stages"]] == ["done", "pending", None]
    assert [stage["state"] for stage in lite.json("show", "c")["stages"]] == ["done"] * 3
    assert lite.json("show", "c")["stages"][1]["result"] == "extract"


def test_what_runs_again_is_told_with_its_price_before_it_does(
    lite: Commands, write: Callable[[str, str], str], old: str
):
    priced = write(
        "priced.py",
        FILE.replace("@books.stage()", '@books.stage(estimate="0.40", resource="site")').replace(
            'Pipeline("books")', 'Pipeline("books", resources={"site": {"budget": 5}})'
        ),
    )
    told = lite.json("import-legacy", priced, old, "--dry-run")
    assert told["run_again"] == {
        "books/fetch": {"count": 2, "cost": "0.8"},
        "books/extract": {"count": 1, "cost": None},
    }
    said = lite("import-legacy", priced, old, "--dry-run").stdout
    assert "books/fetch would be run again for 2, whose results are missing, which is expected to cost 0.80" in said


def test_rows_go_to_the_pipelines_they_name(lite: Commands, write: Callable[[str, str], str], old: str):
    two = write("two.py", TWO)
    conn = sqlite3.connect(old)
    with conn:
        conn.execute("INSERT INTO work_items (job_id, item_key) VALUES ('films', 'x')")
    conn.close()
    only = lite.json("import-legacy", two, old, "--pipeline", "films")
    assert (only["imported"], only["elsewhere"]) == (1, {"books": len(CASES)})
    assert lite.json("import-legacy", two, old)["imported"] == len(CASES)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["older.db"], "older.db does not exist"),
        (["library.py"], "cannot be read"),
        (["old.db", "--table", "jobs"], "has no table 'jobs'; there are: results, work_items"),
        (["old.db", "--shape", "job-metadata"], "has no table 'background_jobs'"),
        (["old.db", "--shape", "job-metadata", "--table", "work_items"], "has no column 'input_data'"),
        (["old.db", "--mapping", "old.yaml"], "old.yaml: 'prioriti' is unknown; there are"),
        (["old.db", "--mapping", "older.yaml"], "older.yaml cannot be read"),
        (["old.db", "--mapping", "library"], "as module:function"),
        (["old.db", "--mapping", "library:row"], "a function needs --table"),
        (
            ["old.db", "--mapping", "library:row", "--table", "work_items"],
            "has no 'row', expected the name of a function",
        ),
        (["postgresql://127.0.0.1:1/none"], "cannot be read"),
        (["old.db", "--pipeline", "films"], "has no pipeline 'films'"),
        (["old.db", "--mapping", "bare.yaml", "--job", "x"], "say in a mapping which is the pipeline"),
    ],
)
def test_a_wrong_call_is_told_in_one_line_and_makes_nothing(
    lite: Commands, file: str, old: str, args: list[str], said: str
):
    Path("old.yaml").write_text("shape: stages-json\nprioriti: priority\n")
    Path("bare.yaml").write_text("table: work_items\nkey: item_key\n")
    result = lite("import-legacy", file, *args, code=2)
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not Path(lite.url.removeprefix("sqlite:///")).exists()


def test_several_pipelines_and_no_column_that_tells_them_apart_need_a_choice(
    lite: Commands, write: Callable[[str, str], str]
):
    conn = sqlite3.connect("old.db")
    with conn:
        conn.execute("CREATE TABLE work_items (item_key TEXT)")
        conn.execute("INSERT INTO work_items VALUES ('x')")
    conn.close()
    two = write("two.py", TWO)
    assert "--pipeline" in lite("import-legacy", two, "old.db", code=2).stderr
    assert lite.json("import-legacy", two, "old.db", "--pipeline", "films")["missing_columns"][:3] == [
        "attempts",
        "created_at",
        "data",
    ]
    assert lite.states()["look"] == {"pending": 1}


def test_a_long_import_tells_how_far_it_is(lite: Commands, file: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.cli.progress_line.LINE_SECONDS", 0.0)
    write_old_database(Path("old.db"), 3000)
    made, *lines = lite("import-legacy", file, "old.db").stderr.splitlines()
    assert "made a new store" in made
    assert lines[0].startswith("1,000 of 3,000 rows read, ")
    assert len(lines) == 3


def test_the_store_may_be_the_old_database_itself(file: str, old: str):
    """Tables of ours lie beside those of the old program."""
    told = subprocess.run(
        [sys.executable, "-m", "holdfast", "import-legacy", file, old, "--store", "sqlite:///old.db", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["imported"] == len(CASES)
