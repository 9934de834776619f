"""`make lowest` tries what pyproject.toml promises: the lowest versions of what users install."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import lowest

PROJECT = {
    "dependencies": ["click>=8.1", "PyYAML >= 6", "sqlalchemy>=2.0"],
    "optional-dependencies": {
        "asyncio": ["sqlalchemy[asyncio]>=2.0.10"],
        "html": ["some_parser>=0.3.20"],
        "postgres": ["psycopg[binary]>=3.2.1"],
        "dev": ["pytest>=9", "click>=9"],
    },
}


def test_each_dependency_of_users_is_held_at_its_bound_under_the_one_spelling_of_its_name() -> None:
    assert lowest.bounds(PROJECT) == [
        "click==8.1",
        "psycopg==3.2.1",
        "pyyaml==6",
        "some-parser==0.3.20",
        "sqlalchemy==2.0.10",
    ]


@pytest.mark.parametrize("text", ["click", "click<9", "click>=8,<9", "click==8.1", "click>=8; python_version<'3.12'"])
def test_a_dependency_without_a_bound_that_can_be_tried_is_named(text: str) -> None:
    with pytest.raises(SystemExit, match="has no lower bound that can be tested") as refused:
        lowest.bounds({**PROJECT, "dependencies": [text]})
    assert repr(text) in str(refused.value)


def test_what_tests_need_beside_has_its_tested_version_and_changes_nothing_that_is_installed() -> None:
    installed = ["# Editable install (holdfast==0.1.0)", "PyYAML==6.0", "psycopg-binary==3.2.1"]
    tested = ["# pytest==8", "pytest==9.2.0", "pyyaml==6.0.3", "psycopg_binary==3.3.8"]
    assert lowest.beside(installed, tested) == ["PyYAML==6.0", "psycopg-binary==3.2.1", "pytest==9.2.0"]


def test_the_bounds_of_holdfast_itself_can_be_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lowest.main([])
    bounds = capsys.readouterr().out.splitlines()
    names = {bound.partition("==")[0] for bound in bounds}
    assert {"click", "msgspec", "psycopg", "selectolax", "aiosqlite", "sqlalchemy"} <= names
    file = tmp_path / "installed.txt"
    file.write_text("\n".join(bounds))
    lowest.main(["--beside", str(file)])
    both = capsys.readouterr().out.splitlines()
    assert set(bounds) < set(both), "constraints.txt has the rest"
    assert len({line.partition("==")[0].lower() for line in both}) == len(both), "none has two versions"
