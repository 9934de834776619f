"""Processes of examples.curation, begun in a hundredth of the time: one that has loaded everything forks them.

    with Processes(folder) as processes:
        one = processes.start(scene.orders("deep scan"))
        one.kill()
        two = processes.start(scene.orders("deep scan"), until_done=True, meet="2 folder")
        two.wait()                                  # its exit code
        two.counters["deep scan"]["claimed"]

A process begun this way is one like any other, with connections, threads and signals of its own. With `meet` it waits,
before its first claim takes anything, until so many processes are at that point.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PR_SET_PDEATHSIG = 1
#: No test waits this long; one that would is stuck, and says so.
STUCK_SECONDS = 60.0


class Process:
    """One service, as its operator sees it."""

    def __init__(self, mother: Processes, pid: int, said: Path) -> None:
        self._mother = mother
        self._said = said
        self.pid = pid
        self._code: int | None = None

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    @property
    def counters(self) -> dict[str, dict[str, Any]]:
        """Of each scheduler; of a process that ended in peace."""
        [line] = [line for line in self.said.splitlines() if line.startswith("{")]
        found: dict[str, dict[str, Any]] = json.loads(line)
        return found

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL, self.said

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.wait()

    def send(self, number: int) -> None:
        if self._code is None:
            os.kill(self.pid, number)  # not reaped yet, so nobody else has this number

    def wait(self) -> int:
        """Its exit code."""
        if self._code is None:
            answer = self._mother.order(wait=self.pid)
            assert answer is not None, f"process {self.pid} has not ended; it said:\n{self.said[-4000:]}"
            self._code = answer
        return self._code


class Processes:
    """Forks processes. What they say is in a file for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Process] = []

    def __enter__(self) -> Processes:
        with (self._folder / "mother").open("wb") as said:
            self._mother = subprocess.Popen(
                [sys.executable, "-m", "tests.examples.curation_processes"], cwd=ROOT, stdin=subprocess.PIPE, text=True,
                stdout=subprocess.PIPE, stderr=said, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        assert self._mother.stdin is not None and self._mother.stdout is not None
        self._mother.stdin.close()  # it ends, and its children with it
        self._mother.wait(STUCK_SECONDS)
        self._mother.stdout.close()

    def start(self, orders: dict[str, Any], **how: Any) -> Process:
        said = self._folder / f"said-{len(self._started)}"
        process = Process(self, int(self.order(start={**orders, **how}, said=str(said)) or 0), said)
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kill those that a test has left."""
        for one in self._started:
            if one._code is None:
                one.send(signal.SIGKILL)
                one.wait()

    def order(self, **order: Any) -> int | None:
        assert self._mother.stdin is not None and self._mother.stdout is not None
        self._mother.stdin.write(json.dumps(order) + "\n")
        self._mother.stdin.flush()
        answer = self._mother.stdout.readline()
        assert answer, f"the mother of all processes is gone:\n{(self._folder / 'mother').read_text()}"
        found: int | None = json.loads(answer)
        return found


# The mother process ---------------------------------------------------------------------------------------------------


def main() -> None:
    _die_with_parent()
    import aiosqlite  # noqa: F401 - loaded once, for all
    import sqlalchemy.dialects.postgresql.psycopg
    import sqlalchemy.dialects.sqlite.aiosqlite  # noqa: F401

    from examples.curation import service  # noqa: F401
    from holdfast.adopt import by_tasks, by_threads  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            pid = os.fork()
            if pid == 0:
                _work(order["start"], order["said"])
            print(pid, flush=True)
        else:
            print(json.dumps(_wait(order["wait"])), flush=True)


def _wait(pid: int) -> int | None:
    give_up_at = time.monotonic() + STUCK_SECONDS
    while time.monotonic() < give_up_at:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def _work(order: dict[str, Any], said: str) -> None:
    code = 1
    try:
        _die_with_parent()
        null, file = os.open(os.devnull, os.O_RDONLY), os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(null, 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
        from examples.curation.service import Service
        from examples.curation.settings import Settings

        if order.get("meet"):
            meet_between_looking_and_taking(*order["meet"])
        service = Service(Settings(**order["settings"]), order["names"])
        counters = asyncio.run(service.run(until_done=order.get("until_done", False)))
        os.write(1, (json.dumps({name: one.as_dict() for name, one in counters.items()}) + "\n").encode())
        code = 0
    except BaseException:
        logging.exception("the service ended")
    finally:
        os._exit(code)


def meet_between_looking_and_taking(folder: str, parties: int) -> None:
    """Hold this process, when it is about to take its first rows, until all parties are about to do so.

    An unguarded loop has looked by then, and knows which rows it will take; a guarded one has not looked yet, because
    looking and taking are one statement.
    """
    from holdfast.adopt import taking

    arrived = Path(folder) / str(os.getpid())

    def meeting(take: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if not arrived.exists():
                arrived.touch()
                give_up_at = time.monotonic() + STUCK_SECONDS
                while len(list(arrived.parent.iterdir())) < parties:
                    assert time.monotonic() < give_up_at, "nobody came"
                    time.sleep(0.002)
            return take(*arguments, **named)

        return call

    taking.claim = meeting(taking.claim)  # type: ignore[assignment]
    taking.take_anyway = meeting(taking.take_anyway)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
