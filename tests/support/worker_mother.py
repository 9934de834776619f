"""Workers by fork: a process that has loaded everything makes one whenever it is told to, in a twentieth of the time.

A worker begun this way is a process like any other, in a session of its own, with connections and threads of its own. How
it ended is written into a file beside what it said.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.worker_main import PARENT_VARIABLE, main

ROOT = Path(__file__).parent.parent.parent


class Forked:
    """A worker that the mother has made: what `subprocess.Popen` would give."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], said: Path) -> None:
        self._ended = said.with_name(f"{said.name}.ended")
        self.pid = _mother().fork(arguments, environment, said, self._ended)

    def poll(self) -> int | None:
        try:
            return int(self._ended.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def wait(self, timeout: float) -> int:
        give_up_at = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > give_up_at:
                raise subprocess.TimeoutExpired("a worker", timeout)
            time.sleep(0.002)
        return code


class Mother:
    """The process that forks, one for each process that tests run in."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def fork(self, arguments: list[str], environment: Mapping[str, str], said: Path, ended: Path) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {"arguments": arguments, "environment": dict(environment), "said": str(said), "ended": str(ended)}
        with self._lock:
            print(json.dumps(order), file=self._process.stdin, flush=True)
            return int(self._process.stdout.readline())


_mothers: list[Mother] = []
_one_mother = threading.Lock()


def _mother() -> Mother:
    with _one_mother:
        if not _mothers or _mothers[0].owner != os.getpid():
            _mothers[:] = [Mother()]
        return _mothers[0]


# The process itself ---------------------------------------------------------------------------------------------------


def serve() -> None:
    """Fork for every line that comes; note how each child ended; end with whoever reads the answers."""
    import holdfast.store.postgres
    import holdfast.store.sqlite  # noqa: F401 - loaded once, for all

    ended: dict[int, Path] = {}
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    waiting = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            _reap(ended)
        if 0 in ready:
            came = os.read(0, 1 << 20)
            if not came:
                return
            *lines, waiting = (waiting + came).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    _be(order, [woken, wake])
                ended[pid] = Path(order["ended"])
                print(pid, flush=True)


def _reap(ended: dict[int, Path]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        file = ended.pop(pid)
        new = file.with_suffix(".new")
        new.write_text(str(os.waitstatus_to_exitcode(status)))
        new.rename(file)


def _be(order: dict[str, Any], not_mine: list[int]) -> None:
    """Become the worker."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in not_mine:
            os.close(end)
        said = os.open(order["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.close(said)
        os.close(nothing)
        os.environ.clear()
        os.environ.update({**order["environment"], PARENT_VARIABLE: str(os.getppid())})
        sys.argv[1:] = order["arguments"]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # As a process ends that was started anew: threads that are left are waited for no longer.
        os._exit(code)


if __name__ == "__main__":
    serve()
