"""The command line as a test uses it: in this process for answers, as a real process for exit codes and signals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from tests.support.mother import Piped

#: No command of a test takes this long.
STUCK_SECONDS = 60.0

BOOKS = """
from holdfast import Permanent, Pipeline, Skip

books = Pipeline("books")


@books.stage()
def extract(item, ctx):
    if item.key.startswith("bad"):
        raise Permanent(f"{item.key} has no pages")
    if item.key.startswith("empty"):
        return Skip("nothing in it")
    return {"n": len(item.key)}


@books.stage(after="extract")
async def chunk(item, ctx):
    return {"chunks": ctx.result("extract")}


if __name__ == "__main__":
    raise SystemExit("the main block was run")
"""


@pytest.fixture(autouse=True)
def no_store_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)


@pytest.fixture(autouse=True)
def an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, beside the store and not in it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return folder


@pytest.fixture
def write() -> Callable[[str, str], str]:
    """Write a file in the folder of the test and return its name."""

    def write(name: str, text: str) -> str:
        Path(name).write_text(text)
        return name

    return write


@pytest.fixture
def books(write: Callable[[str, str], str]) -> str:
    return write("books.py", BOOKS)


class Commands:
    """Commands on one store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._started: list[tuple[subprocess.Popen[str] | Piped, threading.Timer]] = []

    def __call__(self, *args: str, code: int = 0, **extra: Any) -> Result:
        """Run a command here and check its exit code."""
        result = CliRunner().invoke(commands, list(args), env={"HOLDFAST_URL": self.url}, prog_name="holdfast", **extra)
        assert result.exit_code == code, (result.exit_code, result.output, result.exception)
        assert "Traceback" not in result.stderr
        return result

    def json(self, *args: str, code: int = 0) -> Any:
        """Run a command here with --json and return what it answered."""
        return json.loads(self(*args, "--json", code=code).stdout)

    def process(
        self, *args: str, env: Mapping[str, str] | None = None, anew: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a process of its own, to its end."""
        process = self.start(*args, env=env, anew=anew)
        said, errors = process.communicate(timeout=STUCK_SECONDS)
        assert process.returncode is not None
        return subprocess.CompletedProcess(args, process.returncode, said, errors)

    def start(
        self, *args: str, env: Mapping[str, str] | None = None, anew: bool = False, **files: Any
    ) -> subprocess.Popen[str] | Piped:
        """Start a command as a process of its own; it is ended with the test.

        With `anew` not as a fork of one that has loaded everything, but by Python itself: where it matters how Python
        begins and ends.
        """
        environment = {**os.environ, "HOLDFAST_URL": self.url, **(env or {})}
        process: subprocess.Popen[str] | Piped
        if anew:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *args],
                env=environment,
                text=True,
                stdin=subprocess.DEVNULL,
                **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **files},
            )
        else:
            process = Piped("holdfast.cli", args, environment, folder=Path.cwd(), **files)
        # Whoever waits for a line of it must not wait for ever.
        stuck = threading.Timer(STUCK_SECONDS, process.kill)
        stuck.daemon = True
        stuck.start()
        self._started.append((process, stuck))
        return process

    def states(self) -> dict[str, dict[str, int]]:
        """How many items are in which state, by stage."""
        status = self.json("status")
        return {stage["name"]: stage["states"] for pipeline in status["pipelines"] for stage in pipeline["stages"]}

    def close(self) -> None:
        for process, stuck in self._started:
            stuck.cancel()
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=20)


@pytest.fixture
def cli(url: str) -> Iterator[Commands]:
    commands = Commands(url)
    yield commands
    commands.close()


@pytest.fixture
def bare(bare_url: str) -> Iterator[Commands]:
    """The same on a store that is not there yet."""
    commands = Commands(bare_url)
    yield commands
    commands.close()


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Commands]:
    """The same on SQLite alone, for what does not depend on the database."""
    commands = Commands(f"sqlite:///{tmp_path / 'store.db'}")
    yield commands
    commands.close()
