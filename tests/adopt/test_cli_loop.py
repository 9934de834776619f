"""`holdfast loop module:object`: finds the loops, runs them, and tells what is wrong with what was named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.loop import find_loops, loop
from holdfast.errors import DefinitionError
from tests.adopt.tables import Jobs

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
