"""Other programs on a SQLite file: one writes without standing in holdfast's line, one reads and does not end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
conn.execute(sys.argv[2])
conn.execute("SELECT * FROM sqlite_master").fetchall()
print("held", flush=True)
sys.stdin.readline()
conn.execute("COMMIT")
"""


@contextmanager
def foreign_writer(path: Path) -> Iterator[int]:
    """A process of its own holds the write lock, with nothing but the sqlite3 module; its number."""
    with _in_transaction(path, "BEGIN IMMEDIATE") as pid:
        yield pid


@contextmanager
def forgotten_reader(path: Path) -> Iterator[int]:
    """A process of its own has read something, and its transaction stays open; its number."""
    with _in_transaction(path, "BEGIN") as pid:
        yield pid


@contextmanager
def _in_transaction(path: Path, begin: str) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path), begin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
