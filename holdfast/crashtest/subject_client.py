"""The fork server of a crash test, as its client sees it: a process that has loaded the file and forks a worker for each run.

    with SubjectServer(file, url, folder) as server:
        server.prepare({"books": ["v.epub"]})
        if server.run(kill=boundary.order, record=file).killed:
            server.run(record=file)

`holdfast.crashtest.subject_process` is what runs in that process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import errors
from holdfast.app import URL_VARIABLE
from holdfast.blobs import BLOBS_VARIABLE
from holdfast.crashtest.crash_points import CRASH_VARIABLE
from holdfast.errors import HoldfastError, UsageError
from holdfast.runtime import child_messages as wire
from holdfast.runtime.fork_server import ForkServer, ForkServerGone

PROGRAM = "holdfast.crashtest.subject_process"
#: How much of the end of its output is quoted.
TAIL = 2000

ItemsByPipeline = Mapping[str, Sequence[str | Mapping[str, Any]]]


class Ended(NamedTuple):
    """How a process ended that carried out an order."""

    code: int
    #: Whether it was ended because it took too long.
    late: bool = False

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class SubjectServer:
    """Starts the fork server. Where loading the file left something that must not be forked, starts a new process per run."""

    def __init__(
        self,
        file: str,
        url: str,
        folder: Path,
        *,
        variables: Sequence[str] = (),
        blobs: str | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        """`variables` are environment variables that receive the address, in addition to HOLDFAST_URL. `blobs` is where content
        is kept, in place of what the environment says."""
        self._file = file
        self._folder = folder
        self._timeout = timeout_seconds
        self._environment = {
            **os.environ,
            **dict.fromkeys((URL_VARIABLE, *variables), url),
            **({} if blobs is None else {BLOBS_VARIABLE: blobs}),
            # The same modules as here, and none of the crashes that were asked of this process.
            "PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path),
            CRASH_VARIABLE: "",
            # Only processes are killed, never the database server: no commit has to wait for the disk.
            "PGOPTIONS": f"{os.environ.get('PGOPTIONS', '')} -c synchronous_commit=off".strip(),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SubjectServer:
        told = self._start()
        self.pipelines: list[str] = told["pipelines"]
        #: The store that the file itself names.
        self.named: str | None = told["named"]
        #: What loading the file left behind that must not be forked, in words. Then every run loads the file again.
        self.left: str = told["left"]
        #: Where it keeps content; None for the place beside the store.
        self.blobs: str | None = self._environment.get(BLOBS_VARIABLE) or told["blobs"]
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
        ended = self._ask({"do": "prepare", "items": items, "setup": setup, "alone": alone})
        if ended.code != 0 or ended.late:
            raise UsageError(f"the tables and the item could not be made ready: {self._how(ended)}")

    def run(self, *, record: Path | None = None, kill: Mapping[str, Any] | None = None, crash_at: str = "") -> Ended:
        """Run a worker until nothing is left to do, or until it reaches the point where it is killed."""
        ended = self._ask(
            {"do": "run", "record": None if record is None else str(record), "kill": kill, "crash_at": crash_at}
        )
        if ended.late:
            raise UsageError(
                f"the item was not done within {self._timeout:g} s: make it quicker, or give it more time (--timeout)"
                f"{self._quoted()}"
            )
        return ended

    # The parts ----------------------------------------------------------------------------------------------------

    def _ask(self, order: dict[str, Any]) -> Ended:
        if self._process is None:
            self._start()
        answered = late = False
        if self.left:
            # The process carries out the order itself. The next order gets a new process.
            line, end = self._line, self._end
        else:
            try:
                pid, line = self._server.child()
            except ForkServerGone as error:
                raise UsageError(f"the fork server is gone{self._quoted()}") from error
            end = partial(self._server.end, pid)
        try:
            line.settimeout(self._timeout)
            wire.send(line, {**order, "said": str(self._folder / "said")})
            _raise(wire.receive(line))
            answered = True
        except TimeoutError:
            late = True
        except (EOFError, OSError):
            pass  # it ended before it could answer: its exit code says how
        finally:
            line.close()
            code = end()
        return Ended(0 if answered else code, late)

    def _start(self) -> dict[str, Any]:
        self._line, its = socket.socketpair()
        with (self._folder / "said").open("ab") as said, its:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", PROGRAM, self._file, str(its.fileno())],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=(its.fileno(),),
            )
        self._server = ForkServer(self._line, self._process.pid)
        try:
            told: dict[str, Any] = wire.receive(self._line)
            _raise(told)
            return told
        except EOFError:
            self._end()
            raise UsageError(f"{self._file} could not be loaded{self._quoted()}") from None
        except BaseException:
            self._end()
            raise

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        self._line.close()
        try:
            return process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _how(self, ended: Ended) -> str:
        if ended.late:
            return f"it took longer than {self._timeout:g} s"
        return f"the process ended with code {ended.code}{self._quoted()}"

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
