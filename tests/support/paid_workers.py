"""Worker processes by the hundred: a process that has loaded everything, and forks one whenever it is told to.

    with Herd(url, folder, "books", server.environment) as herd:
        herd.start()                              # a worker that lives
        herd.start(die_after=120)                 # one that is killed when it reaches its 120th point
        herd.start(die_at="store.insert_outcomes commit.after")
        herd.kill(herd.alive()[0])

A worker begun this way is a process like any other, with connections, threads and children of its own; it only starts
in a hundredth of the time. Who was killed, how and when, is in the ledger.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast import points
from holdfast.store.postgres_address import read_url
from holdfast.worker import Settings
from tests.support import paid_books
from tests.support.paid_server import WORKER

ROOT = Path(__file__).parent.parent.parent
PR_SET_PDEATHSIG = 1
#: The dead are looked for about twice in that time. A worker on a busy machine may miss it, too, and is as good as dead.
LEASE_SECONDS = 2.0


class Herd:
    """Workers on one store."""

    def __init__(self, url: str, folder: Path, pipelines: str, environment: Mapping[str, str]) -> None:
        self.ledger = folder / "ledger"
        self._said = folder / "said"
        self._environment = {
            **os.environ, "PYTHONPATH": str(ROOT), paid_books.LEDGER: str(self.ledger),
            paid_books.SCHEMA: "" if url.startswith("sqlite:") else read_url(url)[1], **environment,
        }  # fmt: skip
        self._command = [sys.executable, "-m", "tests.support.paid_workers", url, pipelines]
        self._started: list[int] = []
        self._lines: dict[str, list[dict[str, Any]]] = {}
        self._read_to = 0

    def __enter__(self) -> Herd:
        with self._said.open("wb") as said:
            self._mother = subprocess.Popen(
                self._command, env=self._environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=said, text=True, start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._mother.stdin is not None and self._mother.stdout is not None
        self._mother.stdin.close()
        self._mother.wait(30)
        self._mother.stdout.close()

    def start(
        self,
        *,
        die_after: int = 0,
        die_at: str = "",
        concurrency: int = 4,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """A new worker; its process number."""
        assert self._mother.stdin is not None and self._mother.stdout is not None
        order = {
            "die_after": die_after, "die_at": die_at, "concurrency": concurrency, "environment": dict(environment or {}),
        }  # fmt: skip
        self._mother.stdin.write(json.dumps(order) + "\n")
        self._mother.stdin.flush()
        answer = self._mother.stdout.readline()
        assert answer, f"no worker could be started:\n{self.said}"
        self._started.append(int(answer))
        return self._started[-1]

    def alive(self) -> list[int]:
        self._started = [pid for pid in self._started if is_alive(pid)]
        return list(self._started)

    def kill(self, pid: int, how: str = "at some time") -> None:
        """Kill a worker, and return when it is gone."""
        paid_books.tell_of(self.ledger, killed=pid, how=how)
        # It may have come to its own end meanwhile.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        while is_alive(pid):
            time.sleep(0.001)

    def told(self, what: str) -> list[dict[str, Any]]:
        """Every line of a kind; what was read before is not read again."""
        if self.ledger.exists():
            with self.ledger.open("rb") as file:
                file.seek(self._read_to)
                whole, newline, _ = file.read().rpartition(b"\n")
            for line in whole.splitlines():
                said = json.loads(line)
                self._lines.setdefault(said["what"], []).append(said)
            self._read_to += len(whole) + len(newline)
        return list(self._lines.get(what, ()))

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# The mother process ---------------------------------------------------------------------------------------------------


def main() -> None:
    url, pipelines = sys.argv[1:]
    _die_with_parent()
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    import sqlalchemy.dialects.postgresql.psycopg
    import sqlalchemy.dialects.sqlite  # noqa: F401 - loaded once, for all

    # Those who die are forgotten at once: nobody asks how they ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _work(url, pipelines, order)
        print(pid, flush=True)


def _work(url: str, pipelines: str, order: dict[str, Any]) -> None:
    code = 1
    try:
        _die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.environ.update(order["environment"])
        os.environ[WORKER] = str(os.getpid())
        app = paid_books.app_for(url, pipelines)
        worker = app.worker(
            Settings(
                concurrency=order["concurrency"], lease_seconds=LEASE_SECONDS, grace_seconds=0.5, poll_seconds=0.1,
                name=f"w{os.getpid()}",
            )
        )  # fmt: skip
        if order["die_after"]:
            points.listen(_dies_after(order["die_after"]))
        if order["die_at"]:
            points.listen(_dies_at(*order["die_at"].split()))
        worker.run()
        code = 0
    except BaseException:
        logging.exception("a worker ended")
    finally:
        os._exit(code)


def _dies_after(most: int) -> points.Listener:
    """Count every point this process passes, in any thread, and die at this one."""
    passed = 0

    def listener(point: str) -> None:
        nonlocal passed
        passed += 1
        if passed == most:
            paid_books.die(point)

    return listener


def _dies_at(first: str, second: str) -> points.Listener:
    """Die where `second` is reached after `first`."""
    seen = False

    def listener(point: str) -> None:
        nonlocal seen
        if seen and point == second:
            paid_books.die(f"{first} {second}")
        seen = seen or point == first

    return listener


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
