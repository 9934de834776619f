"""A process of `holdfast ui`: started, stopped in the middle of a read, killed; and the write-ahead log of a file meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.board import wait_until
from benchmarks.children import ROOT, Failed
from holdfast.store.sqlite_locks import readers

STUCK_SECONDS = 60.0


class Ui:
    """`holdfast ui` as an operator starts it, on any port."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "holdfast", "ui", "--store", url, "--port", "0", "--no-token"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            command, env=environment, cwd="/", text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            raise Failed("holdfast ui did not start")

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        return float(sum(psutil.Process(self.pid).cpu_times()[:2]))

    def kill_when(self, fact: Callable[[], bool]) -> None:
        wait_until(fact, STUCK_SECONDS)
        self._process.kill()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def __enter__(self) -> Ui:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def stop_in_a_read(ui: Ui, url: str, sessions: frozenset[int]) -> None:
    """Stop it for good while it has a transaction open: the worst moment there is. `sessions` are its own, of PostgreSQL.

    On SQLite it must be called while somebody writes: otherwise a reader locks nothing."""

    def is_reading() -> bool:
        ui.send(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(ui.pid).status() == psutil.STATUS_STOPPED, STUCK_SECONDS, every=0.0005)
        if _reads(ui.pid, url, sessions):
            return True
        ui.send(signal.SIGCONT)
        return False

    if not wait_until(is_reading, STUCK_SECONDS, every=0.01):
        raise Failed("the dashboard was never seen in a read")


def sessions_of(url: str, having: str = "true") -> frozenset[int]:
    """The sessions of holdfast at a PostgreSQL server, of which this holds."""
    if url.startswith("sqlite"):
        return frozenset()
    import psycopg

    with psycopg.connect(url, autocommit=True) as conn:
        rows = conn.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast' "
            f"AND ({having})"
        ).fetchall()
        return frozenset(row[0] for row in rows)


def _reads(pid: int, url: str, sessions: frozenset[int]) -> bool:
    if not url.startswith("sqlite"):
        return bool(sessions & sessions_of(url, "xact_start IS NOT NULL"))
    try:
        return pid in readers(Path(url.removeprefix("sqlite:///")))
    except FileNotFoundError:  # nobody has it open
        return False


class Log:
    most_mb: float | None = None


@contextmanager
def watched_log(url: str) -> Iterator[Log]:
    """How long the write-ahead log of a SQLite file has been at most."""
    found = Log()
    if not url.startswith("sqlite"):
        yield found
        return
    path, ended = f"{url.removeprefix('sqlite:///')}-wal", threading.Event()
    found.most_mb = 0.0

    def look() -> None:
        while not ended.wait(0.1):
            try:
                found.most_mb = max(found.most_mb or 0.0, os.stat(path).st_size / 1e6)
            except FileNotFoundError:
                continue

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
