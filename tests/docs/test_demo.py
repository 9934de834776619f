"""`make demo`: a pipeline is killed twice, goes on twice, and the ledger its handlers kept agrees with the store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast import Pipeline

ROOT = Path(__file__).resolve().parents[2]


def demo(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return subprocess.run(
        [sys.executable, "-m", "examples.killed", *arguments], cwd=folder, text=True, capture_output=True, timeout=120,
        env={**clean, "PYTHONPATH": str(ROOT), **variables},
    )  # fmt: skip


def test_the_demo_is_killed_twice_and_every_book_is_done(tmp_path: Path, url: str):
    ended = demo(tmp_path, STORE=url)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = ended.stdout
    assert said.count("kill -9 ") == 2
    assert "120 of 120 stages are finished: every book is done" in said
    assert "  NO " not in said
    assert "What to try next" in said


def test_the_demo_begins_with_a_fresh_file_of_its_own(tmp_path: Path):
    (tmp_path / ".demo").mkdir()
    (tmp_path / ".demo" / "books.db").write_text("left over from an earlier demo")
    ended = demo(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / ".demo" / "books.db").read_bytes().startswith(b"SQLite format 3")


def test_the_demo_does_not_touch_a_store_that_was_used(tmp_path: Path):
    books = Pipeline("books", store=f"sqlite:///{tmp_path / 'mine.db'}")
    books.stage(name="read")(lambda item, ctx: None)
    books.add(["emma"])
    ended = demo(tmp_path, str(books.store))
    assert ended.returncode == 1
    assert "name an empty store" in ended.stderr
