"""The programs of the pages about coming from elsewhere run as printed: ours on every page, and theirs where they need nothing
that is not installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.docs.test_guides import blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
#: Their program, and what it prints, where it needs no package of theirs.
THEIRS = {
    "json-loop": ["home: Welcome", "prices: Tea costs 3", "contact: Write to us"],
    "status-column": ["contact: completed: Write to us", "home: completed: Welcome", "prices: completed: Tea costs 3"],
}


def programs(page: Path) -> tuple[str, str]:
    """Theirs and ours."""
    theirs, ours = blocks(page, "python")
    return theirs, ours


@cache
def session(file: str, program: str, commands: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """What commands print after one another in a folder with the program in it. Pages that show the same are run once."""
    shown = []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    with TemporaryDirectory() as folder:
        (Path(folder) / file).write_text(program, encoding="utf-8")
        for command in commands:
            words = command.replace("holdfast ", "python -m holdfast ", 1).split()
            ended = subprocess.run(
                [sys.executable, *words[1:]],
                cwd=folder,
                env={**environment, "PYTHONPATH": str(ROOT)},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=120,
            )
            shown.append((command, ended.stdout.splitlines()))
    return shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_our_program_prints_what_the_page_shows(page: Path) -> None:
    [printed] = blocks(page, "console")
    parts = [part.splitlines() for part in re.split(r"^\$ ", printed, flags=re.MULTILINE)[1:]]
    [file] = re.findall(r"Save it as `(\w+\.py)`", page.read_text(encoding="utf-8"))
    found = session(file, programs(page)[1], tuple(command for command, *_ in parts))
    # Items of one stage end in any order.
    assert [(command, sorted(lines)) for command, lines in found] == [(one, sorted(lines)) for one, *lines in parts]


@pytest.mark.parametrize("name", THEIRS)
def test_their_program_does_the_same_where_it_needs_no_package_of_theirs(name: str) -> None:
    [(_, lines)] = session(
        "theirs.py", programs(ROOT / "docs" / "coming-from" / f"{name}.md")[0], ("python theirs.py",)
    )
    assert sorted(lines) == sorted(THEIRS[name])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_so_if_their_program_is_not_run(page: Path) -> None:
    says_so = "Not run by our tests" in page.read_text(encoding="utf-8")
    assert says_so == (page.stem not in THEIRS)


#: The sites of the projects themselves.
OFFICIAL = re.compile(
    r"https://(docs\.(celeryq|dagster|hatchet|prefect|temporal)\.(dev|io|run)|airflow\.apache\.org|python-rq\.org"
    r"|github\.com/(dbos-inc|hatchet-dev|janbjorge|oban-bg))\b"
)


def test_what_is_said_about_others_links_their_own_pages_with_the_day_they_were_read() -> None:
    compared = (ROOT / "docs" / "compared.md").read_text(encoding="utf-8")
    parts = {part.partition("\n")[0]: part for part in compared.split("\n## ") if "**Its strengths.**" in part}
    parts |= {page.stem: page.read_text(encoding="utf-8") for page in PAGES if page.stem not in THEIRS}
    assert len(parts) == 7 + 4
    for name, text in parts.items():
        _, day, sources = text.lower().rpartition("read on ")
        assert day and re.match(r"\d+ [a-z]+ 20\d\d:", sources), name
        links = re.findall(r"\]\((https?://[^)]*)\)", sources)
        assert links and all(OFFICIAL.match(link) for link in links), name
