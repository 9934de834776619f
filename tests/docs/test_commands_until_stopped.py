"""Commands of the guides that run until they are stopped begin as they are printed, work, and end when they are asked to.

Ports are replaced by free ones: other tests may use those of the pages. So is the reader's server, by that of the tests.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from holdfast import Holdfast
from tests.docs.test_guides import ROOT, blocks
from tests.support.schemas import address, drop
from tests.support.scrapes import free_port
from tests.support.waiting import wait_for

GUIDES = ROOT / "docs" / "guide"
PATIENCE = 60.0
UNTIL_STOPPED = re.compile(r"^(HOLDFAST_URL=postgresql:\S+ )?holdfast (worker|ui|metrics --port) ?")

BOOKS = """
from holdfast import Pipeline

books, documents, connections = Pipeline("books"), Pipeline("documents"), Pipeline("connections")


def count_tokens(item):
    return 1


@books.stage()
def extract(item, ctx): ...


@books.stage(after=extract)
def chunk(item, ctx): ...


@documents.stage(name="extract")
def extract_document(item, ctx): ...


@connections.stage()
def connect(item, ctx): ...
"""


def every_line() -> Iterator[tuple[str, str]]:
    """Each such line, by its page."""
    for page in sorted(GUIDES.glob("*.md")):
        for block in blocks(page, "sh"):
            for line in block.splitlines():
                if UNTIL_STOPPED.match(line):
                    yield page.stem, line


LINES = [pytest.param(line, id=f"{page}: {line.partition('#')[0].strip()}") for page, line in every_line()]


def with_free_ports(words: list[str]) -> tuple[list[str], int | None]:
    """The command, and the port that it opens; one port stays one port."""
    named = {word for before, word in pairwise(words) if before.endswith("-port")}
    if not named and words[0] != "ui":
        return words, None
    port = free_port()
    if not named:
        return [*words, "--port", str(port)], port
    assert len(named) == 1
    return [str(port) if word in named else word for word in words], port


def is_open(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def test_the_pages_have_such_lines() -> None:
    assert len(LINES) >= 7


@pytest.fixture
def url(line: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a store that is not there yet: on a server, if the line names one."""
    if not line.startswith("HOLDFAST_URL="):
        yield f"sqlite:///{tmp_path / 'books.db'}"
        return
    base, schema = request.getfixturevalue("postgres"), f"b{secrets.token_hex(6)}"
    yield address(base, schema)
    with psycopg.connect(base, autocommit=True) as connection:
        drop(connection, schema)


@pytest.mark.parametrize("line", LINES)
def test_the_command_works_until_it_is_stopped(line: str, url: str, tmp_path: Path) -> None:
    (tmp_path / "books.py").write_text(BOOKS)
    job, *_ = blocks(GUIDES / "job-file.md", "yaml")
    (tmp_path / "holdfast.yaml").write_text(job)
    _, _, command = line.partition("holdfast ")
    words, port = with_free_ports(shlex.split(command, comments=True))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment = {**clean, "HOLDFAST_URL": url, "ALERT_URL": "http://127.0.0.1:9/", "PYTHONPATH": str(ROOT)}

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            cwd=tmp_path,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    # Those who only look want a store that is there.
    add = start("add", "books.py", "--pipeline", "books", "walden")
    assert add.wait(PATIENCE) == 0, add.communicate()[0]
    running = start(*words)
    try:
        with Holdfast(url) as app:

            def has_begun() -> bool:
                return len(app.workers()) > 0 if port is None or words[0] == "worker" else is_open(port)

            wait_for(lambda: running.poll() is not None or has_begun(), PATIENCE)
        assert running.poll() is None, running.communicate()[0]
        running.send_signal(signal.SIGTERM)
        said, _ = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    # uvicorn stops gracefully, and then lets the signal end it.
    assert running.returncode in ({0, -signal.SIGTERM} if words[0] == "ui" else {0}), said
    assert "Traceback" not in said
