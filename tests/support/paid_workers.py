"""Worker processes by the hundred.

    with Herd(url, folder, "books", server.environment) as herd:
        herd.start()                              # a worker that lives
        herd.start(die_after=120)                 # one that is killed when it reaches its 120th point
        herd.start(die_at="store.insert_outcomes commit.after")
        herd.kill(herd.alive()[0])

A worker begun this way is a process like any other, with connections, threads and children of its own; it only starts
in a hundredth of the time. Who was killed, how and when, is in the ledger.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast import points
from holdfast.store.postgres_address import read_url
from holdfast.worker import Settings
from tests.support import paid_books
from tests.support.mother import Forked
from tests.support.paid_server import WORKER

#: No worker takes this long to die.
STUCK_SECONDS = 30
#: The dead are looked for about twice in that time. A worker on a busy machine may miss it, too, and is as good as dead.
LEASE_SECONDS = 2.0


class Herd:
    """Workers on one store."""

    #: The module whose main() is a worker.
    home = __name__

    def __init__(self, url: str, folder: Path, pipelines: str, environment: Mapping[str, str]) -> None:
        self.ledger = folder / "ledger"
        self._said = folder / "said"
        self._environment = {
            **os.environ,
            paid_books.LEDGER: str(self.ledger),
            paid_books.SCHEMA: "" if url.startswith("sqlite:") else read_url(url)[1],
            **environment,
        }
        self._arguments = [url, pipelines]
        self._started: dict[int, Forked] = {}
        self._lines: dict[str, list[dict[str, Any]]] = {}
        self._read_to = 0

    def __enter__(self) -> Herd:
        self._said.touch()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started.values():
            process.kill()
        for process in self._started.values():
            process.wait(STUCK_SECONDS)

    def start(
        self,
        *,
        die_after: int = 0,
        die_at: str = "",
        concurrency: int = 4,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """A new worker; its process number."""
        order = {"die_after": die_after, "die_at": die_at, "concurrency": concurrency}
        with self._said.open("ab") as said:
            process = Forked(
                self.home,
                [*self._arguments, json.dumps(order)],
                {**self._environment, **(environment or {})},
                stdout=said,
            )
        self._started[process.pid] = process
        return process.pid

    def alive(self) -> list[int]:
        self._started = {pid: process for pid, process in self._started.items() if process.poll() is None}
        return list(self._started)

    def kill(self, pid: int, how: str = "at some time") -> None:
        """Kill a worker, and return when it is gone."""
        paid_books.tell_of(self.ledger, killed=pid, how=how)
        # It may have come to its own end meanwhile.
        process = self._started.pop(pid, None)
        if process is not None:
            process.kill()
            process.wait(STUCK_SECONDS)

    def told(self, what: str) -> list[dict[str, Any]]:
        """Every line of a kind; what was read before is not read again."""
        if self.ledger.exists():
            with self.ledger.open("rb") as file:
                file.seek(self._read_to)
                whole, newline, _ = file.read().rpartition(b"\n")
            for line in whole.splitlines():
                said = json.loads(line)
                self._lines.setdefault(said["what"], []).append(said)
            self._read_to += len(whole) + len(newline)
        return list(self._lines.get(what, ()))

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")


# The process itself ---------------------------------------------------------------------------------------------------


def prepare() -> None:
    import sqlalchemy.dialects.postgresql.psycopg
    import sqlalchemy.dialects.sqlite  # noqa: F401


def main() -> None:
    url, pipelines, said = sys.argv[1:]
    order = json.loads(said)
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    os.environ[WORKER] = str(os.getpid())
    app = paid_books.app_for(url, pipelines)
    worker = app.worker(
        Settings(
            concurrency=order["concurrency"],
            lease_seconds=LEASE_SECONDS,
            grace_seconds=0.5,
            poll_seconds=0.1,
            name=f"w{os.getpid()}",
        )
    )
    if order["die_after"]:
        points.listen(_dies_after(order["die_after"]))
    if order["die_at"]:
        points.listen(_dies_at(*order["die_at"].split()))
    worker.run()


def _dies_after(most: int) -> points.PointListener:
    """Count every point this process passes, in any thread, and die at this one."""
    passed = 0

    def listener(point: str) -> None:
        nonlocal passed
        passed += 1
        if passed == most:
            paid_books.die(point)

    return listener


def _dies_at(first: str, second: str) -> points.PointListener:
    """Die where `second` is reached after `first`."""
    seen = False

    def listener(point: str) -> None:
        nonlocal seen
        if seen and point == second:
            paid_books.die(f"{first} {second}")
        seen = seen or point == first

    return listener
