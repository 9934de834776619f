"""Databases of earlier programs come over whole, half-way items included: from either database, whatever their shape."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Holdfast
from holdfast.engine.check import check
from holdfast.legacy.importing import import_legacy
from holdfast.legacy.mapping import Mapped
from holdfast.legacy.open_database import open_old
from holdfast.legacy.report import ImportReport
from holdfast.model.stage import PipelineSpec, StageSpec
from tests.support.effort import effort
from tests.support.harness import App, handler
from tests.support.old_source import OldSource, old_source

pytestmark = pytest.mark.req("J8")

NEWS = {"fetch": [], "extract": ["fetch"], "analyse": ["extract"], "index": ["extract", "analyse"]}
BOOKS = {"extract": [], "save_markdown": ["extract"], "chunk": ["save_markdown"], "embed": ["chunk"]}
TIME = "2026-02-01T10:00:0"


@pytest.fixture(params=["sqlite", "postgres"])
def source(request: pytest.FixtureRequest, tmp_path: Path, postgres: str) -> Iterator[OldSource]:
    with old_source(request.param, tmp_path, postgres) as source:
        yield source


@pytest.fixture
def hold(url: str, app: App) -> Iterator[Holdfast]:
    with Holdfast(url, clock=app.clock) as hold:
        yield hold


def spec(shape: dict[str, list[str]], name: str, **extra: dict[str, Any]) -> PipelineSpec:
    return PipelineSpec.build(
        name,
        [StageSpec(stage, handler, after=tuple(before), **extra.get(stage, {})) for stage, before in shape.items()],
    )


def run(
    app: App, source: OldSource, pipeline: PipelineSpec, mapping: dict[str, Any] | str, **extra: Any
) -> ImportReport:
    given = {"shape": mapping} if isinstance(mapping, str) else mapping
    names = extra.pop("names", pipeline.name)
    with open_old(source.address) as old:
        return import_legacy(extra.pop("store", app.store), old, Mapped.read(given), {names: pipeline}, **extra)


def sound(app: App) -> None:
    assert check(app.store) == []
    assert app.counts() == app.recount()


# A tracker with stages in a JSON column -------------------------------------------------------------------------------


def tracker(source: OldSource) -> None:
    source.sql(
        "CREATE TABLE work_items (id INTEGER PRIMARY KEY, job_id TEXT, item_key TEXT, status TEXT, priority INTEGER, "
        "attempts INTEGER, stages TEXT, data TEXT, created_at TEXT)",
        "CREATE TABLE results (job_id TEXT, item_key TEXT, stage TEXT, result TEXT, handler_version TEXT)",
        "CREATE TABLE job_cost_log (ts TEXT, job_id TEXT, stage TEXT, item_key TEXT, cost_usd REAL)",
        "CREATE TABLE job_events (ts TEXT, job_id TEXT, event TEXT, stage TEXT, item_key TEXT, data TEXT)",
    )


_numbers = count(1)


def item(key: str, stages: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"id": next(_numbers), "job_id": "news", "item_key": key, "stages": stages, "data": {"url": key}, **more}


def done(*stages: str) -> dict[str, str]:
    return {name: value for stage in stages for name, value in ((stage, "done"), (f"{stage}_ended", f"{TIME}1"))}


def result(key: str, stage: str, value: Any, version: str | None = None) -> dict[str, Any]:
    return {"job_id": "news", "item_key": key, "stage": stage, "result": json.dumps(value), "handler_version": version}


def test_results_come_along_so_that_half_way_items_go_on(app: App, hold: Holdfast, source: OldSource):
    app.pipeline(NEWS, name="news")
    tracker(source)
    source.add("work_items", item("x", {**done("fetch", "extract"), "analyse": "pending"}))
    source.add("results", result("x", "fetch", {"html": "<p>"}), result("x", "extract", {"text": "t"}, "2026-02"))
    report = run(app, source, spec(NEWS, "news"), "stages-json")
    assert app.states("x") == {"fetch": "done", "extract": "done", "analyse": "pending"}
    assert report.again == {} and report.problems == {}
    [lease] = app.claim(stage="analyse")
    assert json.loads(next(iter(lease.results.values()))) == {"text": "t"}
    app.complete(lease, {"topics": []})
    app.run_through()
    assert app.status("x") == "done"
    # A result that another version of the code has made is known as such.
    hold.pipelines = (spec(NEWS, "news"),)
    assert {one.stage: dict(one.why) for one in hold.plan("news") if one.sure} == {"extract": {"version": 1}}
    sound(app)


def test_what_is_done_without_a_result_that_is_needed_runs_again_and_is_told_with_its_price(
    app: App, source: OldSource
):
    app.pipeline(NEWS, name="news")
    tracker(source)
    source.add(
        "work_items",
        item("none", {**done("fetch", "extract"), "analyse": "pending"}),
        item("first only", {**done("fetch", "extract"), "analyse": "retry_later"}),
        item("last only", {**done("fetch", "extract", "analyse"), "index": "pending"}),
        item("not needed", done(*NEWS)),
    )
    kept = [("first only", "fetch", 1), ("last only", "extract", 2), ("last only", "analyse", 3)]
    source.add("results", *(result(*one) for one in kept))
    priced = spec(NEWS, "news", fetch={"estimate": 10_000, "resources": ("site",)})
    dry = run(app, source, priced, "stages-json", dry_run=True)
    report = run(app, source, priced, "stages-json")
    assert dry == report
    assert app.states("none") == {"fetch": "pending"}
    assert app.states("first only") == {"fetch": "done", "extract": "pending"}
    assert app.states("last only") == {"fetch": "done", "extract": "done", "analyse": "done", "index": "pending"}
    assert app.states("not needed") == dict.fromkeys(NEWS, "done")
    assert {stage: (one.count, one.cost) for stage, one in report.again.items()} == {
        "news/fetch": (1, 10_000),
        "news/extract": (2, None),
    }
    assert report.problems["result_missing"].count == 3
    app.run_through()
    assert {app.status(key) for key in ("none", "first only", "last only", "not needed")} == {"done"}
    sound(app)


def test_where_stages_say_nothing_the_status_of_the_item_does(app: App, source: OldSource):
    app.pipeline(NEWS, name="news")
    tracker(source)
    source.sql("ALTER TABLE work_items ADD COLUMN error TEXT")
    source.add(
        "work_items",
        item("done", None, status="done"),
        item("empty", {}, status="completed"),
        item("skipped", None, status="skipped"),
        item("partly", done("fetch"), status="done"),
        item("failed", None, status="failed", error="no route"),
        item("later", done("fetch"), status="failed", error="no text"),
        item("poison", None, status="poison", attempts=7),
        item("pending", None, status="pending"),
        item("running", None, status="in_progress"),
        item("odd", None, status="on fire"),
        item("contrary", {**done("fetch"), "extract": "pending"}, status="done"),
    )
    source.add("results", result("contrary", "fetch", 1))
    report = run(app, source, spec(NEWS, "news"), "stages-json")
    everything = dict.fromkeys(NEWS, "done")
    assert app.states("done") == app.states("empty") == app.states("partly") == everything
    assert app.states("skipped") == dict.fromkeys(NEWS, "skipped")
    assert (app.states("failed"), app.row("failed", "fetch")["error"]) == ({"fetch": "failed"}, "no route")
    assert (app.states("later"), app.row("later", "extract")["error"]) == (
        {"fetch": "done", "extract": "failed"},
        "no text",
    )
    assert (app.states("poison"), app.row("poison", "fetch")["attempts"]) == ({"fetch": "exhausted"}, 7)
    assert app.states("pending") == app.states("running") == app.states("odd") == {"fetch": "pending"}
    assert app.states("contrary") == {"fetch": "done", "extract": "pending"}
    told = {kind: one.count for kind, one in report.problems.items()}
    assert told == {
        "end_missing": 3,
        "status_unknown": 1,
        "status_differs": 1,
        "result_missing_for_retry": 1,
    }
    sound(app)


def test_priority_attempts_times_and_the_day_it_came_are_kept(app: App, source: OldSource):
    app.pipeline(NEWS, name="news")
    tracker(source)
    stages = {"fetch": "done", "fetch_elapsed_s": 2.5, "fetch_attempts": 3, "extract": "in_progress"}
    source.add("work_items", item("x", stages, priority=-4, attempts=2, created_at="2026-01-05T00:00:00"))
    source.add("work_items", item("y", None, priority=9), item("z", None, priority=None))
    source.add("results", result("x", "fetch", 1))
    report = run(app, source, spec(NEWS, "news"), {"shape": "stages-json", "priority": "-priority"})
    assert {kind: one.count for kind, one in report.problems.items()} == {"end_missing": 1, "stages_missing": 2}
    rows = dict(app.query("SELECT key, priority FROM holdfast_items"))
    assert rows == {"x": 4, "y": -9, "z": 0}
    fetched = app.row("x", "fetch")
    assert (fetched["attempts"], fetched["elapsed_us"]) == (3, 2_500_000)
    # The two attempts that were counted for the item are those of the stage that it is at.
    [lease] = app.claim(stage="extract")
    assert lease.attempt == 3
    [(created,)] = app.query("SELECT created_at FROM holdfast_items WHERE key = 'x'")
    assert created == 1_767_571_200 * 1_000_000
    assert [one.key for one in app.claim(stage="fetch", most=2)] == ["y", "z"]
    sound(app)


def test_the_log_of_costs_is_in_the_ledger_on_its_days_and_in_no_budget(url: str, app: App, source: OldSource):
    priced = spec(NEWS, "news", analyse={"resources": ("model",)})
    tracker(source)
    source.add("work_items", item("x", None, status="done"), item("y", {"fetch": "pending"}))
    today = datetime.fromtimestamp(app.clock.now() // 1_000_000, UTC).replace(tzinfo=None).isoformat()
    paid = [
        ("2024-03-01T10:00:00", "analyse", "x", 0.4),
        ("2024-03-01T10:00:00", "analyse", "x", 0.4),
        ("2024-03-02T10:00:00", "analyse", "gone", 0.25),
        ("2024-03-02T10:00:00", "ocr", None, 0.1),
        (today, "analyse", "y", 1),
        (None, "analyse", "x", 2),
        ("2024-03-02T10:00:00", "analyse", "x", -3),
    ]
    source.add(
        "job_cost_log",
        *(
            {"ts": ts, "job_id": "news", "stage": stage, "item_key": key, "cost_usd": usd}
            for ts, stage, key, usd in paid
        ),
    )
    limits = {"model": {"budget_per_day": "1", "budget": "2"}}
    with Holdfast(url, [priced], resources=limits, clock=app.clock) as hold:
        hold.register()
        hold.tune("news", {"budget": "1.00"})
        app.name = "news"
        report = run(app, source, priced, "stages-json")
        assert (report.costs.read, report.costs.imported, report.costs.amount) == (7, 6, 4_150_000)
        told = {kind: one.count for kind, one in report.problems.items()}
        assert told == {"cost_of_no_stage": 1, "cost_of_no_item": 2, "cost_undated": 1, "cost_unreadable": 1}
        by_day = {row.day: row.costs for row in hold.costs(["day"]).sums}
        assert sum(by_day.values()) == Decimal("4.15") and len(by_day) == 4
        assert {row.resource for row in hold.costs(["resource"]).sums} == {"(imported)"}
        assert {row.item: row.costs for row in hold.costs(["item"]).sums}["x"] == Decimal("2.8")
        assert all(not one.spent and not one.spent_today for one in hold.limits())
        # What a stage has cost before is what a plan expects of it.
        assert app.query("SELECT SUM(cost) FROM holdfast_outcomes") == [(2_800_000,)]
        again = run(app, source, priced, "stages-json")
        assert (again.costs.imported, again.costs.already_there) == (0, 6) and not again.changed
        source.add("job_cost_log", {"ts": today, "job_id": "news", "stage": "analyse", "item_key": "y", "cost_usd": 1})
        assert run(app, source, priced, "stages-json").costs.imported == 1
        assert sum(row.costs for row in hold.costs(["pipeline"]).sums) == Decimal("5.15")
    sound(app)


def test_events_are_kept_with_their_times_and_come_once(app: App, hold: Holdfast, source: OldSource):
    app.pipeline(NEWS, name="news")
    tracker(source)
    source.add("work_items", item("x", {"fetch": "pending"}))
    event = {"job_id": "news", "event": "fetch_slow", "stage": "fetch", "ts": f"{TIME}3", "data": {"s": 40}}
    source.add("job_events", *[{**event, "item_key": "x"}] * 2, {**event, "item_key": None, "event": "run_start"})
    report = run(app, source, spec(NEWS, "news"), "stages-json")
    assert (report.events.read, report.events.imported) == (3, 3)
    told = [one for one in hold.history("x") if one.event == "legacy_event"]
    assert [one.data["data"] for one in told] == [{"s": 40}] * 2
    assert len(hold.events(event="legacy_event")) == 3
    again = run(app, source, spec(NEWS, "news"), "stages-json")
    assert (again.events.imported, again.events.already_there, again.changed) == (0, 3, False)
    sound(app)


def test_nothing_is_left_behind_without_a_line(app: App, source: OldSource):
    app.pipeline(NEWS, name="news")
    tracker(source)
    source.sql("ALTER TABLE work_items ADD COLUMN note TEXT", "ALTER TABLE results ADD COLUMN took REAL")
    source.add(
        "work_items", item("x", {"fetch": "pending"}, note="by hand"), item("y", {"fetch": "pending"}, priority=None)
    )
    source.add("results", {**result("x", "ocr", 1), "took": 1.5})
    report = run(app, source, spec(NEWS, "news"), "stages-json")
    assert report.not_taken == {"id": 2, "note": 1, "results.took": 1}
    assert report.missing == ["error", "updated_at"]
    assert report.problems["stage_unknown"].examples[0].key == "x"


def test_stages_may_be_rows_of_a_table_of_their_own_and_costs_events(app: App, hold: Holdfast, source: OldSource):
    app.pipeline(NEWS, name="news")
    source.sql(
        "CREATE TABLE items (url TEXT, title TEXT)",
        "CREATE TABLE item_stages (url TEXT, stage TEXT, status TEXT, ended_at TEXT, output TEXT)",
        "CREATE TABLE log (url TEXT, kind TEXT, at TEXT, data TEXT)",
    )
    source.add("items", {"url": "x", "title": "T"})
    source.add(
        "item_stages",
        {"url": "x", "stage": "fetch", "status": "ok", "ended_at": f"{TIME}1", "output": "plain text"},
        {"url": "x", "stage": "extract", "status": "pending", "ended_at": None, "output": None},
    )
    line = {"url": "x", "kind": "cost", "at": f"{TIME}1", "data": {"usd": "0.30", "stage": "fetch"}}
    source.add("log", line, {**line, "kind": "seen"})
    stages = {"stage": "stage", "state": "status", "ended": "ended_at", "result": "output"}
    costs = {"stage": "data.stage", "amount": "data.usd", "at": "at"}
    mapping = {
        "table": "items",
        "key": "url",
        "data": {"title": "title"},
        "states": {"ok": "done"},
        "stages": {"table": "item_stages", "key": "url", **stages},
        "costs": {"table": "log", "where": {"kind": "cost"}, "key": "url", **costs},
        "events": {"table": "log", "where": {"kind": "seen"}, "key": "url", "event": "kind", "at": "at"},
    }
    report = run(app, source, spec(NEWS, "news"), mapping)
    assert (report.problems, report.missing) == ({}, [])
    assert app.states("x") == {"fetch": "done", "extract": "pending"}
    assert app.data("x") == {"title": "T"}
    assert hold.show("x").stages[0].result == "plain text"
    assert hold.costs(["stage"]).sums[0].costs == Decimal("0.3")
    assert report.events.imported == 1
    sound(app)


# Jobs with their stages and cached results in a metadata column -------------------------------------------------------


def jobs(source: OldSource, *rows: dict[str, Any], kind: str = "TEXT") -> None:
    source.sql(
        f"CREATE TABLE background_jobs (id TEXT PRIMARY KEY, job_type TEXT, status TEXT, input_data {kind}, "
        f"metadata {kind}, retry_count INTEGER, last_error TEXT, created_at TEXT, completed_at TEXT)"
    )
    for number, row in enumerate(rows):
        key = row.pop("key")
        source.add(
            "background_jobs",
            {"id": f"job {number}", "job_type": "process_document", "input_data": {"document_id": key}, **row},
        )


def at(*words: str) -> dict[str, str]:
    return {word: f"{TIME}{number}" for number, word in enumerate(words, 1)}


@pytest.mark.req("D4", "D8")
def test_jobs_go_on_from_the_stage_they_were_at_and_what_is_cached_is_not_paid_again(app: App, source: OldSource):
    app.pipeline(BOOKS, name="documents")
    extracted = {"cached_extract": {"markdown": "# V."}, "cached_extract_cost": 0.4}
    saved = ["extracted", "markdown_saved"]
    jobs(
        source,
        {"key": "new", "status": "pending", "metadata": {}},
        {"key": "before stages", "status": "pending", "metadata": None},
        {"key": "extracting", "status": "processing", "metadata": {"processing_stage": "extracting"}, "retry_count": 2},
        {
            "key": "extracted",
            "status": "pending",
            "metadata": {
                "processing_stage": "extracted",
                "completed_stages": ["extracted"],
                "stage_timestamps": at("extracted"),
                **extracted,
            },
        },
        {
            "key": "chunking",
            "status": "failed",
            "last_error": "killed",
            "retry_count": 3,
            "metadata": {
                "processing_stage": "chunking",
                "completed_stages": saved,
                "stage_timestamps": at(*saved),
                **extracted,
                "cached_save_markdown": {"characters": 4},
            },
        },
        {
            "key": "no cache",
            "status": "processing",
            "metadata": {
                "processing_stage": "saving_markdown",
                "completed_stages": ["extracted"],
                "cached_extract": None,
            },
        },
        {
            "key": "no list",
            "status": "processing",
            "metadata": {"processing_stage": "embedding", "cached_extract": "# W."},
        },
        {"key": "complete", "status": "completed", "metadata": {"processing_stage": "complete"}},
        {
            "key": "failed",
            "status": "failed",
            "last_error": "no pages",
            "metadata": {"processing_stage": "failed", "tries": 3},
        },
        kind="TEXT" if source.address.endswith("old.db") else "JSONB",
    )
    priced = spec(BOOKS, "documents", extract={"estimate": 400_000, "resources": ("model",)})
    report = run(app, source, priced, "job-metadata", names="process_document")
    assert app.states("new") == app.states("before stages") == app.states("extracting") == {"extract": "pending"}
    assert app.states("extracted") == {"extract": "done", "save_markdown": "pending"}
    assert app.states("chunking") == {"extract": "done", "save_markdown": "done", "chunk": "failed"}
    assert (app.row("chunking", "chunk")["error"], app.row("chunking", "chunk")["attempts"]) == ("killed", 3)
    assert app.states("no cache") == {"extract": "pending"}
    assert app.states("no list") == {"extract": "done", "save_markdown": "pending"}
    assert app.states("complete") == dict.fromkeys(BOOKS, "done")
    assert (app.states("failed"), app.row("failed", "extract")["error"]) == ({"extract": "failed"}, "no pages")
    assert {stage: (one.count, one.cost) for stage, one in report.again.items()} == {
        "documents/extract": (1, 400_000),
        "documents/save_markdown": (1, None),
        "documents/chunk": (1, None),
    }
    assert report.problems["entry_unknown"].examples[0].found == "metadata.tries: 3"
    assert "stage_missing" not in report.problems
    assert app.query("SELECT SUM(amount) FROM holdfast_calls") == [(800_000,)]
    leases = {lease.key: lease for lease in app.claim(stage="save_markdown", most=5)}
    assert {key: json.loads(next(iter(lease.results.values()))) for key, lease in leases.items()} == {
        "extracted": {"markdown": "# V."},
        "no list": "# W.",
    }
    assert {lease.key: lease.attempt for lease in app.claim(stage="extract", most=9)}["extracting"] == 3
    sound(app)


# The migration that the tracker's authors wrote for themselves --------------------------------------------------------

#: As it is printed in their plan, after the table that it fills and the view that tells the status of an item.
ITEM_STAGES = """
CREATE TABLE item_stages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL,
    item_key TEXT NOT NULL,
    stage TEXT NOT NULL,
    status TEXT DEFAULT 'pending',
    started_at TEXT,
    ended_at TEXT,
    elapsed_s REAL,
    error TEXT,
    attempts INTEGER DEFAULT 0,
    updated_at TEXT DEFAULT (datetime('now')),
    UNIQUE(job_id, item_key, stage)
);
CREATE INDEX idx_is_job_stage_status ON item_stages(job_id, stage, status);
CREATE VIEW item_status_v AS
SELECT w.id, w.job_id, w.item_key,
  CASE
    WHEN NOT EXISTS (SELECT 1 FROM item_stages s WHERE s.job_id=w.job_id AND s.item_key=w.item_key AND s.status NOT IN ('done','skipped'))
      THEN 'done'
    WHEN EXISTS (SELECT 1 FROM item_stages s WHERE s.job_id=w.job_id AND s.item_key=w.item_key AND s.status = 'in_progress')
      THEN 'in_progress'
    WHEN EXISTS (SELECT 1 FROM item_stages s WHERE s.job_id=w.job_id AND s.item_key=w.item_key AND s.status = 'failed')
      AND NOT EXISTS (SELECT 1 FROM item_stages s WHERE s.job_id=w.job_id AND s.item_key=w.item_key AND s.status IN ('pending','in_progress','retry_later'))
      THEN 'failed'
    ELSE 'pending'
  END as derived_status
