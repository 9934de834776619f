"""An old database is imported whole: repeatable, nothing lost, and the counts add up."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Holdfast
from holdfast.engine.check import check
from holdfast.errors import UsageError
from holdfast.legacy.importing import import_legacy
from holdfast.legacy.mapping import Mapped
from holdfast.legacy.open_database import open_old
from holdfast.legacy.report import ImportReport
from holdfast.model.stage import PipelineSpec, StageSpec
from tests.support.effort import effort
from tests.support.harness import App, connected, handler
from tests.support.histories import folded
from tests.support.killed_main import killed
from tests.support.old_database import AFTER, CASES, RESULTS, TABLE, Expected, raw, results, timed, write_old_database
from tests.support.together import at_once

pytestmark = pytest.mark.req("J8")

#: The size that the import is made for, and how many times as much CPU it may take as writing the old database did:
#: of few rows, much is what an import costs however few they are.
MANY, TIMES = effort(5_000, 100_000), effort(60, 20)


def spec(shape: dict[str, list[str]] = AFTER, name: str = "books") -> PipelineSpec:
    return PipelineSpec.build(name, [StageSpec(stage, handler, after=tuple(before)) for stage, before in shape.items()])


class Old:
    """An old database, and what an import makes of it."""

    def __init__(self, path: Path, app: App) -> None:
        self.path = path
        self.app = app
        self.specs = {"books": spec()}
        app.pipeline(AFTER, name="books")

    def rows(self, *rows: tuple[Any, ...], job: str | None = "books", made: bool = True) -> None:
        """Write rows of key and stages, and perhaps data; with results of what is done unless these were not `made`."""
        conn = sqlite3.connect(self.path)
        with conn:
            if not conn.execute("SELECT 1 FROM sqlite_master").fetchall():
                conn.execute(TABLE)
                conn.execute(RESULTS)
            if made:
                kept = [result for key, stages, *_ in rows for result in results(key, stages, job)]
                conn.executemany("INSERT INTO results VALUES (?, ?, ?, ?, ?)", kept)
            conn.executemany(
                "INSERT INTO work_items (job_id, item_key, stages, data) VALUES (?, ?, ?, ?)",
                [(job, key, raw(stages), *(map(raw, more) if more else (None,))) for key, stages, *more in rows],
            )
        conn.close()

    def cases(self, *names: str) -> None:
        """Write every kind of row, under names that are made of its own."""
        for made in (True, False):
            some = {name: case for name, case in CASES.items() if case.results is made}
            self.rows(
                *((key.format(name), one.stages, one.data) for key in names for name, one in some.items()), made=made
            )

    def sql(self, text: str) -> None:
        conn = sqlite3.connect(self.path)
        conn.executescript(text)
        conn.close()

    def run(self, *, mapping: dict[str, Any] | None = None, **extra: Any) -> ImportReport:
        store, specs = extra.pop("store", self.app.store), extra.pop("specs", self.specs)
        with open_old(extra.pop("old", self.path)) as old:
            return import_legacy(store, old, Mapped.read(mapping or {"shape": "stages-json"}), specs, **extra)


@pytest.fixture
def old(tmp_path: Path, app: App) -> Old:
    return Old(tmp_path / "old.db", app)


@pytest.fixture
def hold(url: str, old: Old) -> Iterator[Holdfast]:
    """What a person asks of the same store."""
    with Holdfast(url, clock=old.app.clock) as hold:
        yield hold


def assert_sound(app: App) -> None:
    assert check(app.store) == []
    assert app.counts() == app.recount()


def whole(app: App) -> list[list[tuple[Any, ...]]]:
    """All that an import writes."""
    tables = {
        "items": "key, data, pipeline",
        "waiting": "stage, item, attempts",
        "delayed": "stage, item, attempts, error",
        "outcomes": "item, stage, state, attempts, started_at, error",
        "events": "event, item, stage, data",
    }
    return [sorted(app.query(f"SELECT {columns} FROM holdfast_{name}"), key=str) for name, columns in tables.items()]


# What becomes of a row ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_an_item_is_where_its_row_said_and_its_history_says_the_same(old: Old, hold: Holdfast, name: str):
    case = CASES[name]
    old.rows(("x", case.stages, case.data), made=case.results)
    report = old.run()
    assert old.app.states("x") == case.states
    assert folded(hold.history("x"), AFTER) == case.states
    assert sorted(kind for kind, trouble in report.problems.items() for _ in range(trouble.count)) == sorted(
        case.problems
    )
    assert [event["kind"] for event in old.app.events("import_problem")] == list(case.problems)
    assert report.stages == {f"books/{stage}": {state: 1} for stage, state in case.states.items()}
    assert_sound(old.app)


def test_what_was_known_of_an_attempt_is_kept(old: Old):
    old.rows(("x", {**timed("fetch", "done"), **timed("extract", "failed", error="no pages")}))
    old.run()
    fetched, failed = old.app.row("x", "fetch"), old.app.row("x", "extract")
    assert (fetched["state"], fetched["attempts"], fetched["elapsed_us"]) == ("done", 1, 2_000_000)
    assert fetched["ended_at"] - fetched["started_at"] == 2_000_000
    assert (failed["state"], failed["error"]) == ("failed", "no pages")


def test_how_long_stages_took_is_known_afterwards(old: Old, hold: Holdfast):
    old.rows(*((f"k{n}", timed("fetch", "done")) for n in range(10)))
    old.run()
    [pipeline] = hold.status().pipelines
    assert pipeline.stages[0].timings.count == 10
    assert pipeline.stages[0].timings.mean == timedelta(seconds=2)


@pytest.mark.parametrize(("status", "state"), [("in_progress", "pending"), ("retry_later", "retry_later")])
@pytest.mark.parametrize(("max_attempts", "next_one"), [(5, 2), (1, 1)])
def test_an_attempt_that_was_cut_off_or_failed_counts_but_is_not_the_last(old, status, state, max_attempts, next_one):
    old.app.pipeline(AFTER, name="books", max_attempts=max_attempts)
    old.rows(("x", {"fetch": status}))
    old.run()
    assert old.app.states("x") == {"fetch": state}
    old.app.promote()
    [lease] = old.app.claim()
    assert lease.attempt == next_one


def test_imported_items_run_on_to_their_end(old: Old):
    old.cases("{}")
    old.run()
    old.app.promote()
    old.app.run_through()
    assert_sound(old.app)
    for name, case in CASES.items():
        ended_badly = {"failed", "exhausted", "cancelled"} & set(case.states.values())
        assert old.app.status(name) == (
            "done" if not ended_badly else "cancelled" if "cancelled" in ended_badly else "failed"
        )


def test_results_that_were_imported_are_not_stale(old: Old, hold: Holdfast):
    old.rows(("x", CASES["all done"].stages, {"path": "x.epub"}), ("y", CASES["skipped at the end"].stages))
    old.run()
    hold.pipelines = (spec(),)
    assert hold.plan("books") == ()


def test_stages_that_meet_begin_when_all_before_them_have_passed(old: Old):
    shape = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
    old.app.pipeline(shape, name="books")
    done = {**timed("a", "done"), **timed("b", "done")}
    old.rows(
        ("half", {**done, "c": "pending", "d": "pending"}), ("full", {**done, **timed("c", "done"), "d": "pending"})
    )
    old.run(specs={"books": spec(shape)})
    assert old.app.states("half") == {"a": "done", "b": "done", "c": "pending"}
    assert old.app.states("full") == {"a": "done", "b": "done", "c": "done", "d": "pending"}
    old.app.run_through()
    assert old.app.status("half") == old.app.status("full") == "done"
    assert_sound(old.app)


def test_data_become_the_data_of_the_item_and_the_odd_ones_are_kept_too(old: Old):
    old.rows(("x", None, {"path": "x.epub"}), ("y", None, "[1, 2]"), ("z", None, "{n: 1"), ("k" * 2000, None, {"a": 1}))
    old.run()
    assert old.app.data("x") == {"path": "x.epub"}
    assert old.app.data("y") == {"legacy_data": [1, 2]}
    assert old.app.data("z") == {"legacy_data": "{n: 1"}
    assert old.app.data("legacy-row-4") == {"a": 1, "legacy_key": "k" * 2000}


def test_keys_are_told_apart_and_the_first_row_of_a_key_stands(old: Old):
    old.rows(
        ("x", timed("fetch", "failed")),
        ("x", CASES["all done"].stages),
        ("X", None),
        (None, None),
        ("", None),
        (7, None),
    )
    report = old.run()
    assert (report.read, report.imported, report.repeated) == (6, 5, 1)
    assert old.app.states("x") == {"fetch": "failed"}
    assert {row[0] for row in old.app.query("SELECT key FROM holdfast_items")} == {
        "x",
        "X",
        "7",
        "legacy-row-4",
        "legacy-row-5",
    }
    assert [example.row for example in report.problems["key_repeated"].examples] == [2]


# Repeatable -----------------------------------------------------------------------------------------------------------


def test_a_second_run_changes_nothing_and_tells_the_same_problems(old: Old):
    old.cases("{}")
    old.rows(("all done", None))
    first = old.run()
    before = whole(old.app)
    second = old.run()
    assert whole(old.app) == before
    assert (second.imported, second.already_there) == (0, first.imported) == (0, len(CASES))
    assert second.stages == {}
    assert second.problems == first.problems


def test_items_that_have_gone_on_meanwhile_stay_where_they_are(old: Old):
    old.rows(("x", None), ("y", None))
    old.run()
    old.app.run_through()
    old.rows(("z", None))
    report = old.run()
    assert (report.imported, report.already_there) == (1, 2)
    assert old.app.status("x") == "done"
    assert old.app.states("z") == {"fetch": "pending"}
    assert_sound(old.app)


def test_two_imports_at_once_import_each_item_once(old: Old):
    old.rows(*((f"k{n}", CASES["failed"].stages) for n in range(300)))
    with connected(old.app) as other:
        reports = at_once(*(lambda app=app: old.run(store=app.store, most=20) for app in (old.app, other)))
    assert sum(report.imported for report in reports) == 300
    assert sum(report.already_there for report in reports) == 300
    assert_sound(old.app)


@pytest.mark.parametrize("point", ["store.insert_outcomes:3", "commit.before:3", "commit.after:3"])
def test_an_import_that_was_killed_half_way_and_run_again_ends_the_same(old: Old, url: str, point: str):
    old.cases(*(f"{{}} {n}" for n in range(10)))
    ended, errors = killed("import", url, str(old.path), json.dumps(AFTER), at=point)
    assert ended == -signal.SIGKILL, errors
    there = old.app.query("SELECT COUNT(*) FROM holdfast_items")[0][0]
    assert there in (100, 150)
    assert_sound(old.app)
    report = old.run()
    assert (report.read, report.imported, report.already_there) == (len(CASES) * 10, len(CASES) * 10 - there, there)
    assert_sound(old.app)
    for name, case in CASES.items():
        assert old.app.states(f"{name} 0") == old.app.states(f"{name} 9") == case.states


def test_a_dry_run_tells_the_same_and_writes_nothing(old: Old):
    old.cases("{}")
    before = whole(old.app)
    without_store = old.run(dry_run=True, store=None)
    dry = old.run(dry_run=True)
    assert whole(old.app) == before
    real = old.run()
    assert dry == without_store == real
    assert old.run(dry_run=True).already_there == len(CASES)


# Which rows -----------------------------------------------------------------------------------------------------------


def test_rows_go_to_the_pipeline_they_name_and_the_others_are_counted(old: Old):
    old.app.pipeline({"look": []}, name="films")
    specs = {"books": spec(), "films": spec({"look": []}, "films")}
    old.rows(("x", None))
    old.rows(("x", {"look": "done", "look_ended": 5}), job="films")
    old.rows(("y", None), ("z", None), job="songs")
    old.rows(("n", None), job=None)
    report = old.run(specs=specs)
    assert (report.read, report.imported, dict(report.elsewhere)) == (5, 2, {"songs": 2, "": 1})
    assert report.problems["pipeline_missing"].count == 1
    assert old.app.query("SELECT COUNT(*) FROM holdfast_items WHERE key = 'x'") == [(2,)]
    # With one pipeline alone, rows without a name are meant for it; and it may have another name in the old table.
    assert old.run().imported == 1
    assert old.run(specs={"songs": spec()}).imported == 2


def test_columns_that_are_not_there_are_no_trouble(old: Old):
    conn = sqlite3.connect(old.path)
    with conn:
        conn.execute('CREATE TABLE "odd ""table" (KEY TEXT, "rowid" TEXT)')
        conn.execute("""INSERT INTO "odd ""table" VALUES ('x', 'y')""")
    conn.close()
    report = old.run(mapping={"shape": "stages-json", "table": 'odd "table', "key": "Key"})
    assert report.imported == 1
    assert {"job_id", "stages", "data", "table results"} <= {*report.missing}
    assert report.not_taken == {"rowid": 1}
    assert old.app.states("x") == {"fetch": "pending"}


@pytest.mark.parametrize(
    ("make", "settings", "said"),
    [
        ("", {}, "has no table 'work_items'"),
        ("CREATE TABLE other (a)", {}, "there are: other"),
        ("CREATE TABLE work_items (a)", {}, "has no column 'item_key'; there are: a"),
        ("CREATE TABLE work_items (item_key TEXT PRIMARY KEY) WITHOUT ROWID", {}, "have no numbers"),
        ("CREATE TABLE t (item_key); CREATE VIEW work_items AS SELECT * FROM t", {}, "is a view"),
        ("CREATE TABLE t (item_key)", {"table": "t", "key": "x"}, "say in a mapping which is the key"),
        ("CREATE TABLE work_items (item_key)", {"data": "facts"}, "has no column 'facts', which the mapping names"),
        ("CREATE TABLE work_items (item_key)", {"costs": {"table": "c", "amount": "a"}}, "has no table 'c'"),
    ],
)
def test_a_database_that_cannot_be_meant_is_refused_in_one_sentence(
    tmp_path: Path, make: str, settings: Any, said: str
):
    conn = sqlite3.connect(tmp_path / "old.db")
    conn.executescript(make)
    conn.close()
    with pytest.raises(UsageError, match=said), open_old(tmp_path / "old.db") as old:
        import_legacy(None, old, Mapped.read({"shape": "stages-json", **settings}), {"books": spec()}, dry_run=True)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    (tmp_path / "old.db").write_text("not a database, but long enough to look like one" * 100)
    with pytest.raises(UsageError, match="cannot be read"):
        open_old(tmp_path / "old.db")
    with pytest.raises(UsageError, match="does not exist"):
        open_old(tmp_path / "older.db")


def test_the_old_database_is_not_touched(old: Old):
    old.rows(("x", None), ("y", CASES["all done"].stages))
    before = old.path.read_bytes()
    old.path.chmod(0o444)
    old.run()
    assert old.path.read_bytes() == before
    with open_old(old.path) as database, pytest.raises(UsageError, match=r"readonly|read-only"):
        database.run("DELETE FROM work_items")


def test_a_program_that_goes_on_writing_to_the_old_database_disturbs_nothing(old: Old):
    conn = sqlite3.connect(old.path, isolation_level=None)
    conn.execute("PRAGMA journal_mode = WAL")
    old.rows(*((f"k{n}", None) for n in range(50)))
    numbers = iter(range(1000))

    def write_more(report: ImportReport) -> None:
        if report.read < 100:
            conn.execute("INSERT INTO work_items (job_id, item_key) VALUES ('books', ?)", (f"new-{next(numbers)}",))

    report = old.run(most=10, on_batch=write_more)
    conn.close()
    assert report.imported == report.read > 50
    assert_sound(old.app)


# At full size ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected, float]:
    """An old database, what is in it, and how many seconds of CPU it took to write."""
    path = tmp_path_factory.mktemp("old") / "large.db"
    began = time.process_time()
    expected = write_old_database(path, MANY)
    return path, expected, time.process_time() - began


def test_many_items_with_every_kind_of_trouble_keep_their_counts(app: App, large: tuple[Path, Expected, float]):
    path, expected, writing = large
    old = Old(path, app)
    began = time.process_time()
    report = old.run()
    took = time.process_time() - began
    assert (report.read, report.imported, report.already_there) == (MANY, expected.items, 0)
    assert report.imported + report.repeated == report.read
    assert report.repeated == expected.repeated
    assert {kind: trouble.count for kind, trouble in report.problems.items()} == expected.problems
    assert all(len(trouble.examples) == min(20, trouble.count) for trouble in report.problems.values())
    assert {stage.partition("/")[2]: counts for stage, counts in report.stages.items()} == expected.states
    assert app.counts() == expected.states
    assert_sound(app)
    assert json.dumps(report.facts())
    assert took < TIMES * writing
