"""`pytest --processes N`: what the runner of the tests promises to the tests themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import os
import signal
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def note(name):
    with (HERE / "ran").open("a") as file:
        file.write(f"{name} {os.getpid()}\\n")


@pytest.mark.together("pair")
def test_one_of_a_pair():
    note("pair")


@pytest.mark.parametrize("number", range(6))
def test_that_passes(number, tmp_path):
    note("alone")
    assert not list(tmp_path.iterdir())


def test_that_kills_its_process():
    note("killer")
    os.kill(os.getpid(), signal.SIGKILL)


def test_that_leaves_a_child_behind_and_dies():
    note("killer")
    if os.fork() == 0:
        signal.alarm(20)
        signal.pause()
    os._exit(7)


def test_that_fails():
    print("printed before it failed")
    assert False


@pytest.mark.skip(reason="for a reason")
def test_that_is_skipped():
    pass


@pytest.mark.together("pair")
def test_the_other_of_a_pair():
    note("pair")
"""

pytestmark = pytest.mark.together("side by side")


class Ran(NamedTuple):
    code: int
    #: What each test noted: its name and its process.
    noted: list[str]
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    tmp_path = tmp_path_factory.mktemp("side by side")
    (tmp_path / "test_them.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = together(name): in one process\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.side_by_side", "--processes", "2", "-rs"]
    # Into files: the child that is left behind would keep a pipe open.
    with (tmp_path / "stdout").open("w") as stdout, (tmp_path / "stderr").open("w") as stderr:
        code = subprocess.run(
            [*command, "--rootdir", tmp_path, "-c", tmp_path / "pytest.ini", tmp_path / "test_them.py"],
            cwd=ROOT,
            stdout=stdout,
            stderr=stderr,
            timeout=120,
            check=False,
        ).returncode
    return Ran(
        code,
        (tmp_path / "ran").read_text().splitlines(),
        (tmp_path / "stdout").read_text(),
        (tmp_path / "stderr").read_text(),
    )


def test_every_test_runs_and_a_process_that_dies_fails_its_own_test_alone(ran: Ran):
    assert "3 failed, 8 passed, 1 skipped" in ran.stdout
    assert "the process that ran this test ended with signal SIGKILL" in ran.stdout
    assert "the process that ran this test ended with exit code 7" in ran.stdout
    assert "FAILED so far: test_them.py::test_that_fails" in ran.stderr
    assert ran.code == 1
    assert len([line for line in ran.noted if line.startswith("killer")]) == 2


def test_what_a_test_printed_is_shown_if_it_fails_and_reasons_of_skips_are_told(
    ran: Ran,
):
    assert "printed before it failed" in ran.stdout
    assert "for a reason" in ran.stdout


def test_tests_that_belong_together_run_in_one_process(ran: Ran):
    pair = [line for line in ran.noted if line.startswith("pair")]
    assert len(pair) == 2 and len(set(pair)) == 1
    assert len({line.split()[1] for line in ran.noted}) >= 2
