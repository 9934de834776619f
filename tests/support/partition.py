"""A PostgreSQL server and its clients in two networks of their own, with one line between them that can be cut.

    with Partition() as line, FarCluster(line) as cluster:
        url = cluster.far_url(cluster.database("there"))
        spawn(crew, folder, "w", before=line.here, url=url)
        line.cut()                                # nobody is told: what is sent is not answered
        line.mend()

Both networks are made here, with nothing in them but this line: nothing outside is touched or reached. Sockets in the file
system know no networks: by those the server can be asked all the time. Needs root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.cluster import USER, Cluster, server_user

PREFIX = "hf-net-"
NETWORKS = Path("/run/netns")
SERVER, CLIENT = "10.213.0.1", "10.213.0.2"


class Partition:
    """The two networks."""

    def __init__(self) -> None:
        self.there, self._here = f"{PREFIX}{os.getpid()}-s", f"{PREFIX}{os.getpid()}-c"

    @staticmethod
    def refused() -> str:
        """Why there can be none here; nothing if there can."""
        missing = [program for program in ("ip", "nsenter") if shutil.which(program) is None]
        if missing:
            return f"there is no {missing[0]}"
        if os.geteuid() != 0 or server_user() is None:
            return "only root makes networks"
        name = f"{PREFIX}{os.getpid()}-t"
        done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
        _remove(name)
        return done.stderr.strip()

    def __enter__(self) -> Partition:
        _clear_up_after_killed_runs()
        for name in (self.there, self._here):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("link", "add", "hf0", "netns", self.there, "type", "veth", "peer", "name", "hf1", "netns", self._here)
        for name, end, address in ((self.there, "hf0", SERVER), (self._here, "hf1", CLIENT)):
            _ip("-n", name, "address", "add", f"{address}/30", "dev", end)
            _ip("-n", name, "link", "set", end, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in (self.there, self._here):
            _remove(name)

    @property
    def here(self) -> list[str]:
        """What a command begins with that is to run in the clients' network, in its own place."""
        return ["ip", "netns", "exec", self._here]

    def cut(self) -> None:
        _ip("-n", self.there, "link", "set", "hf0", "down")

    def mend(self) -> None:
        _ip("-n", self.there, "link", "set", "hf0", "up")


class FarCluster(Cluster):
    """A server in the other network."""

    def __init__(self, line: Partition) -> None:
        super().__init__()
        self._line = line

    def __enter__(self) -> FarCluster:
        super().__enter__()
        self.stop()
        data = self.folder / "data"
        with (data / "postgresql.conf").open("a") as conf:
            conf.write("listen_addresses = '*'\n")
        with (data / "pg_hba.conf").open("a") as conf:
            conf.write(f"host all all {CLIENT}/32 trust\n")
        user = server_user()
        assert user is not None
        owner = pwd.getpwnam(user)
        enter = [f"--net={NETWORKS / self._line.there}", f"--setuid={owner.pw_uid}", f"--setgid={owner.pw_gid}"]
        start = [str(self.programs / "pg_ctl"), "start", "-w", "-D", str(data), "-l", str(self.folder / "log")]
        subprocess.run(["nsenter", *enter, *start], cwd=self.folder, check=True, timeout=30, stdout=subprocess.DEVNULL)
        return self

    def far_url(self, database: str) -> str:
        return f"postgresql://{USER}@{SERVER}/{database}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _remove(name: str) -> None:
    subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _clear_up_after_killed_runs() -> None:
    for network in NETWORKS.glob(f"{PREFIX}*"):
        with suppress(ValueError):
            if not psutil.pid_exists(int(network.name.removeprefix(PREFIX).partition("-")[0])):
                _remove(network.name)
