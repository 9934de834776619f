"""Workers of an earlier version and of today's on one store: what tests of them share. They run `population`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.ledger import Ledger, Line
from tests.support.processes import WorkerProcess
from tests.support.waiting import wait_for

#: A folder with today's code.
TODAY = Path(__file__).resolve().parents[2]

Start = Callable[..., WorkerProcess]


def wait(fact: Callable[[], bool], *workers: WorkerProcess) -> None:
    """Wait for a fact that takes all of these workers."""
    try:
        wait_for(lambda: fact() or not all(worker.is_alive for worker in workers), every=0.05)
        assert all(worker.is_alive for worker in workers)
    except AssertionError as error:
        raise AssertionError("\n---\n".join([str(error), *(worker.said for worker in workers)])) from None


def ends_of(worker: WorkerProcess, ledger: Ledger, since: float = 0.0) -> list[Line]:
    return [line for line in ledger.lines("end") if line.pid == worker.pid and line.at > since]
