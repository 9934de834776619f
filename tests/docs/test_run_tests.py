"""`make tests` tells flaky tests from broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import run_tests

PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"
#: Fails the first time.
FLAKY = """
import pathlib
def test_is_flaky():
    again = pathlib.Path("again")
    was_there = again.exists()
    again.touch()
    assert was_there
"""
BREAKS_DOWN = "import nothing_of_this_name\n"
#: The process ends the second time, as one that hangs is ended.
ENDS = FLAKY.replace("assert was_there", "import os; assert was_there and os._exit(1)")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With tests of its own."""
    monkeypatch.chdir(tmp_path)
    # Without plugins it starts sooner.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return tmp_path


@pytest.mark.parametrize(
    ("tests", "code", "told"),
    [
        (PASSES, 0, ["flaky: 0"]),
        (PASSES + FLAKY, 0, ["flaky: 1", "  test_one.py::test_is_flaky"]),
        (FAILS + FLAKY, 1, ["flaky: 1", "  test_one.py::test_is_flaky"]),
        (ENDS, 1, ["flaky: 0"]),
        (BREAKS_DOWN, 2, None),
    ],
    ids=["passes", "flaky", "fails and flaky", "hangs alone", "breaks down"],
)
def test_what_failed_beside_others_and_passes_alone_is_counted_and_named(
    folder: Path, capfd: pytest.CaptureFixture[str], tests: str, code: int, told: list[str] | None
) -> None:
    (folder / "test_one.py").write_text(tests)
    assert run_tests.main(["-q"]) == code
    said = capfd.readouterr().out.splitlines()
    if told is None:
        assert not [line for line in said if line.startswith(("flaky", "Once more"))]
    else:
        assert said[-len(told) :] == told


def test_what_failed_in_an_earlier_run_and_is_no_part_of_this_one_is_not_counted(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_one.py").write_text(FAILS)
    (folder / "test_two.py").write_text(FLAKY)
    assert run_tests.main(["-q", "test_one.py"]) == 1
    (folder / "test_one.py").write_text(FAILS.replace("False", "True"))
    assert run_tests.main(["-q", "test_two.py"]) == 0
    assert capfd.readouterr().out.splitlines()[-2:] == ["flaky: 1", "  test_two.py::test_is_flaky"]
