"""A real Prometheus scrapes worker processes, one of which is killed, and the store; its numbers are those of the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.cli.conftest import BOOKS
from tests.support.mother import ROOT
from tests.support.prometheus import prometheus
from tests.support.scrapes import check_with_promtool, fetch, free_port
from tests.support.waiting import wait_for

pytestmark = pytest.mark.req("P18")

#: Processes that begin from nothing, beside others.
PATIENCE = 180.0


@contextmanager
def command(url: str, folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command as people start it; it is ended with the block."""
    environment = {**os.environ, "HOLDFAST_URL": url, "PYTHONPATH": str(ROOT)}
    with (folder / f"said-{words[0]}").open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_a_prometheus_counts_what_the_store_counts_although_a_worker_was_killed(url: str, tmp_path: Path) -> None:
    (tmp_path / "books.py").write_text(BOOKS)
    workers, store = free_port(), free_port()
    with ExitStack() as stack:
        app = stack.enter_context(Holdfast(url, create=False))
        ports = [f"--metrics-port={workers}", f"--health-port={workers}"]
        stack.enter_context(command(url, tmp_path, "worker", "books.py", "--processes=2", *ports, "--poll=200ms"))
        stack.enter_context(command(url, tmp_path, "metrics", f"--port={store}"))
        asked = stack.enter_context(prometheus(tmp_path, {"workers": workers, "store": store}))
        wait_for(lambda: len([one for one in app.workers() if one.alive]) == 2, PATIENCE)

        def is_done(passed: int, failed: int) -> bool:
            found = asked.ask('sum by (outcome) (holdfast_attempts_total{outcome=~"done|failed|skipped"})')
            return found == {
                '{"outcome": "done"}': passed,
                '{"outcome": "failed"}': failed,
                '{"outcome": "skipped"}': 0,
            }

        app.add("books", [f"a{n}" for n in range(30)] + ["bad"])
        wait_for(lambda: is_done(60, 1), PATIENCE)
        doomed = app.workers()[0]
        os.kill(int(doomed.process), signal.SIGKILL)
        app.add("books", [f"b{n}" for n in range(30)] + ["bad-2"])
        wait_for(lambda: is_done(120, 2), PATIENCE)
        # Another process has taken the place of the killed one, and nothing was counted twice or forgotten.
        wait_for(lambda: len([one for one in app.workers() if one.alive and one.id != doomed.id]) == 2, PATIENCE)
        assert is_done(120, 2)
        states = {stage.name: dict(stage.states) for pipeline in app.status().pipelines for stage in pipeline.stages}
        assert states == {"extract": {"done": 60, "failed": 2}, "chunk": {"done": 60}}

        def gauge() -> dict[str, float]:
            return asked.ask('sum by (stage, state) (holdfast_stages{job="store"}) > 0')

        wait_for(
            lambda: (
                gauge()
                == {
                    '{"stage": "chunk", "state": "done"}': 60,
                    '{"stage": "extract", "state": "done"}': 60,
                    '{"stage": "extract", "state": "failed"}': 2,
                }
            ),
            PATIENCE,
        )
        wait_for(lambda: asked.number('sum(holdfast_workers{job="store"})') == 2, PATIENCE)
        assert asked.number("sum(holdfast_attempt_duration_seconds_count)") == 122
        # The parent answers for its processes.
        wait_for(lambda: fetch(workers, "/readyz") == (200, "ok\n"), PATIENCE)
        assert fetch(workers, "/livez") == (200, "ok\n")
        for port in (workers, store):
            check_with_promtool(fetch(port)[1])
