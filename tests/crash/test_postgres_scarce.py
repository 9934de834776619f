"""The server has no connection to spare, or goes away in the middle of a sweep: workers wait, and go on by themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from holdfast.errors import StoreUnavailable
from tests.support.cluster import Cluster
from tests.support.processes import LEASE_SECONDS, RECOVERY_SECONDS, Crew, crew_on, wait_for
from tests.support.slowness import slowness
from tests.support.spawned import spawn
from tests.support.unharmed import assert_unharmed, begin, pages

#: One server for all of them: it takes longer to make one than to share it.
pytestmark = pytest.mark.together("postgres-scarce")

#: So many sessions the server has for those who are not its superuser.
SESSIONS = 20
#: For a machine that has more to do.
SLACK_SECONDS = 1.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        # Three more are kept for the superuser, who looks and terminates.
        cluster.execute(f"ALTER SYSTEM SET max_connections = {SESSIONS + 3}")
        cluster.execute("ALTER SYSTEM SET superuser_reserved_connections = 3")
        cluster.restart()
        yield cluster


@contextmanager
def _hoarder(url: str) -> Iterator[list[psycopg.Connection]]:
    """Somebody who has taken every session there was."""
    with ExitStack() as stack:
        held: list[psycopg.Connection] = []
        stack.callback(lambda: [one.close() for one in held])
        take_all(url, held)
        yield held


def take_all(url: str, held: list[psycopg.Connection]) -> None:
    """Take sessions until none is left."""
    while True:
        try:
            held.append(psycopg.connect(url, autocommit=True, application_name="hoarder"))
        except psycopg.OperationalError as error:
            if "connection slots are reserved" not in str(error):
                raise
            return


@pytest.mark.fault(30)
@pytest.mark.req("V6", "V7")
def test_while_others_hold_every_connection_workers_wait_and_then_go_on(cluster: Cluster, tmp_path: Path):
    """First those that have theirs go on, and one that comes is told. Then all lose theirs, and get none."""
    cluster.execute("CREATE ROLE crew LOGIN")
    cluster.database("scarce")
    cluster.execute("GRANT CREATE ON DATABASE scarce TO crew")
    url = cluster.url("scarce", user="crew")
    with crew_on(url, tmp_path) as crew:
        for number in range(2):
            crew.start(f"w{number}", far=True)
        gate = tmp_path / "gate"
        begin(crew, gate, pages(20, 0.02))
        with _hoarder(url) as held:
            late = spawn(crew, tmp_path, "late", ready=False)
            crew.add(pages(10, 0.02, prefix="meanwhile"))
            wait_for(lambda: len(crew.ledger.ends(stage="save")) >= 30)
            assert late.wait() == StoreUnavailable.exit_code, late.said
            assert "connection slots" in late.said.splitlines()[-1]
            crew.workers.remove(late)
            # A backend that is no longer listed may hold its session a moment longer: what counts is who has them.
            while len(held) < SESSIONS:
                cluster.terminate(*cluster.backends("scarce"))
                take_all(url, held)
            gate.touch()
            wait_for(lambda: len(crew.ledger.ends(stage="fetch")) == 32)
            # Nobody can say that they live, for longer than a lease.
            time.sleep(2 * LEASE_SECONDS)
            assert cluster.backends("scarce") == []
            assert [worker.is_alive for worker in crew.workers] == [True] * 2, crew.all_said()
        crew.add(pages(5, 0, prefix="after"))
        crew.wait_until_done()
        assert_unharmed(crew)


@pytest.mark.fault(24)
@pytest.mark.req("V5", "J2")
@pytest.mark.parametrize(
    "where",
    ["store.remove_workers commit.before 1", "store.free_leases commit.before 2", "store.free_leases commit.after 1"],
)
def test_a_sweep_that_lost_its_server_is_begun_again_when_the_server_is_back(
    cluster: Cluster, tmp_path: Path, where: str
):
    """The server crashes while leases of a dead worker are being set free, and the only worker there is has to go on."""
    count = 250  # three steps
    name = where.replace(".", "_").replace(" ", "_")
    with crew_on(cluster.database(name), tmp_path, "tests.support.books:counted_slowly") as crew:
        crew.add(f"item-{number}" for number in range(count))
        dead = crew.start("dead", concurrency=count, stages="count")
        wait_for(lambda: _at_count(crew) == {"in_progress": count})
        dead.kill()
        sweeper = crew.start("sweeper", freeze_at=where, ready=False)
        wait_for(lambda: sweeper.is_frozen or not sweeper.is_alive)
        assert sweeper.is_alive, sweeper.said
        cluster.restart("immediate")
        back_at = time.monotonic()
        sweeper.thaw()
        wait_for(lambda: len(crew.events("lease_expired")) == count)
        assert time.monotonic() - back_at < RECOVERY_SECONDS + SLACK_SECONDS * slowness()
        crew.wait_until_done()
        assert sweeper.is_alive, sweeper.said
        assert len({event.data["lease"] for event in crew.events("lease_expired")}) == count
        assert len(crew.events("worker_died")) == 1
        # What died in hand runs alone, in processes of its own.
        counted = [key for file in tmp_path.glob("ledger.*") for key in file.read_text().split()]
        assert sorted(counted) == sorted(f"item-{number}" for number in range(count))
        assert crew.app.check() == []


def _at_count(crew: Crew) -> dict[str, int]:
    states: dict[str, int] = crew.app.status().pipelines[0].stages[0].states
    return states
