"""Handlers that start processes of their own: no connection is shared, nothing finishes twice, nobody waits for them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import LEASE_SECONDS, RECOVERY_SECONDS, Crew, wait_for
from tests.support.slowness import slowness

WAYS = ["fork", "process", "subprocess"]


@pytest.fixture(autouse=True)
def from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and all that they start are told by their environment, which a fork of ours would not show."""
    monkeypatch.setattr(Crew, "forks", False)


@pytest.fixture(autouse=True)
def no_orphans(hire: Callable[[str], Crew], tmp_path: Path) -> Iterator[None]:
    """What the handlers left behind ends with the test."""
    yield
    for pid in carriers(tmp_path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(crew: Crew) -> list[int]:
    return carriers(crew.ledger.path.parent)


def carriers(folder: Path) -> list[int]:
    """Processes that carry this test's ledger in their environment: the workers and all they started."""
    mark = f"HOLDFAST_TEST_LEDGER={folder / 'ledger'}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if mark in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


@pytest.mark.fault(22)
@pytest.mark.parametrize("way", WAYS)
def test_a_worker_stops_in_time_though_a_process_its_handler_started_lives_on(crew: Crew, way: str):
    crew.add([{"key": "forker", "fetch": f"{way} 60"}, *(f"page-{number}" for number in range(20))])
    worker = crew.start()
    crew.wait_until_done()
    worker.terminate()
    assert worker.wait() == 0
    crew.judge()


@pytest.mark.fault(22)
@pytest.mark.parametrize("way", WAYS)
def test_work_of_a_killed_worker_is_taken_over_though_a_process_its_handler_started_holds_its_descriptors(
    crew: Crew, way: str
):
    """The grandchild has inherited the dead worker's sockets and files; no right comes with them."""
    crew.add([{"key": "forker", "fetch": f"once:{way} 60; once:sleep 60"}])
    worker = crew.start("first", far=True)
    wait_for(lambda: len(descendants(crew)) >= 3)  # the worker, its nursery, the child
    wait_for(lambda: crew.ledger.starts("forker", "fetch"))
    crew.start("second")
    worker.kill()
    wait_for(lambda: len(crew.ledger.starts("forker", "fetch")) == 2, RECOVERY_SECONDS + LEASE_SECONDS * slowness())
    crew.wait_until_done()
    crew.judge()


@pytest.mark.fault(22)
@pytest.mark.parametrize("pipeline", ["books", "isolated_books"])
def test_a_handler_may_use_a_pool_of_processes(hire: Callable[[str], Crew], pipeline: str):
    """They are ended with SIGTERM, which must not mean to them what it means to the worker they were forked from."""
    crew = hire(pipeline)
    crew.add({"key": f"page-{number}", "fetch": "pool"} for number in range(3))
    # One at a time: threads that fork at the same moment may get in each other's way, which is Python's own trouble.
    worker = crew.start(concurrency=1)
    crew.wait_until_done()
    assert {crew.stage(f"page-{number}", "fetch").state for number in range(3)} == {"done"}
    worker.terminate()
    assert worker.wait() == 0
    crew.judge()


@pytest.mark.fault(22)
@pytest.mark.parametrize("pipeline", ["books", "async_books"])
def test_a_child_of_fork_that_returns_from_the_handler_does_not_become_a_second_worker(
    hire: Callable[[str], Crew], pipeline: str
):
    """It would run the calls that were queued when it was made, a second time."""
    crew = hire(pipeline)
    pages = [{"key": f"page-{number}", "fetch": "sleep 0.01"} for number in range(60)]
    pages[30]["fetch"] = "split"
    crew.add(pages)
    worker = crew.start(concurrency=2)
    crew.wait_until_done()
    crew.judge()
    worker.terminate()
    assert worker.wait() == 0
    wait_for(lambda: not descendants(crew))
    assert {line.pid for line in crew.ledger.starts()} == {worker.pid}
