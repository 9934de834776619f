"""The program of the page on large results does what the page says, exactly as it is printed there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_guides import ROOT, blocks


@pytest.mark.req("P13")
def test_the_program_on_the_page_keeps_and_saves_its_pages(tmp_path: Path) -> None:
    [program] = blocks(ROOT / "docs/guide/large-results.md", "python")
    (tmp_path / "books.py").write_text(program, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "books.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert (ran.stdout, ran.returncode) == ("walden.pdf application/pdf 600009\n", 0), ran.stderr
    assert (tmp_path / "walden.pdf").read_bytes() == b"%PDF-1.7 " + b"walden" * 100_000
    assert len([one for one in (tmp_path / "books.db.blobs").rglob("*") if one.stat().st_size > 100_000]) == 2
