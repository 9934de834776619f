"""Workers begun from nothing and ended as the command line ends them: with one line, and the exit code of the error.

    worker = spawn(crew, folder, "w", before=["ip", "netns", "exec", "there"], environment=failing.environment)

`before` is what the command line begins with: a program that runs another in its own place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.mother import ROOT
from tests.support.processes import LEASE_SECONDS, POLL_SECONDS, Crew, WorkerProcess
from tests.support.waiting import wait_for

_MAIN = "from tests.support.exiting_main import main; main()"


def spawn(
    crew: Crew,
    folder: Path,
    name: str,
    *,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    url: str | None = None,
    lease: float = LEASE_SECONDS,
    concurrency: int = 4,
    pipeline: str = "tests.support.books:books",
    far: bool = False,
    drain: bool = False,
    ready: bool = True,
) -> WorkerProcess:
    """Start one; with `ready` the call returns when it is among the living, or has ended."""
    settings = {
        "url": url or crew.url,
        "pipeline": pipeline,
        "name": name,
        "lease": lease,
        "grace": 5.0,
        "poll": POLL_SECONDS,
        "concurrency": concurrency,
        "stages": "",
        "freeze-at": "",
    }
    given = [word for option, value in settings.items() for word in (f"--{option}", str(value))]
    command = [*before, sys.executable, "-c", _MAIN, *given, *["--far"] * far, *["--drain"] * drain]
    whole = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOLDFAST_TEST_LEDGER": str(crew.ledger.path),
        **(environment or {}),
    }
    worker = WorkerProcess.spawned(command, whole, folder / f"said-{name}", crew.url)
    crew.workers.append(worker)
    if ready:
        wait_for(lambda: not worker.is_alive or crew.is_known(worker))
    return worker
