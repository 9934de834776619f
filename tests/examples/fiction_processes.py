"""Real processes of examples.fiction, quickly begun: one that has loaded everything forks the others.

    crew = Crew(nursery, scene, folder)
    weaver = crew.start("weaver", gate=str(folder / "gate"))
    weaver.freeze()
    ...
    assert weaver.wait() == 0 and weaver.counters["woven"] == 1

A process begun this way has connections, threads and signals of its own. None outlives its test.
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
from pathlib import Path
from typing import Any

import pytest

from tests.examples.fiction_scene import Scene
from tests.support.processes import ROOT, wait_for

PR_SET_PDEATHSIG = 1
#: No test waits this long, unless it was made large.
STUCK_SECONDS = 60.0 + int(os.environ.get("FICTION_ITEMS", "0")) / 10


class Nursery:
    """Forks processes; one for the whole run."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.examples.fiction_processes"], cwd=ROOT, stdin=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip

    def ask(self, **question: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(STUCK_SECONDS)
        self._process.stdout.close()


_KEY = pytest.StashKey[Nursery]()


def nursery_of(config: pytest.Config) -> Nursery:
    """The nursery of this run, started when it is first needed and ended with the run."""
    if _KEY not in config.stash:
        config.stash[_KEY] = nursery = Nursery()
        config.add_cleanup(nursery.end)
    return config.stash[_KEY]


class Actor:
    """One process, as its operator sees it."""

    def __init__(self, crew: Crew, role: str, said: Path, order: dict[str, Any]) -> None:
        self.role = role
        self._crew = crew
        self._said = said
        self._code: int | None = None
        self.pid: int = crew.nursery.ask(start=order, said=str(said))

    @property
    def is_alive(self) -> bool:
        if self._code is None:
            self._code = self._crew.nursery.ask(poll=self.pid)
        return self._code is None

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    @property
    def counters(self) -> dict[str, Any]:
        """Of one that ended in peace."""
        lines = [line for line in self.said.splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def send(self, number: int) -> None:
        if self.is_alive:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def terminate(self) -> None:
        wait_for(lambda: not self.is_alive or self.said.startswith("ready"))
        self.send(signal.SIGTERM)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def freeze(self) -> None:
        """Stop it between two transactions: one that is stopped inside keeps the database's locks, another fault."""

        def is_frozen() -> bool:
            self.send(signal.SIGSTOP)
            wait_for(lambda: _state(self.pid) in "TZ", every=0.001)
            if self._crew.scene.is_free():
                return True
            self.thaw()
            return False

        wait_for(is_frozen)

    def wait(self) -> int:
        """Its exit code; a signal's number is negative."""
        give_up_at = time.monotonic() + STUCK_SECONDS
        while self.is_alive:
            assert time.monotonic() < give_up_at, f"{self.role} {self.pid} has not ended; it said:\n{self.said[-4000:]}"
            time.sleep(0.02)
        assert self._code is not None
        return self._code

    def stop(self) -> int:
        self.thaw()
        self.terminate()
        return self.wait()


class Crew:
    """Processes on one database; all of them end with the test."""

    def __init__(self, nursery: Nursery, scene: Scene, folder: Path) -> None:
        self.nursery = nursery
        self.scene = scene
        self.folder = folder
        self.actors: list[Actor] = []

    def start(self, role: str, **order: Any) -> Actor:
        said = self.folder / f"said-{len(self.actors)}"
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in order.items()}
        actor = Actor(self, role, said, {"role": role, "made_with": self.scene.made_with, **plain})
        self.actors.append(actor)
        return actor

    def run(self, role: str, **order: Any) -> Actor:
        """Start one, and wait for its good end."""
        actor = self.start(role, **order)
        assert actor.wait() == 0, actor.said
        return actor

    def together(self, role: str, count: int, **order: Any) -> list[Actor]:
        """Start several that wait for each other, and for their good end."""
        files = [str(self.folder / f"meet-{len(self.actors)}-{n}") for n in range(count)]
        actors = [self.start(role, meet=[files[n], *files], **order) for n in range(count)]
        for actor in actors:
            assert actor.wait() == 0, actor.said
        return actors

    def all_said(self) -> str:
        return "".join(f"--- {actor.role} {actor.pid}\n{actor.said[-2000:]}" for actor in self.actors)

    def end(self) -> None:
        for actor in self.actors:
            actor.kill()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


# The process that forks -----------------------------------------------------------------------------------------------


def main() -> None:
    _die_with_parent()
    import sqlalchemy.dialects.postgresql.psycopg
    import sqlalchemy.dialects.sqlite  # noqa: F401 - loaded once, for all

    import tests.examples.fiction_roles  # noqa: F401
    from tests.examples.fiction_scene import GUARDS, open_database

    for guards in GUARDS:
        open_database("sqlite://", guards, "", 5)
    for line in sys.stdin:
        asked = json.loads(line)
        if "poll" in asked:
            pid, status = os.waitpid(asked["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                _play(asked["start"], asked["said"])
        print(json.dumps(answer), flush=True)


def _play(order: dict[str, Any], said: str) -> None:
    code = 1
    try:
        from tests.examples.fiction_roles import play

        _die_with_parent()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
        found = play(order)
        print(json.dumps(found), flush=True)
        code = 0
    except BaseException:
        logging.exception("a process ended")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
