"""The commands of the page about your own tables work as they are printed, on the program of that page; so does the loop of
README.md, on its table."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_guides import ROOT, blocks
from tests.support.waiting import wait_for

PAGE = ROOT / "docs" / "guide" / "own-tables.md"
PATIENCE = 60.0
LINES = [
    line for block in blocks(PAGE, "sh") for line in block.splitlines() if re.match(r"holdfast (loop|check) ", line)
]


def test_the_page_has_such_lines() -> None:
    assert len(LINES) >= 4


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
