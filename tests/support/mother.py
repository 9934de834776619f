"""Processes by fork: one that has loaded everything makes another whenever it is told to, in a twentieth of the time.

    worker = Forked("tests.support.worker_main", arguments, environment, stdout=file)
    worker.wait(timeout=30)                                        # its exit code; a signal's number is negative

    command = Piped("holdfast.cli", ["status"], environment, folder=folder)
    said, errors = command.communicate(timeout=30)

A process begun this way is one like any other, in a session of its own, with arguments, variables, connections, threads
and signals of its own. It ends with the process that tests run in. The module's `main()` is called in it; what the module
has in `prepare()` was done once, for all of them.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from tests.support.forking import become

ROOT = Path(__file__).parent.parent.parent
MOST_BYTES = 1 << 18


class Forked:
    """What `subprocess.Popen` would give of `python -m HOME ARGUMENTS`."""

    def __init__(
        self,
        home: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] = subprocess.STDOUT,
        folder: Path = ROOT,
    ) -> None:
        order = {"home": home, "arguments": list(arguments), "environment": dict(environment), "folder": str(folder)}
        self._code: int | None = None
        ended, end = os.pipe()
        self._ended = os.fdopen(ended, "rb", buffering=0)
        with ExitStack() as stack, open(os.devnull, "r+b") as nothing:
            stack.callback(os.close, end)
            out = nothing if stdout == subprocess.DEVNULL else stdout
            both = [out, out if stderr == subprocess.STDOUT else stderr]
            numbers = [one if isinstance(one, int) else one.fileno() for one in (nothing, *both)]
            self.pid = _mother().fork(order, [*numbers, end])

    @property
    def returncode(self) -> int | None:
        return self._code

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self._code is None and select.select([self._ended], [], [], timeout)[0]:
            said = self._ended.read(100)
            self._ended.close()
            assert said, "the process that forks has ended"
            self._code = int(said)
        return self._code


class Piped(Forked):
    """One whose words are read as they come."""

    def __init__(
        self,
        home: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdout: int | IO[Any] = subprocess.PIPE,
        stderr: int | IO[Any] = subprocess.PIPE,
        folder: Path = ROOT,
    ) -> None:
        with ExitStack() as stack:
            self.stdout, out = _reader(stdout, stack)
            self.stderr, err = _reader(stderr, stack)
            super().__init__(home, arguments, environment, stdout=out, stderr=err, folder=folder)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it still has to say, once it has ended."""
        with ThreadPoolExecutor(2) as pool:
            said = [pool.submit(stream.read) for stream in (self.stdout, self.stderr) if stream is not None]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            texts = iter([one.result() for one in said])
        found = tuple("" if stream is None else next(texts) for stream in (self.stdout, self.stderr))
        self.close()
        return found[0], found[1]

    def close(self) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.stdout = self.stderr = None


def _reader(wanted: int | IO[Any], stack: ExitStack) -> tuple[IO[str] | None, int | IO[Any]]:
    """Where to read, if a pipe is wanted, and where to write."""
    if wanted != subprocess.PIPE:
        return None, wanted
    reads, writes = os.pipe()
    stack.callback(os.close, writes)
    return os.fdopen(reads, "r", encoding="utf-8"), writes


class _Mother:
    """The process that forks, one for each process that tests run in."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # What a test has set for itself is no matter of those that come later.
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PG"))}
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(its.fileno())],
                cwd=ROOT,
                env={**clean, "PYTHONPATH": str(ROOT)},
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def fork(self, order: dict[str, Any], files: list[int]) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(order).encode()], files)
            answer = self._socket.recv(MOST_BYTES)
        assert answer, "the process that forks has ended"
        return int(answer)


_mothers: list[_Mother] = []
_one_mother = threading.Lock()


def _mother() -> _Mother:
    with _one_mother:
        if not _mothers or _mothers[0].owner != os.getpid():
            _mothers[:] = [_Mother()]
        return _mothers[0]


# The process itself ---------------------------------------------------------------------------------------------------


def serve(orders: socket.socket) -> None:
    """Fork for every order that comes; tell how each child ended; end with whoever gives the orders."""
    import holdfast.cli.run
    import holdfast.cli.worker
    import holdfast.store.postgres
    import holdfast.store.sqlite  # noqa: F401 - loaded once, for all

    ends: dict[int, int] = {}
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready, _, _ = select.select([orders.fileno(), woken], [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            _reap(ends)
        if orders.fileno() in ready:
            message, files, _, _ = socket.recv_fds(orders, MOST_BYTES, 4)
            if not message:
                return
            order = json.loads(message)
            _load(order["home"])
            pid = os.fork()
            if not pid:
                not_mine = [*files, woken, wake, orders.fileno(), *ends.values()]
                become(partial(_be, order, not_mine), files[:3])
            ends[pid] = files.pop()
            for file in files:
                os.close(file)
            orders.send(str(pid).encode())


@cache
def _load(home: str) -> Any:
    module = import_module(home)
    if hasattr(module, "prepare"):
        module.prepare()
    # A library that sets up logging when it is loaded does so for this module, not for those that come later.
    logging.getLogger().handlers.clear()
    logging.getLogger().setLevel(logging.WARNING)
    # What is loaded stays: nobody looks through it, and so its memory is shared by all.
    gc.collect()
    gc.freeze()
    return module


def _reap(ends: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        end = ends.pop(pid)
        with suppress(BrokenPipeError):
            os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(end)


def _be(order: dict[str, Any], not_mine: list[int]) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # As in the foreground of a shell, also where the tests run in the background of one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for file in not_mine:
        os.close(file)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    # As `python -m` has it.
    sys.path[0] = order["folder"]
    sys.argv = [order["home"], *order["arguments"]]
    _load(order["home"]).main()


if __name__ == "__main__":
    # As a module of that name, so that there is one of it.
    from tests.support import mother

    mother.serve(socket.socket(fileno=int(sys.argv[1])))
