"""What is loaded, and when: not while others wait for a transaction to end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.mother import ROOT


@pytest.mark.req("V8")
def test_nothing_is_imported_or_read_from_files_while_a_transaction_is_open(url: str):
    """SQLAlchemy takes more than a second to load on a slow machine: for so long nobody else could write."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.importing_main", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.splitlines() == ["states ['done'] 4"], ran.stderr
