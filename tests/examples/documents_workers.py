"""Workers of examples.documents, begun in a hundredth of the time: a process that has loaded everything forks one for each
order, waits for its end, and tells how it ended.

    with Workers(folder) as workers:
        workers.model_url = model.url
        workers.run(url)                                   # 0: nothing is left to do
        workers.run(url, crash_at="commit.after:3")        # -9: killed right after its third commit
        workers.run(url, die_after=120)                    # killed when it reaches its 120th point
        workers.run(url, kill_after=0.2)                   # killed from outside, wherever it is
        workers.run(url, kill_when_paid=ledger)            # killed when the provider has charged it

A worker begun this way is a process like any other, with connections, threads and children of its own.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PR_SET_PDEATHSIG = 1
STUCK_SECONDS = 60


class Workers:
    """Forks workers. What they say is in a file."""

    def __init__(self, folder: Path) -> None:
        self._said = folder / "said"
        #: Whom the workers pay.
        self.model_url = ""

    def __enter__(self) -> Workers:
        with self._said.open("wb") as said:
            self._mother = subprocess.Popen(
                [sys.executable, "-m", "tests.examples.documents_workers"], cwd=ROOT, stdin=subprocess.PIPE, text=True,
                stdout=subprocess.PIPE, stderr=said, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        assert self._mother.stdin is not None and self._mother.stdout is not None
        self._mother.stdin.close()
        self._mother.wait(STUCK_SECONDS)
        self._mother.stdout.close()

    def run(self, url: str, **how: Any) -> int:
        """Run a worker until nothing is left to do, or until it is killed; its exit code."""
        assert self._mother.stdin is not None and self._mother.stdout is not None
        self._mother.stdin.write(json.dumps({"url": url, "model_url": self.model_url, **how}) + "\n")
        self._mother.stdin.flush()
        answer = self._mother.stdout.readline()
        assert answer, f"no worker could be started:\n{self.said}"
        code = int(answer)
        assert code in (0, -signal.SIGKILL), f"the worker ended with {code}:\n{self.said}"
        return code

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")


# The mother process ---------------------------------------------------------------------------------------------------


def main() -> None:
    _die_with_parent()
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    import sqlalchemy.dialects.postgresql.psycopg
    import sqlalchemy.dialects.sqlite  # noqa: F401 - loaded once, for all

    from examples.documents import pipeline, reading  # noqa: F401
    from examples.documents.embedding import embed
    from examples.documents.paid_model import read_ledger

    embed(["loaded once, for all"])
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _work(order)
        if "kill_after" in order:
            time.sleep(order["kill_after"])
            os.kill(pid, signal.SIGKILL)
        if "kill_when_paid" in order:
            while not any(float(call["charged"]) for call in read_ledger(Path(order["kill_when_paid"]))):
                time.sleep(0.005)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _work(order: dict[str, Any]) -> None:
    code = 1
    try:
        from examples.documents.pipeline import Documents
        from holdfast import points
        from tests.examples.documents_scene import settings

        _die_with_parent()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        application = Documents(settings(order["url"], order["model_url"]))
        app = application.open()
        if "crash_at" in order:
            point, _, nth = order["crash_at"].partition(":")
            points.listen(_Deadly(int(nth), point))
        if "die_after" in order:
            points.listen(_Deadly(order["die_after"]))
        if "record" in order:
            points.listen(_Recorder(Path(order["record"])))
        app.run(application.settings.worker(poll_seconds=0.1, grace_seconds=0.0))
        code = 0
    except BaseException:
        logging.exception("a worker ended")
    finally:
        os._exit(code)


class _Deadly:
    """Counts every point this process passes, or those of a name, in any thread, and dies at this one.

    As HOLDFAST_CRASH_AT does, but only in the worker itself: what was in the hands of a dead worker runs in processes of
    their own, each of which would count from the beginning, and die, for ever.
    """

    def __init__(self, left: int, name: str = "") -> None:
        self._left = left
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        if os.getpid() != self._pid or self._name not in ("", point):
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(self._pid, signal.SIGKILL)


class _Recorder:
    """Writes down which points are passed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        with self._lock, self._file.open("a") as file:
            file.write(point + "\n")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
