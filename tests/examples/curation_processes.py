"""Processes of examples.curation.

    processes = Processes(folder)
    one = processes.start(scene.orders("deep scan"))
    one.kill()
    two = processes.start(scene.orders("deep scan"), until_done=True, meet=[folder, 2])
    two.wait()                                      # its exit code
    two.counters["deep scan"]["claimed"]

With `meet` it waits, before its first claim takes anything, until so many processes are at that point.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.mother import Forked

#: No test waits this long; one that would is stuck, and says so.
STUCK_SECONDS = 60.0


class Process:
    """One service, as its operator sees it."""

    def __init__(self, order: dict[str, Any], said: Path) -> None:
        self._said = said
        with said.open("wb") as file:
            self._process = Forked("tests.examples.curation_processes", [json.dumps(order)], os.environ, stdout=file)
        self.pid = self._process.pid

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    @property
    def counters(self) -> dict[str, dict[str, Any]]:
        """Of each scheduler; of a process that ended in peace."""
        [line] = [line for line in self.said.splitlines() if line.startswith("{")]
        found: dict[str, dict[str, Any]] = json.loads(line)
        return found

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL, self.said

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.wait()

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        try:
            return self._process.wait(STUCK_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {self.pid} has not ended; it said:\n{self.said[-4000:]}") from None


class Processes:
    """What they say is in a file for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Process] = []

    def start(self, orders: dict[str, Any], **how: Any) -> Process:
        process = Process({**orders, **how}, self._folder / f"said-{len(self._started)}")
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kill those that a test has left."""
        for one in self._started:
            one.send(signal.SIGKILL)
            one.wait()


# The process itself ---------------------------------------------------------------------------------------------------


def prepare() -> None:
    import aiosqlite  # noqa: F401
    import sqlalchemy.dialects.postgresql.psycopg
    import sqlalchemy.dialects.sqlite.aiosqlite  # noqa: F401

    from examples.curation import service  # noqa: F401
    from holdfast.adopt.loop import run  # noqa: F401


def main() -> None:
    from examples.curation.service import Service
    from examples.curation.settings import Settings

    order = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    if order.get("meet"):
        meet_between_looking_and_taking(*order["meet"])
    service = Service(Settings(**order["settings"]), order["names"])
    counters = asyncio.run(service.run(until_done=order.get("until_done", False)))
    print(json.dumps({name: one.as_dict() for name, one in counters.items()}))


def meet_between_looking_and_taking(folder: str, parties: int) -> None:
    """Hold this process, when it is about to take its first rows, until all parties are about to do so.

    An unguarded loop has looked by then, and knows which rows it will take; a guarded one has not looked yet, because
    looking and taking are one statement.
    """
    from holdfast.adopt.loop import claim_next as taking

    arrived = Path(folder) / str(os.getpid())

    def meeting(take: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if not arrived.exists():
                arrived.touch()
                give_up_at = time.monotonic() + STUCK_SECONDS
                while len(list(arrived.parent.iterdir())) < parties:
                    assert time.monotonic() < give_up_at, "nobody came"
                    time.sleep(0.002)
            return take(*arguments, **named)

        return call

    taking.claim_rows = meeting(taking.claim_rows)
    taking.claim_unguarded = meeting(taking.claim_unguarded)
