"""Child processes of the benchmark, seen from outside: started, told to begin, listened to, and ended."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.child import Facts, Order

ROOT = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """A measurement did not come about; the text says why, in one line."""


class Child:
    """One process with one order. It leads a session of its own, so that whatever it starts ends with it."""

    def __init__(self, command: Sequence[str], order: Order, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in `end`)
        self._order = order
        self.process = subprocess.Popen(
            [*command, order.to_json()],
            cwd=ROOT,
            env=_environment(),
            text=True,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def hear(self) -> Facts:
        """The next thing it says."""
        try:
            line = self._lines.get(timeout=max(0.0, self._until - time.monotonic()))
        except queue.Empty:
            raise Failed(f"{self._order.operation}: no answer in time{self._last_words()}") from None
        if line is None:
            self.process.wait()
            raise Failed(f"{self._order.operation}: ended with {self.process.returncode}{self._last_words()}")
        said: Facts = json.loads(line)
        return said

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it, and whatever it started, at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def end(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        self._said.close()

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read().splitlines() if line.strip()]
        return f": {lines[-1][:200]}" if lines else ""

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def run(command: Sequence[str], order: Order, seconds: float) -> Facts:
    """What one child found."""
    [facts] = run_together(command, [order], seconds)
    return facts


def run_together(command: Sequence[str], orders: Sequence[Order], seconds: float) -> list[Facts]:
    """What several children found that began at the same moment."""
    children = [Child(command, order, seconds) for order in orders]
    try:
        for child in children:
            said = child.hear()
            if not said.get("ready"):
                raise Failed(f"it said {said} instead of being ready")
        for child in children:
            child.go()
        return [child.hear() for child in children]
    finally:
        for child in children:
            child.end()


def start(command: Sequence[str], order: Order, seconds: float) -> Child:
    """A child that has begun."""
    child = Child(command, order, seconds)
    try:
        child.hear()
    except Failed:
        child.end()
        raise
    child.go()
    return child


def _environment() -> dict[str, Any]:
    # Not to be taken for settings of the environment that a script runs in.
    left_out = ("PYTHONHOME", "VIRTUAL_ENV", "HOLDFAST_URL")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
