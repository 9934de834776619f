"""Workers of examples.documents, as processes of their own.

workers = Workers(folder, model.url)
workers.run(url)                                       # 0: nothing is left to do
workers.run(url, crash_at="commit.after:3")            # -9: killed right after its third commit
workers.run(url, die_after=120)                        # killed when it reaches its 120th point
workers.run(url, kill_after=0.2)                       # killed from outside, wherever it is
workers.run(url, kill_when_paid=ledger)                # killed when the provider has charged it
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from examples.documents.fakes.fake_model import read_ledger
from tests.support.mother import Forked
from tests.support.processes import wait_for

STUCK_SECONDS = 60


class Workers:
    """Runs workers, one after the other. What they say is in a file."""

    def __init__(self, folder: Path, model_url: str) -> None:
        self._said = folder / "said"
        #: Whom the workers pay.
        self._model_url = model_url

    def run(self, url: str, kill_after: float | None = None, kill_when_paid: Path | None = None, **how: Any) -> int:
        """Run a worker until nothing is left to do, or until it is killed; its exit code."""
        order = {"url": url, "model_url": self._model_url, **how}
        with self._said.open("ab") as said:
            worker = Forked("tests.examples.documents_workers", [json.dumps(order)], os.environ, stdout=said)
        if kill_after is not None:
            time.sleep(kill_after)
            worker.kill()
        if kill_when_paid is not None:
            wait_for(lambda: any(float(call["charged"]) for call in read_ledger(kill_when_paid)), every=0.005)
            worker.kill()
        code = worker.wait(STUCK_SECONDS)
        assert code in (0, -signal.SIGKILL), f"the worker ended with {code}:\n{self._said.read_text(errors='replace')}"
        return code


# The process itself ---------------------------------------------------------------------------------------------------


def prepare() -> None:
    import sqlalchemy.dialects.postgresql.psycopg
    import sqlalchemy.dialects.sqlite  # noqa: F401

    from examples.documents import pipeline, reading  # noqa: F401
    from examples.documents.embedding import embed

    embed(["loaded once, for all"])


def main() -> None:
    from examples.documents.pipeline import Documents
    from holdfast import points
    from tests.examples.documents_scene import settings

    order = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
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
