"""`holdfast loop module:object`: finds the loops, runs them, and tells what is wrong with what was named."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.adopt import claim
from holdfast.cli.loop import find_loops, loop
from holdfast.errors import DefinitionError
from tests.adopt.tables import Jobs
from tests.support.mother import Forked
from tests.support.processes import STUCK_SECONDS, wait_for

PROGRAM = """
from holdfast.adopt import Loop
from tests.adopt.places import engine_on
from tests.adopt.tables import Jobs

engine = engine_on({url!r})
pages = Loop(engine, Jobs(engine).mapping, lambda job: None, name="pages")
links = Loop(engine, Jobs(engine, name="links").mapping, lambda job: None, name="links")
both = [pages, links]
nothing = 7

def make():
    return both
"""


@pytest.fixture
def program(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "curation_service.py"
    file.write_text(PROGRAM.format(url=url))
    return str(file)


@pytest.mark.req("S1", "S4", "S7")
@pytest.mark.parametrize("name", ["pages", "both", "make", None])
def test_a_loop_a_list_or_a_function_that_returns_them_is_run(program: str, jobs: Jobs, name: str | None):
    jobs.add(3)
    links = Jobs(jobs.engine, name="links")
    links.add(2)
    done = CliRunner().invoke(loop, [f"{program}:{name}" if name else program, "--drain"], catch_exceptions=False)
    assert done.exit_code == 0
    assert jobs.statuses() == {"completed": 3}
    assert links.statuses() == ({"queued": 2} if name == "pages" else {"completed": 2})
    assert "pages: claimed 3, completed 3" in done.output


HANDLERS = """
from holdfast import Permanent, RetryLater

def handle(job):
    if job.row["title"] == "broken":
        raise Permanent("never")
    return RetryLater("2h") if job.row["title"] == "later" else None

pages.handler = links.handler = handle
"""


@pytest.mark.req("S7")
@pytest.mark.parametrize(
    ("titles", "code", "said"),
    [
        (["fine", "later"], 6, "pages: claimed 2, completed 1, released 1, left 1 (1 due later)"),
        (["fine", "broken"], 3, "pages: claimed 2, completed 1, failed 1, errors: 1 × Permanent: never"),
        (["broken", "later"], 6, "left 1 (1 due later), errors: 1 × Permanent: never"),
    ],
)
@pytest.mark.parametrize("name", ["pages", "both"])
def test_a_drain_that_leaves_rows_or_fails_some_says_so_with_its_exit_code(
    program: str, jobs: Jobs, name: str, titles: list[str], code: int, said: str
):
    with Path(program).open("a") as more:
        more.write(HANDLERS)
    jobs.add(0, *({"title": title} for title in titles))
    done = CliRunner().invoke(loop, [f"{program}:{name}", "--drain"], catch_exceptions=False)
    assert done.exit_code == code
    assert said in done.output


@pytest.mark.fault(9)
@pytest.mark.parametrize("name", ["pages", "both"])
@pytest.mark.parametrize(("words", "code"), [(["--drain"], 128 + signal.SIGTERM), ([], 0)])
def test_a_signal_is_the_end_of_a_loop_and_the_interruption_of_a_drain(
    program: str, jobs: Jobs, name: str, words: list[str], code: int, tmp_path: Path
):
    jobs.add(1)
    claim(jobs.engine, jobs.mapping)  # by somebody who is alive: a drain waits
    said = tmp_path / "said"
    with said.open("wb") as file:
        process = Forked("holdfast.cli", ["loop", f"{program}:{name}", *words], os.environ, stdout=file)
    try:
        if words:
            wait_for(lambda: "waiting for rows: 1 held by others" in said.read_text())
        jobs.add(1)
        wait_for(lambda: jobs.row(2).status == "completed")
        process.terminate()
        assert process.wait(STUCK_SECONDS) == code
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("name", "said"), [("nowhere", "has no 'nowhere'"), ("nothing", "neither a Loop nor a list"), ("engine", "neither")]
)
def test_what_is_no_loop_is_told(program: str, name: str, said: str):
    with pytest.raises(DefinitionError, match=said):
        find_loops(f"{program}:{name}")


def test_a_file_that_is_not_there_is_told(tmp_path: Path):
    with pytest.raises(DefinitionError, match="does not exist"):
        find_loops(f"{tmp_path}/missing.py:loop")


def test_if_one_of_several_loops_breaks_the_others_are_stopped(program: str, jobs: Jobs):
    """Nobody goes on half dead."""
    with Path(program).open("a") as more:
        more.write("links.mapping.table.drop(engine)\n")
    done = CliRunner().invoke(loop, [f"{program}:both"])
    assert done.exit_code != 0
    assert "links" in str(done.exception)
