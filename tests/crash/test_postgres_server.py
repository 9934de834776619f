"""The server crashes, loses backends, freezes; workers wait, go on by themselves, and charge nobody for it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.cluster import Cluster
from tests.support.processes import Crew, crew_on, wait_for
from tests.support.unharmed import assert_unharmed, begin, pages

LEASE = 1.0


#: One server for all of them: it takes longer to make one than to share it.
pytestmark = pytest.mark.together("postgres-server")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def _outcomes(crew: Crew) -> int:
    return sum(stage.states.get("done", 0) for pipeline in crew.app.status().pipelines for stage in pipeline.stages)


@pytest.mark.fault(23)
@pytest.mark.req("V2", "V6", "V7")
def test_workers_go_on_by_themselves_after_the_server_crashed_under_load(cluster: Cluster, tmp_path: Path):
    with crew_on(cluster.database("crash"), tmp_path) as crew:
        for number in range(2):
            crew.start(f"w{number}", lease=LEASE)
        gate = tmp_path / "gate"
        begin(crew, gate, pages(80, 0.02))
        for number in range(2):
            # Also what is under way when the server goes; and there is new work when it is back.
            crew.add(pages(80, 0.02, prefix=f"round-{number}"))
            cluster.restart("immediate")
            committed = _outcomes(crew)
            crew.add(pages(1, 0, prefix=f"after-{number}"))
            wait_for(lambda: _outcomes(crew) > committed)  # noqa: B023
        gate.touch()
        crew.wait_until_done()
        assert_unharmed(crew)


@pytest.mark.fault(25)
@pytest.mark.req("V2", "V6", "V7")
def test_work_goes_on_while_random_backends_are_terminated(cluster: Cluster, tmp_path: Path):
    rng = random.Random(25)
    with crew_on(cluster.database("terminated"), tmp_path) as crew:
        for number in range(2):
            crew.start(f"w{number}", lease=LEASE)
        crew.add(pages(300, 0.02))
        ended = 0
        stop_at = time.monotonic() + 3.0
        with psycopg.connect(cluster.url(), autocommit=True) as conn:
            while ended < 20 or time.monotonic() < stop_at:
                backends = cluster.backends("terminated")
                if backends:
                    [(done,)] = conn.execute("SELECT pg_terminate_backend(%s)", [rng.choice(backends)]).fetchall()
                    ended += done
                time.sleep(0.05)
        crew.wait_until_done()
        assert_unharmed(crew)


@pytest.mark.fault(28)
@pytest.mark.req("V5", "V6")
def test_after_a_frozen_server_thaws_nobody_is_taken_for_dead(cluster: Cluster, tmp_path: Path):
    """The workers are of different machines, so that only silence could tell that one is dead; and all were silent."""
    with crew_on(cluster.database("frozen"), tmp_path) as crew:
        for number in range(3):
            crew.start(f"w{number}", lease=LEASE, far=True)
        gate = tmp_path / "gate"
        begin(crew, gate, pages(150, 0.05))
        with cluster.frozen():
            time.sleep(3 * LEASE)
        gate.touch()
        crew.wait_until_done()
        assert_unharmed(crew)


@pytest.mark.fault(23)
@pytest.mark.req("V6")
def test_a_handler_that_asks_for_a_result_while_the_server_is_away_is_not_charged(cluster: Cluster, tmp_path: Path):
    """The trouble is the database's, however long it lasts; a read gives up here after half a second, not after thirty."""
    gate = tmp_path / "gate"
    with crew_on(cluster.database("asking"), tmp_path, "tests.support.odd_books:bulky") as crew:
        crew.add([{"key": f"page-{number}", "gate": str(gate)} for number in range(3)])
        maker = crew.start("maker", stages="make", drain=True)
        assert maker.wait() == 0
        crew.start("user", stages="use", lease=LEASE, environment={"HOLDFAST_TEST_PATIENCE": "0.5"})
        wait_for(lambda: len(crew.ledger.starts()) == 3)
        cluster.stop("immediate")
        gate.touch()
        wait_for(lambda: len(crew.ledger.lines("ask")) == 3)
        time.sleep(1.0)
        cluster.start()
        crew.wait_until_done()
        assert [crew.stage(f"page-{number}", "use").attempts for number in range(3)] == [1, 1, 1]
        assert crew.events("attempt_failed") == ()
        assert crew.workers[1].is_alive


@pytest.mark.req("J1", "V2")
def test_two_workers_share_the_work_and_no_item_runs_twice(cluster: Cluster, tmp_path: Path):
    with crew_on(cluster.database("shared"), tmp_path) as crew:
        first, second = crew.start("first"), crew.start("second")
        crew.add(pages(100, 0.01))
        crew.wait_until_done()
        assert {line.pid for line in crew.ledger.starts()} == {first.pid, second.pid}
        assert_unharmed(crew)


@pytest.mark.fault(29)
@pytest.mark.req("V6", "V7")
def test_while_the_server_only_reads_work_waits_and_goes_on_by_itself(cluster: Cluster, tmp_path: Path):
    """As after a fail-over to a standby, or when its disk was nearly full."""
    with crew_on(cluster.database("read_only"), tmp_path) as crew:
        for number in range(2):
            crew.start(f"w{number}", lease=LEASE)
        gate = tmp_path / "gate"
        begin(crew, gate, pages(100, 0.02))
        with cluster.setting(default_transaction_read_only="on"):
            # Sessions of before have it, too; what they have begun may still be committed.
            time.sleep(2 * LEASE)
            gate.touch()
            time.sleep(LEASE)
            assert "takes no writes now" in str(crew.app.status().cannot_write)
        crew.add(pages(5, 0, prefix="after"))
        crew.wait_until_done()
        assert_unharmed(crew)


@pytest.mark.fault(33)
@pytest.mark.req("V5", "V6", "V7")
def test_a_table_that_somebody_locks_for_long_costs_time_and_nothing_else(cluster: Cluster, tmp_path: Path):
    with crew_on(cluster.database("locked"), tmp_path) as crew:
        for number in range(2):
            crew.start(f"w{number}", lease=LEASE)
        gate = tmp_path / "gate"
        begin(crew, gate, pages(100, 0.02))
        for table in ("waiting", "leases", "outcomes", "workers"):
            with psycopg.connect(cluster.url("locked")) as conn:
                conn.execute(f"LOCK TABLE holdfast.{table} IN ACCESS EXCLUSIVE MODE")
                gate.touch()
                time.sleep(2 * LEASE)
        crew.add(pages(5, 0, prefix="after"))
        crew.wait_until_done()
        assert_unharmed(crew)
