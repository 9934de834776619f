"""The line to the server goes dead, and nobody is told: who is cut off stops in time, and takes up work again by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.partition import FarCluster, Partition
from tests.support.processes import crew_on, wait_for
from tests.support.spawned import spawn
from tests.support.unharmed import pages

LEASE = 1.0


@pytest.fixture
def line() -> Iterator[Partition]:
    refused = Partition.refused()
    if refused:
        pytest.skip(f"a line that can be cut needs networks of its own: {refused}")
    with Partition() as line:
        yield line


@pytest.fixture
def cluster(line: Partition) -> Iterator[FarCluster]:
    with FarCluster(line) as cluster:
        yield cluster


@pytest.mark.fault(27)
@pytest.mark.req("V2", "V3", "V5")
def test_workers_cut_off_from_the_server_do_nothing_more_and_come_back_by_themselves(
    line: Partition, cluster: FarCluster, tmp_path: Path
):
    """Another worker, which still reaches the server, takes over; what those who were cut off bring later is refused."""
    with crew_on(cluster.database("partition"), tmp_path) as crew:
        crew.app.register()
        far = {"before": line.here, "url": cluster.far_url("partition"), "lease": LEASE, "far": True}
        cut_off = [spawn(crew, tmp_path, f"far-{number}", ready=False, **far) for number in range(2)]
        wait_for(lambda: all(crew.is_known(worker) or not worker.is_alive for worker in cut_off))
        gate = crew.gate()
        crew.add([{"key": f"held-{number}", "fetch": f"once:until {gate}"} for number in range(8)])
        wait_for(lambda: len(crew.ledger.starts()) == 8)
        near = crew.start("near", lease=LEASE, far=True)
        crew.add(pages(40, 0.02))
        wait_for(lambda: len(crew.ledger.ends()) > 20)
        line.cut()
        cut_at = time.monotonic()
        crew.wait_until_done()  # all of it, by the one that is left
        wait_for(lambda: time.monotonic() > cut_at + 3 * LEASE)
        fenced_at = time.monotonic()
        gate.touch()
        wait_for(lambda: len([one for one in crew.ledger.ends(stage="fetch") if one.key.startswith("held")]) == 16)
        line.mend()
        wait_for(lambda: all(crew.is_known(worker) or not worker.is_alive for worker in cut_off))
        assert [worker.is_alive for worker in crew.workers] == [True] * 3, crew.all_said()
        wait_for(lambda: len(crew.events("lease_lost")) >= 8)
        before = {worker.pid for worker in cut_off}
        assert [one for one in crew.ledger.starts() if one.pid in before and one.at > fenced_at] == []
        near.terminate()
        near.wait()
        crew.add(pages(10, 0.01, prefix="after"))
        crew.wait_until_done()
        assert {one.pid for one in crew.ledger.starts() if one.key.startswith("after")} <= before
        assert len(crew.events("worker_died")) == 2
        crew.judge()
        assert set(crew.states().values()) == {"done"}
