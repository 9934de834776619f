"""The benchmark runs, with tiny numbers: what it measures is right, how fast it was does not matter here."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import filling, report, tracing
from benchmarks.board import Board
from benchmarks.chart import draw
from benchmarks.child import Order
from benchmarks.children import Failed, run_together
from benchmarks.contenders import ASYNC, PEERS, RAW, Contender
from benchmarks.databases import Database, PostgresDatabases, SQLiteFiles
from benchmarks.running import measure
from benchmarks.steady import steady_rate
from benchmarks.workload import Case, Figure, Figures, Options, Workload, whole
from benchmarks.workloads import workloads
from holdfast import Holdfast

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = Options(items=100, rounds=2, sizes=(1000,), lease_seconds=1, patience_seconds=60)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=240,
    )


def test_the_benchmark_measures_holdfast_beside_the_raw_loop(database: str, tmp_path: Path, postgres: str):
    asked = {"sqlite": "W2", "postgres": "W3"}[database]
    ended = bench(
        asked, "--only", database, "--items", "100", "--rounds", "1", "--postgres", postgres, "--results", str(tmp_path)
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr

    [file] = tmp_path.glob("*.json")
    rows = json.loads(file.read_text())["rows"]
    cases = ["1 process"] if asked == "W3" else ["1 process", "2 processes"]
    expected = [
        (case, who)
        for case in cases
        for who in ("raw", "raw in bulk", "holdfast async", "holdfast sync")
        if case == "1 process" or not who.startswith("raw")
    ]
    assert [(row["case"], row["contender"]) for row in rows] == expected
    assert all(row["failed"] is None and row["rounds"]["1"]["rate"] > 0 for row in rows)
    assert [len(row["against_raw"]) for row in rows[:4]] == [0, 1, 1, 1]
    assert [len(row["against_raw_in_bulk"]) for row in rows[:4]] == [1, 0, 1, 1]
    assert "against raw in bulk" in ended.stdout
    [drawing] = tmp_path.glob("*.svg")
    assert "raw" in "".join(ElementTree.fromstring(drawing.read_text()).itertext())


def test_the_benchmark_measures_exports_beside_the_raw_database(database: str, tmp_path: Path, postgres: str):
    where = ["--only", database, "--postgres", postgres, "--results", str(tmp_path)]
    ended = bench("W10", "--quick", "--sizes", "1000", *where)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [file] = tmp_path.glob("*.json")
    rows = json.loads(file.read_text())["rows"]
    assert [(row["case"], row["contender"]) for row in rows] == [
        ("jsonl, 1,000 rows", "raw"),
        *((f"{format}, 1,000 rows", "holdfast async") for format in ("jsonl", "csv", "parquet")),
    ]
    assert all(row["failed"] is None and row["rounds"]["1"]["rate"] > 0 for row in rows)
    assert [len(row["against_raw"]) for row in rows] == [0, 1, 0, 0]


@pytest.mark.parametrize("sync", [[], ["--sync"]], ids=["async", "sync"])
def test_where_the_time_of_a_step_goes_is_shown(sync: list[str], tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks.where", "--items", "200", "--stages", "2", "--only", "sqlite", *sync]
    ended = subprocess.run([*command, "--folder", str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    for part in ("the thread that commits", "save outcomes", "move leases on", "handlers", "statement insert_routine"):
        assert part in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_traces_cost_is_shown_for_each_way_to_set_them_up():
    command = [sys.executable, "-m", "benchmarks.tracing", "--items", "100", "--rounds", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    for case in tracing.CASES:
        assert re.search(rf"^{case} +\d+\.\d \(.*\) +\d+\.\d\d \(", ended.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "-1"], "rounds 1 or more"),
        (["W99"], "there is no workload W99; there are W1"),
        (["--peers", "huey,nobody"], "there is no peer nobody; there are pgqueuer"),
    ],
)
def test_the_benchmark_says_what_it_cannot_do(arguments: list[str], words: str):
    ended = bench(*arguments)
    assert ended.returncode == 2
    assert words in ended.stderr


@pytest.fixture
def own_store(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty store as the benchmark makes it: on PostgreSQL, a database of its own."""
    where: Database = (
        SQLiteFiles(tmp_path) if database == "sqlite" else PostgresDatabases(request.getfixturevalue("postgres"))
    )
    url = where.fresh()
    yield url
    where.drop(url)


