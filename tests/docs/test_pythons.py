"""A Python that is named is one that runs, is of that version, and has all that holdfast needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import pythons

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without any Python but that of the tests."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.delenv(pythons.VARIABLE, raising=False)
    pythons._version.cache_clear()
    yield
    pythons._version.cache_clear()


def says(file: Path, text: str, code: int = 0) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\necho {text}\nexit {code}\n")
    file.chmod(0o755)
    return file


def test_the_python_that_asks_is_found_for_its_own_version() -> None:
    found = pythons.find(HERE)
    assert found is not None and found.exists()


def test_a_version_that_is_nowhere_is_missed_with_a_way_to_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert pythons.find("3.99") is None
    with pytest.raises(SystemExit, match=r"no usable Python 3\.99 .*HOLDFAST_PYTHONS=/path/to/python3\.99"):
        pythons.main("3.99")
    assert capsys.readouterr().out == ""


def test_pythons_are_found_on_path_and_in_pyenv_and_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_path = says(tmp_path / "bin/python3.97", "3.97")
    in_pyenv = says(tmp_path / "pyenv/versions/3.98.1/bin/python", "3.98")
    named = says(tmp_path / "elsewhere/python", "3.99")
    monkeypatch.setenv(pythons.VARIABLE, f"{tmp_path / 'nothing'}:{named}")
    assert [pythons.find(version) for version in ("3.97", "3.98", "3.99")] == [on_path, in_pyenv, named]
    pythons.main("3.98")
    assert capsys.readouterr().out == f"{in_pyenv}\n"


def test_a_program_that_only_has_the_name_of_a_python_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pyenv's do for versions that are not chosen, and Pythons without sqlite3."""
    says(tmp_path / "bin/python3.97", "not chosen", code=127)
    says(tmp_path / "bin/python3.98", "3.12")
    assert pythons.find("3.97") is None
    assert pythons.find("3.98") is None
    real = says(tmp_path / "more/python3.97", "3.97")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tmp_path / 'more'}")
    pythons._version.cache_clear()
    assert pythons.find("3.97") == real


def test_the_promised_versions_begin_with_the_oldest() -> None:
    versions = pythons.promised()
    assert versions[0] == "3.11"
    assert HERE in versions or int(HERE.partition(".")[2]) > int(versions[-1].partition(".")[2])
