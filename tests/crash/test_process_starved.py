"""A worker gets hardly any time on its core: what it holds stays its own as long as its heart beats, and all is done once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.effort import effort
from tests.support.processes import Crew, WorkerProcess, wait_for
from tests.support.unharmed import pages

LEASE = 2.0
BUSY = effort(24, 64)
LOW = 19
#: It never rests, and ends when the process that began it is gone.
NEVER_RESTS = f"while kill -0 {os.getpid()}; do n=0; while [ $n -lt 200000 ]; do n=$((n + 1)); done; done"


@contextmanager
def _starved(worker: WorkerProcess) -> Iterator[None]:
    """The worker shares one core with many processes that never rest, all of low priority: others hardly notice them."""
    core = min(os.sched_getaffinity(0))
    for thread in _threads(worker):
        with suppress(ProcessLookupError):
            _bind(int(thread.name), core)
    busy = []
    try:
        for _ in range(BUSY):
            busy.append(subprocess.Popen(["sh", "-c", NEVER_RESTS], start_new_session=True))
            _bind(busy[-1].pid, core)
        yield
    finally:
        for one in busy:
            one.kill()
        for one in busy:
            one.wait()


def _bind(thread: int, core: int) -> None:
    os.sched_setaffinity(thread, {core})
    os.setpriority(os.PRIO_PROCESS, thread, LOW)


def _threads(worker: WorkerProcess) -> list[Path]:
    return list(Path(f"/proc/{worker.pid}/task").iterdir())


def _ran_and_waited(worker: WorkerProcess) -> tuple[int, int]:
    """For how long its threads have run, and have waited for a core, in nanoseconds."""
    found = [(thread / "schedstat").read_text().split() for thread in _threads(worker)]
    return sum(int(ran) for ran, _, _ in found), sum(int(waited) for _, waited, _ in found)


@pytest.mark.fault(17)
@pytest.mark.req("V2", "V3", "V5")
def test_a_worker_that_hardly_gets_to_run_keeps_what_it_holds_and_all_is_done_once(crew: Crew):
    """Another, which lacks nothing, would take over from whoever was silent for a whole lease, and from nobody else."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("only Linux tells for how long a process has waited for its core")
    starved = crew.start("starved", lease=LEASE, far=True)
    crew.start("healthy", lease=LEASE, far=True)
    crew.add([{"key": f"held-{number}", "fetch": f"until {crew.gate()}"} for number in range(8)])
    wait_for(lambda: len(crew.ledger.starts()) == 8)
    assert starved.pid in {line.pid for line in crew.ledger.starts()}
    beats: set[datetime] = set()

    def look() -> int:
        """When its heart beat is there to be seen, for a person as for us."""
        beats.update(one.heartbeat_at for one in crew.app.workers() if one.process == str(starved.pid))
        return len(beats)

    with _starved(starved):
        before = _ran_and_waited(starved)
        crew.add(pages(20, 0.01))
        wait_for(lambda: look() >= 9)
        crew.gate().touch()
        wait_for(lambda: look() and crew.is_done())
        ran, waited = (now - then for now, then in zip(_ran_and_waited(starved), before, strict=True))
    assert waited > 2 * ran, "it had all the time it wanted"
    silences = sum((later - earlier).total_seconds() > 0.9 * LEASE for earlier, later in pairwise(sorted(beats)))
    assert len(crew.events("worker_died")) <= silences, sorted(beats)
    if not silences:
        assert crew.events("lease_expired") == crew.events("lease_lost") == ()
        assert {line.attempt for line in crew.ledger.starts()} == {1}
    assert starved.is_alive, starved.said
    crew.judge()
    assert set(crew.states().values()) == {"done"}
