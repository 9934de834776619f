"""The first program of the README does what the README and docs/guide/first-steps.md say, exactly as it is printed there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.answers import StageOfItem
from tests.support.typist import Page, Typist

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

BOOKS = {"moby-dick", "anna-karenina", "walden"}
STAGES = ("extract", "chunk")
#: Where the console session calls a program, and what it is here.
PROGRAMS = {"python": [sys.executable], "holdfast": [sys.executable, "-m", "holdfast"]}


def fenced(language: str) -> str:
    """The first block of the README in this language."""
    block, *_ = re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return str(block)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the program in it, as a reader would save it."""
    (tmp_path / "books.py").write_text(fenced("python"), encoding="utf-8")
    return tmp_path


@pytest.fixture
def store(folder: Path) -> str:
    return f"sqlite:///{folder / 'holdfast.db'}"


def environment() -> dict[str, str]:
    """A reader's: the store is not set, and holdfast can be imported from anywhere."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return {**clean, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def start(folder: Path, *command: str) -> subprocess.Popen[str]:
    program, *rest = command
    return subprocess.Popen(
        [*PROGRAMS[program], *rest],
        cwd=folder,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run(folder: Path, *command: str) -> tuple[int, list[str]]:
    """The exit code and the lines of a command."""
    process = start(folder, *command)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said.splitlines()


def checkpoints(store: str) -> dict[tuple[str, str], StageOfItem]:
    """The finished stages of all books, with what is kept of them."""
    found = {}
    with Holdfast(store, create=False) as app:
        for book in BOOKS:
            for stage in app.show(book).stages:
                if stage.state == "done":
                    found[book, stage.stage] = stage
    return found


def timeless(lines: list[str]) -> list[str]:
    """Without what differs from run to run: lengths of time, and the order in which books are done."""
    return sorted(re.sub(r"(?:< )?[\d.]+ m?s\b", "TIME", line).rstrip() for line in lines)


def test_the_program_takes_every_book_through_both_stages(folder: Path, store: str):
    code, said = run(folder, "python", "books.py")
    assert code == 0, said
    done = checkpoints(store)
    assert done.keys() == {(book, stage) for book in BOOKS for stage in STAGES}
    assert done["moby-dick", "extract"].result == {"text": "Call me Ishmael."}
    assert done["moby-dick", "chunk"].result == {"chunks": ["Call me Ishmael."]}


def test_holdfast_run_does_the_same_with_what_was_added(folder: Path, store: str):
    assert run(folder, "holdfast", "add", "books.py", *sorted(BOOKS))[0] == 0
    code, said = run(folder, "holdfast", "run", "books.py")
    assert code == 0, said
    assert checkpoints(store).keys() == {(book, stage) for book in BOOKS for stage in STAGES}


def test_the_session_on_the_page_is_what_a_reader_sees(folder: Path):
    """Every command of the console block, one after another: what it prints, and its exit code where it is asked for."""
    code = 0
    for part in re.split(r"^\$ ", fenced("console"), flags=re.MULTILINE)[1:]:
        command, *expected = part.splitlines()
        if command == "echo $?":
            assert expected == [str(code)]
            continue
        code, said = run(folder, *command.split())
        assert timeless(said) == timeless(expected), command


def test_the_first_steps_start_it_and_kill_it_as_they_are_printed(folder: Path, store: str):
    page = Page(ROOT / "docs" / "guide" / "first-steps.md")
    commands = [one for one in page.commands if one.text.startswith(("python ", "rm "))]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    typed = Typist(folder, {**environment(), "PATH": path}).type(commands)
    assert [one.code for one in typed] == [0] * 4, typed
    assert checkpoints(store).keys() == {(book, stage) for book in BOOKS for stage in STAGES}


@pytest.mark.parametrize("command", [("python", "books.py"), ("holdfast", "run", "books.py")], ids=" ".join)
def test_killed_half_way_and_run_again_it_goes_on(folder: Path, store: str, command: tuple[str, ...]):
    """What was finished when it was killed is not run again; the rest is."""
    run(folder, "holdfast", "add", "books.py", *sorted(BOOKS))
    victim = start(folder, *command)
    # The shortest book is in its second stage, while the longest takes a second and more for its first.
    assert victim.stdout is not None
    assert victim.stdout.readline().startswith("moby-dick"), victim.communicate()
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    before = checkpoints(store)
    assert ("moby-dick", "extract") in before
    assert ("walden", "extract") not in before

    code, said = run(folder, *command)
    assert code == 0, said
    after = checkpoints(store)
    assert after.keys() == {(book, stage) for book in BOOKS for stage in STAGES}
    assert {place: after[place] for place in before} == before
    assert after["moby-dick", "extract"].attempts == 1
    assert after["walden", "extract"].attempts == 2
