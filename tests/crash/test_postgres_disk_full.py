"""PostgreSQL has no room for tables. Work waits, costs nobody an attempt, and goes on by itself when there is room."""

from __future__ import annotations

import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql

from tests.support.cluster import Cluster, server_user
from tests.support.processes import Crew, crew_on, wait_for
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.unharmed import assert_unharmed, begin, pages

#: A server has room in files that it has already. So much is more than that room.
COUNT = 200


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def disk(cluster: Cluster) -> Iterator[SmallDisk]:
    """Beside the server's folder, whose own disk has room: a server that cannot write its log ends, which is another fault."""
    user = server_user()
    owner = f",uid={pwd.getpwnam(user).pw_uid}" if user else ""
    with small_disk(cluster.folder / "small", f"size=32m,mode=700{owner}") as disk:
        yield disk


@pytest.fixture
def crew(cluster: Cluster, disk: SmallDisk, tmp_path: Path) -> Iterator[Crew]:
    cluster.execute(sql.SQL("CREATE TABLESPACE small LOCATION {}").format(sql.Literal(str(disk.folder))))
    cluster.execute("CREATE DATABASE crowded TABLESPACE small")
    with crew_on(cluster.url("crowded"), tmp_path, "tests.support.books:heavy_books") as crew:
        yield crew


@pytest.mark.fault(38)
@pytest.mark.req("V6", "V7")
def test_a_server_without_room_makes_work_wait_and_room_lets_it_go_on(crew: Crew, disk: SmallDisk, tmp_path: Path):
    for number in range(2):
        crew.start(f"w{number}")
    gate = tmp_path / "gate"
    begin(crew, gate, pages(COUNT, 0.01))
    disk.fill()
    gate.touch()
    wait_for(lambda: all("No space left on device" in worker.said for worker in crew.workers))
    assert not crew.is_done()

    assert disk.mount("remount,size=256m") == ""
    crew.wait_until_done()
    for worker in crew.workers:
        assert worker.said.count("No space left on device") == 1
    assert_unharmed(crew)
