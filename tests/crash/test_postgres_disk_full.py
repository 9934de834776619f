"""The server's disk is full. Work waits, costs nobody an attempt, and goes on when the server has room again."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.support.cluster import Cluster, server_user
from tests.support.processes import crew_on, wait_for
from tests.support.unharmed import assert_unharmed, begin, pages

LEASE = 1.0
SMALL, LARGE = "96m", "512m"


class CrampedCluster(Cluster):
    """A server whose data has a file system of its own: in memory, and small."""

    def __enter__(self) -> CrampedCluster:
        self.place = self.folder / "data"
        self.place.mkdir()
        user = server_user()
        options = f"size={SMALL},mode=0700"
        if user is not None:
            owner = pwd.getpwnam(user)
            options += f",uid={owner.pw_uid},gid={owner.pw_gid}"
        refused = self.mount(options)
        if refused:
            shutil.rmtree(self.folder)
            pytest.skip(f"a file system of a size of its own needs the right to mount one: {refused}")
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        # Full to the brim it may not even stop.
        self.make_room()
        super().__exit__(*_)
        subprocess.run(["umount", "--lazy", self.place], check=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def mount(self, options: str) -> str:
        """Mount it, or change how it is mounted; a text says why that was refused."""
        program = shutil.which("mount")
        if program is None:
            return "there is no mount program"
        command = [program, "-t", "tmpfs", "-o", options, "tmpfs", self.place]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr.strip() if done.returncode else ""

    def fill(self) -> None:
        """Leave no room at all."""
        with suppress(OSError), (self.place / "filler").open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    def make_room(self) -> None:
        assert self.mount(f"remount,size={LARGE}") == ""

    @property
    def free(self) -> int:
        found = os.statvfs(self.place)
        return found.f_bavail * found.f_frsize

    @property
    def is_up(self) -> bool:
        with suppress(psycopg.OperationalError):
            return bool(self.execute("SELECT 1"))
        return False


@pytest.fixture
def cluster() -> Iterator[CrampedCluster]:
    with CrampedCluster() as cluster:
        yield cluster


@pytest.mark.fault(38)
@pytest.mark.req("V6", "V7")
def test_a_server_without_room_makes_work_wait_and_room_lets_it_go_on(cluster: CrampedCluster, tmp_path: Path):
    """A server that can write to no table refuses; one that cannot write to its log ends, and somebody has to start it."""
    with crew_on(cluster.database("cramped"), tmp_path) as crew:
        for number in range(2):
            crew.start(f"w{number}", lease=LEASE, far=True)
        gate = tmp_path / "gate"
        begin(crew, gate, pages(30, 0.02))
        crew.add({"key": f"bulky-{number}", "fetch": "sleep 0.02", "text": "x" * 2000} for number in range(100))
        cluster.fill()
        gate.touch()
        # Handlers that run may end; then nothing starts any more.
        wait_for(lambda: time.monotonic() - crew.ledger.lines()[-1].at > 2 * LEASE)
        assert cluster.free == 0
        assert cluster.said("No space left on device") > 0
        assert [worker.is_alive for worker in crew.workers] == [True, True], crew.all_said()
        assert all("work waits" in worker.said for worker in crew.workers), crew.all_said()
        cluster.make_room()
        if not cluster.is_up:
            cluster.restart("immediate")
        crew.wait_until_done()
        assert_unharmed(crew)
