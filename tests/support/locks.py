"""Another program that writes to a SQLite file without standing in holdfast's line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
conn.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
conn.execute("COMMIT")
"""


@contextmanager
def foreign_writer(path: Path) -> Iterator[None]:
    """A process of its own holds the write lock, with nothing but the sqlite3 module."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
