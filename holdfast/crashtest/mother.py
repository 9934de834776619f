"""The processes of a crash test, seen from where it is run. See `holdfast.cli.crashtest_process` for their side.

with Mother(file, url, folder) as mother:
    mother.prepare({"books": ["v.epub"]})
    if mother.run(kill=boundary.order, record=file).killed:
        mother.run(record=file)
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
from holdfast.errors import HoldfastError, UsageError

#: Started by name: it loads files as the command line does.
PROGRAM = "holdfast.cli.crashtest_process"
#: What a process said is shown from here on.
TAIL = 2000

Items = Mapping[str, Sequence[str | Mapping[str, Any]]]


class Ended(NamedTuple):
    """How a run ended."""

    code: int

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Mother:
    """A process that has loaded the file and makes the others; or, where it cannot be forked, one after the other."""

    def __init__(
        self, file: str, url: str, folder: Path, *, variables: Sequence[str] = (), timeout_seconds: float = 60.0
    ) -> None:
        """`variables` are environment variables that get the address too, beside HOLDFAST_URL."""
        self._file = file
        self._folder = folder
        self._timeout = timeout_seconds
        self._environment = {
            **os.environ,
            **dict.fromkeys((URL_VARIABLE, *variables), url),
            # The same modules as here; and nothing of a crash that somebody asked for.
            "PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path),
            "HOLDFAST_CRASH_AT": "",
            # A process that is killed takes nothing with it that the server has: no commit needs to wait for the disk.
            "PGOPTIONS": f"{os.environ.get('PGOPTIONS', '')} -c synchronous_commit=off".strip(),
        }
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Mother:
        told = self._start()
        self.pipelines: list[str] = told["pipelines"]
        #: The store that the file names itself.
        self.named: str | None = told["named"]
        #: Why every run loads the file anew, in words.
        self.left: str = told["left"]
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def said(self) -> str:
        """The last that its processes wrote."""
        path = self._folder / "said"
        return path.read_text(errors="replace")[-TAIL:].strip() if path.exists() else ""

    def prepare(self, items: Items, setup: str | None = None, *, alone: bool = False) -> None:
        """Make the tables, and add the items, by pipeline; `alone` sets aside all that waits in the store already."""
        answer = self._ask({"do": "prepare", "items": items, "setup": setup, "alone": alone})
        if answer["code"] != 0 or answer["late"]:
            raise UsageError(f"the tables and the item could not be made ready: {self._how(answer)}")

    def run(self, *, record: Path | None = None, kill: Mapping[str, Any] | None = None, crash_at: str = "") -> Ended:
        """Let a worker work until nothing is left to do, or until it comes where it shall die."""
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
                raise UsageError(f"the process that makes the others is gone{self._quoted()}")
            answer = json.loads(line)
        _raise(answer)
        return answer

    def _alone(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """The process carries out the order itself; the next order gets another."""
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
    """What went wrong there goes wrong here."""
    if "error" in answer:
        error: HoldfastError = getattr(errors, answer["kind"])(answer["error"])
        # One for each thing that is wrong with a file, as they are told where it is loaded.
        error.lines = answer["error"].splitlines()  # type: ignore[attr-defined]
        raise error
