"""Real processes of `holdfast` on the newsroom, from the first word of the command line to its exit code.

workers = the_workers()
pid = workers.start(["worker", "holdfast.yaml", "--poll", "0.2s"], environment, said, folder)
os.kill(pid, signal.SIGKILL)
workers.wait(pid)                                   # its exit code; a signal's number is negative
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.support.mother import Forked

#: No process of a test takes this long.
STUCK_SECONDS = 120


class Workers:
    """Begins processes, and tells how they ended."""

    def __init__(self) -> None:
        self._processes: dict[int, Forked] = {}

    def start(self, words: Sequence[str], environment: Mapping[str, str], said: Path, folder: Path) -> int:
        """Begin `holdfast WORDS` in a folder, with these variables on top; what it says is in a file. Its number."""
        with said.open("ab") as file:
            process = Forked(__name__, words, {**os.environ, **environment}, stdout=file, folder=folder)
        self._processes[process.pid] = process
        return process.pid

    def wait(self, pid: int) -> int:
        """Wait for the end of one; its exit code."""
        return self._processes.pop(pid).wait(STUCK_SECONDS)


@cache
def the_workers() -> Workers:
    """One for all tests of this process."""
    return Workers()


def prepare() -> None:
    import sqlalchemy.dialects.postgresql.psycopg
    import sqlalchemy.dialects.sqlite  # noqa: F401

    from examples.newsroom import guards, stages  # noqa: F401


def main() -> None:
    from holdfast.cli import main as holdfast

    holdfast()