@pytest.mark.parametrize(
    ("state", "states"), [("waiting", "pending"), ("delayed", "retry_later"), ("done", "done"), ("told", "done")]
)
def test_a_filled_store_looks_as_if_its_items_had_come_one_by_one(own_store: str, state: str, states: str):
    filling.fill(Order("fill", own_store, items=700, state=state))
    with Holdfast(own_store) as app:
        assert app.status().pipelines[0].stages[0].states == {states: 700}
        assert app.check() == []
        assert len({row.key for row in app.items(most=1000)}) == 700
        # New items come after those that were filled in.
        assert app.add("bench", ["one more"]).new == 1
    if state == "waiting":
        assert filling.claim_ms(own_store) > 0


class Fake(Workload):
    """holdfast is always twice as fast as the peer; the raw loop cannot be measured."""

    name, title = "W2", "nothing"
    figures = (Figure("rate", "items/s", whole),)

    def cases(self, options: Options) -> list[Case]:
        return [Case("only")]

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        if contender == RAW:
            raise Failed("drain: ended with 9: the disk is full")
        return {"rate": 50.0 if contender.is_peer else 100.0}


def test_a_contender_that_fails_says_why_and_stops_nobody(tmp_path: Path):
    huey = next(peer for peer in PEERS if peer.name == "Huey")
    rows = measure(Fake(), [RAW, ASYNC, huey], [SQLiteFiles(tmp_path)], OPTIONS)
    shown = report.table(Fake(), rows)
    assert "the disk is full" in shown
    assert [row.failed != "" for row in rows.rows] == [True, False, False]
    assert rows.times_better(rows.rows[2]) == [2.0, 2.0]
    assert "2.00 (2.00–2.00)" in shown
    assert ElementTree.fromstring(draw("<&>", [rows])).tag.endswith("svg")


def test_a_child_that_breaks_is_told_with_its_last_words():
    order = Order("no such operation", "sqlite:///nowhere.db")
    with pytest.raises(Failed, match="ended with 1: KeyError: 'no such operation'"):
        run_together([sys.executable, "-m", "benchmarks.ours"], [order], 60)


def test_a_board_counts_starts_and_ends_across_its_copies(tmp_path: Path):
    board = Board.make(tmp_path / "board", 3)
    other = Board(tmp_path / "board")
    for number in (0, 1):
        other.start(number)
    assert not board.all_started()
    other.start(5)  # numbers beyond the last begin again
    assert board.all_started()
    assert not board.all_started(2)
    other.end(2)
    assert list(board.ends) == [0, 0, 1]
    assert not board.released
    other.release()
    assert board.released


def test_a_rate_leaves_out_the_start_of_a_worker():
    # A second until the first ten of a hundred, then one every hundredth of a second.
    times = [1.0] * 10 + [1.0 + n / 100 for n in range(1, 91)]
    assert steady_rate(times, 100) == pytest.approx(100)


def test_every_peer_is_pinned_and_its_script_imports_nothing_that_its_environment_lacks():
    known = set(workloads())
    for peer in PEERS:
        assert all("==" in package for package in peer.packages), peer.name
        assert set(peer.workloads) <= known
        file = ROOT / f"{peer.module.replace('.', '/')}.py"
        imported = _imports(file)
        assert not any(name.split(".")[0] == "holdfast" for name in imported), peer.name
        ours = {name for name in imported if name.startswith("benchmarks.") and name != peer.module}
        assert ours <= {"benchmarks.peers", "benchmarks.peers.common"}, peer.name
    shared = [ROOT / "benchmarks" / f"{name}.py" for name in ("board", "child", "sending", "steady")]
    for file in shared:
        outside = {name for name in _imports(file) if not name.startswith("benchmarks.")}
        assert {name.split(".")[0] for name in outside} <= sys.stdlib_module_names, file.name


def _imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return found
