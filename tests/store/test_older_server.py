"""holdfast on PostgreSQL 15, which Debian ships; all other tests use 18."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.store import open_store
from tests.support.cluster import SERVER, Cluster
from tests.support.processes import ROOT

VERSION = 15
#: New tables and those of the first schema, plans, and workers that are killed: how many tests of each there are at least.
PART = {
    "tests/store/test_migrations.py": 8,
    "tests/store/test_query_plans.py": 19,
    "tests/crash/test_process_death.py::test_workers_killed_at_random_lose_nothing_and_complete_nothing_twice": 1,
}

# In one process: they share the server.
pytestmark = [pytest.mark.req("D8", "J6"), pytest.mark.together("older server")]


@pytest.fixture(scope="module")
def older() -> Iterator[Cluster]:
    with Cluster(version=VERSION) as cluster:
        [(number,)] = cluster.execute("SELECT current_setting('server_version_num')::int / 10000")
        assert number == VERSION
        yield cluster


def test_migrations_plans_and_killed_workers_pass_on_version_15(older: Cluster, tmp_path: Path):
    told = tmp_path / "told.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={told}"]
    done = subprocess.run(
        [*command, "-k", "postgres", *PART],
        cwd=ROOT,
        env={**os.environ, SERVER: older.url()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = list(ElementTree.parse(told).getroot().iter("testcase"))
    assert [case.get("name") for case in cases if case.find("skipped") is not None] == []
    ran = Counter(f"{str(case.get('classname')).replace('.', '/')}.py" for case in cases)
    assert [part for part, least in PART.items() if ran[part.partition("::")[0]] < least] == [], ran


@pytest.mark.parametrize("how", ["read", "write"])
def test_no_short_statement_is_compiled_or_shared_among_processes(older: Cluster, how: str):
    """That takes far longer than to run it: beats come late, and workers that live are taken for dead."""
    assert older.execute("SELECT pg_jit_available()") == [(True,)]
    store = open_store(older.url())
    store.upgrade()
    try:
        table = store.connect().dialect.table("pipelines")
        asked = f"EXPLAIN SELECT SUM(generation) FROM {table}"
        plan = [line for (line,) in getattr(store, how)(lambda tx: tx.store.driver.run_text(asked))]
        assert not [line for line in plan if "JIT" in line or "Gather" in line], plan
    finally:
        store.close()