FROM work_items w;
"""  # noqa: E501
MIGRATION = '''
for row in conn.execute("SELECT job_id, item_key, stages FROM work_items WHERE stages IS NOT NULL"):
    stages = json.loads(row["stages"])
    for key, val in stages.items():
        if key.endswith(("_started", "_ended", "_elapsed_s", "_error")):
            continue  # timing metadata, handled below
        stage = key
        status = val
        started = stages.get(f"{stage}_started")
        ended = stages.get(f"{stage}_ended")
        elapsed = stages.get(f"{stage}_elapsed_s")
        error = stages.get(f"{stage}_error")
        conn.execute("""INSERT OR IGNORE INTO item_stages
            (job_id, item_key, stage, status, started_at, ended_at, elapsed_s, error)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
            (row["job_id"], row["item_key"], stage, status, started, ended, elapsed, error))
'''


def test_the_trackers_own_migration_of_a_copy_ends_in_the_same_states(app: App, tmp_path: Path, postgres: str):
    app.pipeline(NEWS, name="news")
    ways = [
        {**dict.fromkeys(NEWS, "pending"), **done(*[*NEWS][:n]), **last}
        for n in range(5)
        for last in (
            {},
            *({[*NEWS][n]: status} for status in ("in_progress", "retry_later", "failed", "skipped") if n < 4),
        )
    ]
    for way in ways:
        first = next((place for place, stage in enumerate(NEWS) if way[stage] == "failed"), 4)
        for stage in [*NEWS][first + 1 :]:
            del way[stage]
    with old_source("sqlite", tmp_path, postgres) as source:
        tracker(source)
        for number, way in enumerate(ways):
            key = f"k{number}"
            source.add("work_items", item(key, way))
            source.add("results", *(result(key, stage, {"of": stage}) for stage in NEWS if way.get(stage) == "done"))
        report = run(app, source, spec(NEWS, "news"), "stages-json")
    assert (report.imported, report.again) == (len(ways), {})
    conn = sqlite3.connect(":memory:")
    sqlite3.connect(tmp_path / "old.db").backup(conn)
    conn.row_factory = sqlite3.Row
    conn.executescript(ITEM_STAGES)
    exec(MIGRATION, {"conn": conn, "json": json})
    theirs: dict[str, dict[str, str]] = {}
    for row in conn.execute("SELECT item_key, stage, status FROM item_stages"):
        theirs.setdefault(row["item_key"], {})[row["stage"]] = row["status"]
    assert len(theirs) == len(ways)
    for key, stages in theirs.items():
        passed = {stage for stage, status in stages.items() if status in ("done", "skipped")}
        # Here a stage begins when those before it have passed, and nobody holds what was in progress.
        begun = {stage: status for stage, status in stages.items() if passed.issuperset(NEWS[stage])}
        assert app.states(key) == {stage: "pending" if one == "in_progress" else one for stage, one in begun.items()}
    for row in conn.execute("SELECT item_key, derived_status FROM item_status_v"):
        assert app.status(row["item_key"]) == {"in_progress": "pending"}.get(
            row["derived_status"], row["derived_status"]
        )
    conn.close()
    sound(app)


# At full size ---------------------------------------------------------------------------------------------------------

#: A look at the memory after the first of so many rows, and after the last.
FIRST, ROWS = effort(1_000, 10_000), effort(4_000, 100_000)


def test_memory_does_not_grow_with_the_number_of_rows(app: App, tmp_path: Path, postgres: str):
    app.pipeline(NEWS, name="news")
    kind = "postgres" if app.store.where.startswith("postgresql") else "sqlite"
    stages = json.dumps({**done("fetch"), "extract": "pending"})
    numbers = (
        "generate_series(1, {0}) AS x (n)"
        if kind == "postgres"
        else "(WITH RECURSIVE x (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x WHERE n < {0}) SELECT n FROM x) AS x"
    ).format(ROWS)
    used: dict[int, int] = {}

    def look(report: ImportReport) -> None:
        if report.read in (FIRST, ROWS):
            used[report.read] = tracemalloc.get_traced_memory()[0]

    with old_source(kind, tmp_path, postgres) as source:
        tracker(source)
        source.sql(
            f"INSERT INTO work_items (id, job_id, item_key, stages) SELECT n, 'news', 'k' || n, '{stages}' FROM {numbers}",
            f"INSERT INTO results SELECT 'news', 'k' || n, 'fetch', '1', NULL FROM {numbers}",
            f"INSERT INTO job_cost_log SELECT '{TIME}1', 'news', 'fetch', 'k' || n, 0.01 FROM {numbers}",
        )
        tracemalloc.start()
        try:
            report = run(app, source, spec(NEWS, "news"), "stages-json", on_batch=look, dry_run=True, store=None)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (report.imported, report.costs.imported, report.again) == (ROWS, ROWS, {})
    assert used[ROWS] < used[FIRST] + effort(250_000, 1_000_000)
    assert peak < 30_000_000
