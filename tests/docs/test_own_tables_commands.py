"""The commands of the page about your own tables work as they are printed, on the program of that page; so does the loop of
README.md, on its table."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.docs.test_guides import ROOT, blocks
from tests.support.waiting import wait_for

PAGE = ROOT / "docs" / "guide" / "own-tables.md"
PATIENCE = 60.0
TYPED = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
LINES = [line for line in TYPED if re.match(r"holdfast (loop|check) ", line)]
MIGRATIONS = [line for line in TYPED if line.startswith("holdfast adopt-sql ")]


def test_the_page_has_such_lines() -> None:
    assert len(LINES) >= 4
    assert sorted(TYPED) == sorted(LINES + MIGRATIONS)


def beginning() -> str:
    """The page's program, without the rows that it adds and its loop."""
    program, rest = blocks(PAGE, "python")[0].split('add("http://example.org/a"')
    assert rest.count("Loop(engine, pages, curate") == 1
    return program


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The page's program, with its loop under the name that the command uses, and two rows."""
    program = beginning()
    program = program.replace("pages = TableMapping(", "mapping = TableMapping(")
    program += "pages = Loop(engine, mapping, curate, batch=10, concurrency=4)\n"
    if "curation.py" in request.node.name:
        (tmp_path / "curation.py").write_text(program)
    else:
        (tmp_path / "curation").mkdir()
        (tmp_path / "curation" / "service.py").write_text(program)
    return tmp_path


def start(folder: Path, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def stop_once_all_are(state: str, running: subprocess.Popen[str], folder: Path) -> None:
    wait_for(lambda: running.poll() is not None or states(folder) == [state, state], PATIENCE)
    assert running.poll() is None, running.communicate()[0]
    running.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("line", LINES, ids=[line.partition("#")[0].strip() for line in LINES])
def test_the_command_does_what_the_page_says(line: str, folder: Path) -> None:
    words = shlex.split(line, comments=True)[1:]
    module = re.split("[:.]py", words[1])[0]

    add = start(
        folder, "-c", f"import {module} as program; program.add('http://example.org/a', 'http://example.org/b')"
    )
    assert add.wait(PATIENCE) == 0, add.communicate()[0]
    running = start(folder, "-m", "holdfast", *words)
    try:
        if words[0] == "loop" and "--drain" not in words:
            stop_once_all_are("done", running, folder)
        said, _ = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert "Traceback" not in said
    if words[0] == "loop":
        assert (running.returncode, states(folder)) == (0, ["done", "done"]), said
        return
    # The table of the page has no column that says since when a row waits, and that is listed.
    assert "map a created column" in said
    assert (running.returncode, states(folder)) == (4, ["new", "new"]), "it starts nothing"
    assert "--json" not in words or not all(point["ok"] for point in json.loads(said)["loops"][0]["points"])


def type_migration(line: str, folder: Path) -> None:
    environment = {**os.environ, "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}
    ended = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], cwd=folder, env=environment, capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b""), line


#: A table that has none of the columns.
TABLE = "CREATE TABLE pages (id INTEGER PRIMARY KEY, url TEXT, state TEXT NOT NULL)"
COLUMNS = {"last_heartbeat", "started_at", "attempts", "next_attempt_at", "version", "holder"}


def test_the_migration_is_written_up_and_down_into_files_for_postgres(postgres: str, tmp_path: Path) -> None:
    lines = [line for line in MIGRATIONS if "--url" not in line]
    for line in lines:
        type_migration(line, tmp_path)
    assert [line.rpartition("> ")[2] for line in lines] == ["up.sql", "down.sql"]
    here = "SELECT attname FROM pg_attribute WHERE attrelid = 'pages'::regclass AND attnum > 0 AND NOT attisdropped"
    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute("CREATE SCHEMA migrated")
        try:
            database.execute("SET search_path = migrated")
            database.execute(TABLE)
            database.execute((tmp_path / "up.sql").read_bytes())
            assert {name for (name,) in database.execute(here)} == {"id", "url", "state", *COLUMNS}
            assert database.execute("SELECT count(*) FROM pages WHERE is_job_stale(pages)").fetchone() == (0,)
            database.execute((tmp_path / "down.sql").read_bytes())
            assert {name for (name,) in database.execute(here)} == {"id", "url", "state"}
        finally:
            database.execute("DROP SCHEMA migrated CASCADE")


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the command sqlite3 is not installed")
def test_the_migration_goes_straight_into_a_file(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "pages.db") as database:
        database.execute(TABLE)
    [line] = [line for line in MIGRATIONS if "--url" in line]
    type_migration(line, tmp_path)
    with sqlite3.connect(tmp_path / "pages.db") as database:
        assert {row[1] for row in database.execute("PRAGMA table_info(pages)")} == {"id", "url", "state", *COLUMNS}


def test_the_loop_of_the_readme_completes_what_is_queued_until_it_is_stopped(tmp_path: Path) -> None:
    [loop] = [block for block in blocks(ROOT / "README.md", "python") if "holdfast.adopt" in block]
    # Its mapping names no values of the status, so that they are the usual ones.
    queued = (
        "with Session(engine) as rows, rows.begin():\n    rows.add_all([Page(url=url, state='queued') for url in 'ab'])"
    )
    add = start(tmp_path, "-c", beginning() + queued)
    assert add.wait(PATIENCE) == 0, add.communicate()[0]
    (tmp_path / "curation.py").write_text(beginning() + loop)
    running = start(tmp_path, "curation.py")
    try:
        stop_once_all_are("completed", running, tmp_path)
        said, _ = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert running.returncode == 0, said


def states(folder: Path) -> list[str]:
    with sqlite3.connect(folder / "pages.db") as rows:
        return [state for (state,) in rows.execute("SELECT state FROM pages ORDER BY id")]
