"""The command line of examples.documents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast import Pipeline
from tests.support.mother import Piped

ROOT = Path(__file__).resolve().parents[2]


def environment(**variables: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "DOCUMENTS_"))}
    return {**clean, "PYTHONPATH": str(ROOT), **variables}


def example(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.documents", *arguments],
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=240,
        env=environment(**variables),
    )


def answer(folder: Path, *arguments: str, **variables: str) -> str:
    """What a command prints, by a fork: how it starts does not matter."""
    said, errors = Piped("examples.documents.__main__", arguments, environment(**variables), folder=folder).communicate(
        240
    )
    assert errors == ""
    return said


def test_status_and_search_answer_from_what_there_is(scene, tmp_path: Path):
    scene.run()
    shown = answer(tmp_path, "status", HOLDFAST_URL=scene.url)
    assert [line.split()[:3] for line in shown.splitlines()] == [
        [book, "complete", "$0.40"] for book in ("bees.epub", "salt.html", "v.epub")
    ]
    found = answer(tmp_path, "search", "honey and wax in the hive", "--most", "2", HOLDFAST_URL=scene.url)
    assert found.count("(bees.epub, chunk ") == 2


def test_the_demo_does_not_touch_a_store_that_was_used(tmp_path: Path):
    mine = Pipeline("documents", store=f"sqlite:///{tmp_path / 'mine.db'}")
    mine.stage(name="read")(lambda item, ctx: None)
    mine.add(["emma"])
    ended = example(tmp_path, "demo", STORE=str(mine.store))
    assert ended.returncode == 1
    assert "name an empty store" in ended.stderr
