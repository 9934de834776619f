"""The fork server of a crash test, as its client sees it: a process that has loaded the file and forks a worker for each run.

    with SubjectServer(file, url, folder) as server:
        server.prepare({"books": ["v.epub"]})
        if server.run(kill=boundary.order, record=file).killed:
            server.run(record=file)

`holdfast.crashtest.process` is what runs in that process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import errors
from holdfast.app import URL_VARIABLE
from holdfast.crashtest.crash_points import CRASH_VARIABLE
from holdfast.errors import HoldfastError, UsageError

PROGRAM = "holdfast.crashtest.process"
#: How much of the end of its output is quoted.
TAIL = 2000

ItemsByPipeline = Mapping[str, Sequence[str | Mapping[str, Any]]]


class Ended(NamedTuple):
    """How a run ended."""

    code: int

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class SubjectServer:
    """Starts the fork server. Where loading the file left something that must not be forked, starts a new process per run."""

    def __init__(
        self, file: str, url: str, folder: Path, *, variables: Sequence[str] = (), timeout_seconds: float = 60.0
    ) -> None:
        """`variables` are environment variables that receive the address, in addition to HOLDFAST_URL."""
        self._file = file
        self._folder = folder
        self._timeout = timeout_seconds
        self._environment = {
            **os.environ,
            **dict.fromkeys((URL_VARIABLE, *variables), url),
            # The same modules as here, and none of the crashes that were asked of this process.
            "PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path),
            CRASH_VARIABLE: "",
            # Only processes are killed, never the database server: no commit has to wait for the disk.
            "PGOPTIONS": f"{os.environ.get('PGOPTIONS', '')} -c synchronous_commit=off".strip(),
        }
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> SubjectServer:
        told = self._start()
        self.pipelines: list[str] = told["pipelines"]
        #: The store that the file itself names.
        self.named: str | None = told["named"]
        #: What loading the file left behind that must not be forked, in words. Then every run loads the file again.
        self.left: str = told["left"]
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def said(self) -> str:
        """The end of what its processes have printed."""
        path = self._folder / "said"
        return path.read_text(errors="replace")[-TAIL:].strip() if path.exists() else ""

    def prepare(self, items: ItemsByPipeline, setup: str | None = None, *, alone: bool = False) -> None:
        """Create the tables and add the items, by pipeline. `alone` first cancels what already waits in the store."""
        answer = self._ask({"do": "prepare", "items": items, "setup": setup, "alone": alone})
        if answer["code"] != 0 or answer["late"]:
            raise UsageError(f"the tables and the item could not be made ready: {self._how(answer)}")

    def run(self, *, record: Path | None = None, kill: Mapping[str, Any] | None = None, crash_at: str = "") -> Ended:
        """Run a worker until nothing is left to do, or until it reaches the point where it is killed."""
        answer = self._ask(
            {"do": "run", "record": None if record is None else str(record), "kill": kill, "crash_at": crash_at}
        )
        if answer["late"]:
            raise UsageError(
                f"the item was not done within {self._timeout:g} s: make it quicker, or give it more time (--timeout)"
                f"{self._quoted()}"
            )
        return Ended(answer["code"])

    # The parts ----------------------------------------------------------------------------------------------------

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        whole = {**order, "said": str(self._folder / "said"), "timeout": self._timeout}
        process.stdin.write(json.dumps(whole) + "\n")
        process.stdin.flush()
        if self.left:
            answer = self._alone(process)
        else:
            line = process.stdout.readline()
            if not line:
                raise UsageError(f"the fork server is gone{self._quoted()}")
            answer = json.loads(line)
        _raise(answer)
        return answer

    def _alone(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """The process carries out the order itself. The next order gets a new process."""
        try:
            line, _ = process.communicate(timeout=self._timeout)
            answer = json.loads(line) if line.strip() else {}
            return {"late": False, **answer, "code": process.returncode}
        except subprocess.TimeoutExpired:
            return {"late": True, "code": 0}
        finally:
            self._end()

    def _start(self) -> dict[str, Any]:
        with (self._folder / "said").open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", PROGRAM, self._file],
                env=self._environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        try:
            line = self._process.stdout.readline()
            if not line:
                raise UsageError(f"{self._file} could not be loaded{self._quoted()}")
            told: dict[str, Any] = json.loads(line)
            _raise(told)
            return told
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for line in (process.stdin, process.stdout):
            if line is not None and not line.closed:
                line.close()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _how(self, answer: Mapping[str, Any]) -> str:
        if answer["late"]:
            return f"it took longer than {self._timeout:g} s"
        return f"the process ended with code {answer['code']}{self._quoted()}"

    def _quoted(self) -> str:
        said = self.said
        return f"; it said: {said}" if said else ""


def _raise(answer: Mapping[str, Any]) -> None:
    """Raise here the error that was raised there."""
    if "error" in answer:
        error: HoldfastError = getattr(errors, answer["kind"])(answer["error"])
        # One line for each fault of the file, as its loader reports them.
        error.lines = answer["error"].splitlines()  # type: ignore[attr-defined]
        raise error
