"""Real processes of examples.fiction.

    crew = Crew(scene, folder)
    weaver = crew.start("weaver", gate=str(folder / "gate"))
    weaver.freeze()
    ...
    assert weaver.wait() == 0 and weaver.counters["woven"] == 1

None outlives its test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.examples.fiction_scene import Scene
from tests.support.mother import Forked
from tests.support.processes import wait_for

#: No test waits this long, unless it was made large.
STUCK_SECONDS = 60.0 + int(os.environ.get("FICTION_ITEMS", "0")) / 10


class Actor:
    """One process, as its operator sees it."""

    def __init__(self, crew: Crew, role: str, said: Path, order: dict[str, Any]) -> None:
        self.role = role
        self._crew = crew
        self._said = said
        with said.open("wb") as file:
            self._process = Forked("tests.examples.fiction_roles", [json.dumps(order)], os.environ, stdout=file)
        self.pid = self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

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
        self._process.send_signal(number)

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
        try:
            return self._process.wait(STUCK_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.role} {self.pid} has not ended; it said:\n{self.said[-4000:]}") from None

    def stop(self) -> int:
        self.thaw()
        self.terminate()
        return self.wait()


class Crew:
    """Processes on one database; all of them end with the test."""

    def __init__(self, scene: Scene, folder: Path) -> None:
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
