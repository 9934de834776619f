"""A Redis server for the peers that need one, if the program is there."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contenders import REDIS
from benchmarks.processes import family_cpu

PROGRAM = "redis-server"


def is_there() -> bool:
    return shutil.which(PROGRAM) is not None


class RedisServer:
    """One server with an append-only file; a store is the whole of it, emptied."""

    kind = REDIS

    def __init__(self, socket: Path, process: subprocess.Popen[bytes], fsync: str) -> None:
        self._socket = socket
        self._process = process
        version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=False).stdout
        number = next((word.removeprefix("v=") for word in version.split() if word.startswith("v=")), "")
        self.facts: dict[str, Any] = {"version": number, "appendonly": "yes", "appendfsync": fsync}
        self.title = f"Redis {number}, append-only file, appendfsync={fsync}"

    def fresh(self) -> str:
        self._say("FLUSHALL")
        return f"unix://{self._socket}"

    def settle(self) -> None:
        return None

    def drop(self, url: str) -> None:
        self._say("FLUSHALL")

    def cpu_seconds(self) -> float | None:
        return family_cpu(self._process.pid)

    def _say(self, command: str) -> None:
        subprocess.run(["redis-cli", "-s", str(self._socket), command], stdout=subprocess.DEVNULL, check=True)

    def wait_until_up(self) -> None:
        until = time.monotonic() + 20
        while subprocess.run(
            ["redis-cli", "-s", str(self._socket), "PING"], capture_output=True, check=False
        ).returncode:
            if time.monotonic() > until:
                raise SystemExit("the Redis server did not start within 20 seconds")
            time.sleep(0.05)


@contextmanager
def start_redis(place: Path, fsync: str) -> Iterator[RedisServer]:
    folder = place / f"redis-{fsync}"
    folder.mkdir()
    socket = folder / "socket"
    process = subprocess.Popen(
        [
            PROGRAM,
            "--port",
            "0",
            "--unixsocket",
            str(socket),
            "--dir",
            str(folder),
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            fsync,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        server = RedisServer(socket, process, fsync)
        server.wait_until_up()
        yield server
    finally:
        process.kill()
        process.wait()
