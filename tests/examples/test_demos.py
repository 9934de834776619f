"""`make demo` and its like: something is killed, what was promised is held, and nothing is left running."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.mother import ROOT
from tests.support.schemas import bare_schema
from tests.support.steps import own_tables_beside
from tests.support.typist import Command, Typist

STUCK_SECONDS = 600.0


def shown(target: str, folder: Path, **variables: str) -> str:
    """What a target of the Makefile prints, in the environment of these tests as it is."""
    make, clean = made(target)
    [done] = Typist(folder, {**clean, **variables}).type([Command(make)])
    said = "\n".join(done.printed)
    assert done.code == 0, said
    assert "kill -9 " in said
    assert "  NO " not in said
    return said


def made(target: str) -> tuple[str, dict[str, str]]:
    """The command of a target, and an environment without settings of the demos."""
    ours = ("BOOKS", "CURATION_", "DEMO_", "DOCUMENTS_", "FICTION_", "HOLDFAST_", "MAKE", "NEWSROOM_", "STORE")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    make = f"make --file={ROOT}/Makefile --old-file={sys.prefix}/.ready VENV={sys.prefix} {target}"
    return make, {**clean, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def tables(database: str, request: pytest.FixtureRequest) -> Iterator[str | None]:
    """SQLAlchemy's address of an empty PostgreSQL; None: the file that a demo makes for itself."""
    if database == "sqlite":
        yield None
        return
    with bare_schema(request.getfixturevalue("postgres")) as url:
        yield url


def test_the_demo_of_documents_makes_every_one_ready_though_its_worker_is_killed_twice(
    tmp_path: Path, url: str, books: Path, undisturbed: dict[str, list[tuple[Any, ...]]]
):
    (tmp_path / "mine").mkdir()
    for book in books.iterdir():
        shutil.copy(book, tmp_path / "mine")
    (tmp_path / "mine" / "notes.txt").write_text("no document")
    said = shown("demo", tmp_path, BOOKS="mine", STORE=own_tables_beside(url))
    assert said.count("kill -9 ") == 2
    assert "3  documents ready, 0 failed" in said
    assert f"{len(undisturbed['chunks'])}  chunks" in said
    assert "What to try next" in said


@pytest.mark.req("P17")
def test_the_demo_of_documents_shows_what_it_did_in_the_dashboard(tmp_path: Path, url: str, books: Path):
    (tmp_path / "mine").mkdir()
    shutil.copy(min(books.iterdir(), key=lambda book: book.stat().st_size), tmp_path / "mine")
    make, clean = made("demo")
    environment = {**clean, "BOOKS": "mine", "STORE": own_tables_beside(url), "DEMO_UI": "1"}
    process = subprocess.Popen(
        make.split(), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    # An address that never comes is not waited for.
    stuck = threading.Timer(STUCK_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
    stuck.start()
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line.strip())
            if line.startswith("http://"):
                break
        assert any(" -m holdfast ui examples.documents.jobs" in line for line in said), said
        with httpx.Client(timeout=STUCK_SECONDS) as client:
            page = client.get(said[-1], follow_redirects=True)
            assert page.status_code == 200
            assert "save_markdown" in page.text
            found = client.get(httpx.URL(said[-1]).copy_with(path="/overview.json", query=None)).json()
        stages = [stage for pipeline in found["status"]["pipelines"] for stage in pipeline["stages"]]
        assert [stage["states"] for stage in stages] == [{"done": 1}] * 5
        os.killpg(process.pid, signal.SIGINT)
        process.wait(STUCK_SECONDS)
    finally:
        stuck.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.req("S5", "S6")
def test_the_demo_of_curation_leaves_no_row_behind_though_a_process_is_killed(tmp_path: Path, tables: str | None):
    said = shown("demo-curation", tmp_path, **({"CURATION_DATABASE": tables} if tables else {}))
    assert "Nothing is left queued or processing." in said


@pytest.mark.req("F2", "F3")
def test_the_demo_of_fiction_writes_every_text_once_though_a_weaver_is_killed(tmp_path: Path, tables: str | None):
    said = shown("demo-fiction", tmp_path, **({"FICTION_URL": tables} if tables else {}))
    assert "(5 Complete; " in said
    assert said.count("  yes  ") == 3


@pytest.mark.req("J2", "J21")
def test_the_demo_of_the_newsroom_pays_for_each_article_once_though_its_run_is_killed(
    tmp_path: Path, database: str, url: str
):
    said = shown(
        "demo-newsroom", tmp_path, **({"HOLDFAST_URL": own_tables_beside(url)} if database == "postgres" else {})
    )
    assert "43 articles were analysed, and 43 payments made" in said
    assert said.count("  yes  ") == 2


def test_make_help_names_every_demo(tmp_path: Path):
    [done] = Typist(tmp_path, os.environ).type([Command(f"make --directory={ROOT} --no-print-directory help")])
    targets = {"make demo", *(f"make demo-{name}" for name in ("curation", "fiction", "newsroom"))}
    assert targets <= {" ".join(line.split()[:2]) for line in done.printed}
