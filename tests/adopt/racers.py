"""Racers as a test sees them: processes on one table, with what they said and what they counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.support.mother import Forked
from tests.support.processes import STUCK_SECONDS, wait_for


class Racer:
    def __init__(self, url: str, said: Path, *options: str) -> None:
        self._said = said
        with said.open("wb") as file:
            self._process = Forked("tests.adopt.racer", ["--url", url, *options], os.environ, stdout=file)
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
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        return found

    def send(self, number: int) -> None:
        if self.is_alive:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._process.wait(STUCK_SECONDS)

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def stop(self) -> int:
        """Ask it to end, once it listens, and return its exit code."""
        self.send(signal.SIGCONT)
        wait_for(lambda: not self.is_alive or self._listens())
        self.send(signal.SIGTERM)
        return self.wait()

    def _listens(self) -> bool:
        """Whether a handler for SIGTERM is set: until then, the signal is the end of it."""
        status = dict(line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())
        return bool(int(status["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)

    def wait(self, timeout: float = STUCK_SECONDS) -> int:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {self.pid} has not ended; it said:\n{self.said[-4000:]}") from None


class Race:
    """Racers on one database, all ended when the test is."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self.racers: list[Racer] = []

    def start(self, *options: str) -> Racer:
        racer = Racer(self._url, self._folder / f"said-{len(self.racers)}", *options)
        self.racers.append(racer)
        return racer

    def end(self) -> None:
        for racer in self.racers:
            racer.kill()

    def all_said(self) -> str:
        return "".join(f"--- {racer.pid}\n{racer.said[-1500:]}" for racer in self.racers)
