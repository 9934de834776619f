"""Real worker processes that a test starts, freezes and kills; and the judge of what they did.

    crew = Crew(url, folder)                      # or the fixture of that name
    crew.add(["page-1", "page-2"])
    worker = crew.start("w")
    wait_for(lambda: crew.ledger.starts("page-1"))
    worker.kill()
    crew.start("w")
    crew.wait_until_done()
    crew.judge()                                  # nothing lost, nothing twice, every row accounted for

The workers run `tests.support.worker_main` with a pipeline named like `tests.support.books:books`. Their handlers tell a
ledger, a file outside the database, when they start and when they end; `judge` believes the ledger, not the engine.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import psycopg
from psycopg import sql

from holdfast import Holdfast
from holdfast.answers import Events, StageOfItem
from holdfast.model.states import OPEN
from holdfast.store.postgres_address import read_url
from holdfast.store.sqlite_files import file_of
from holdfast.testing import CRASH_VARIABLE
from tests.support.ledger import Ledger, Line
from tests.support.mother import ROOT, Forked
from tests.support.waiting import STUCK_SECONDS, wait_for
from tests.support.worker_main import PARENT_VARIABLE, find_pipeline

LEASE_SECONDS = 1.0
POLL_SECONDS = 0.2
#: Work of a dead worker starts again within this (V5).
RECOVERY_SECONDS = 2 * LEASE_SECONDS + POLL_SECONDS


# Workers --------------------------------------------------------------------------------------------------------------


class WorkerProcess:
    """One worker, as its operator sees it: a process number, signals, an exit code, and what it said."""

    def __init__(self, process: Popen[bytes] | Forked, said: Path, url: str) -> None:
        self._process = process
        self._said = said
        self._url = url
        self.pid = process.pid

    @classmethod
    def spawned(cls, command: list[str], environment: Mapping[str, str], said: Path, url: str) -> WorkerProcess:
        """Begun from nothing, as on a command line."""
        with said.open("wb") as file:
            process = Popen(
                command,
                env={**environment, PARENT_VARIABLE: str(os.getpid())},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        return cls(process, said, url)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """Everything the process and its children wrote."""
        return self._said.read_text(errors="replace")

    @property
    def is_frozen(self) -> bool:
        return _state(self.pid) == "T"

    def send(self, number: int) -> None:
        if self.is_alive:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, and return when it is gone."""
        self.send(signal.SIGKILL)
        self.wait()

    def terminate(self) -> None:
        self.send(signal.SIGTERM)

    def wait(self, timeout: float = STUCK_SECONDS) -> int:
        """Its exit code; a signal's number is negative."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"process {self.pid} has not ended within {timeout:.1f} s; it said:\n{self.said}"
            ) from None

    def freeze(self) -> None:
        """Stop it between two transactions: one frozen inside keeps the database's locks, which is another fault."""
        give_up_at = time.monotonic() + STUCK_SECONDS
        while time.monotonic() < give_up_at:
            self.send(signal.SIGSTOP)
            wait_for(lambda: _state(self.pid) in "TZ", every=0.001)
            if _nothing_is_locked(self._url, patience=0.5):
                return
            self.send(signal.SIGCONT)
            time.sleep(0.01)
        raise AssertionError(f"process {self.pid} is always in a transaction")

    def thaw(self) -> None:
        self.send(signal.SIGCONT)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _nothing_is_locked(url: str, patience: float) -> bool:
    give_up_at = time.monotonic() + patience
    probe = _sqlite_is_free if url.startswith("sqlite:") else _postgres_is_free
    while not probe(url):
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.01)
    return True


def _sqlite_is_free(url: str) -> bool:
    with open(f"{file_of(url)}-writer", "rb+") as queue:
        try:
            fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _postgres_is_free(url: str) -> bool:
    conninfo, schema, _ = read_url(url)
    with psycopg.connect(conninfo) as conn:
        try:
            for table in ("workers", "leases"):
                conn.execute(sql.SQL("SELECT 1 FROM {} FOR UPDATE NOWAIT").format(sql.Identifier(schema, table)))
        except psycopg.errors.LockNotAvailable:
            return False
        finally:
            conn.rollback()
    return True


# The crew -------------------------------------------------------------------------------------------------------------


class Crew:
    """Workers on one store, with one pipeline and one ledger."""

    #: Whether workers may be forks of a process that has loaded everything.
    forks = True

    def __init__(self, url: str, folder: Path, pipeline: str = "tests.support.books:books") -> None:
        self.url = url
        self.ledger = Ledger(folder / "ledger")
        self.workers: list[WorkerProcess] = []
        self._folder = folder
        self._name = pipeline
        self.app = Holdfast(url, [find_pipeline(pipeline).spec])

    def add(self, items: Iterable[str | Mapping[str, Any]]) -> None:
        self.app.add(self.app.pipelines[0].name, items)

    def gate(self, name: str = "gate") -> Path:
        """A file that handlers wait for with `until`; touch it to let them go on."""
        return self._folder / name

    def start(
        self,
        name: str = "w",
        *,
        lease: float = LEASE_SECONDS,
        grace: float = 5.0,
        poll: float = POLL_SECONDS,
        concurrency: int = 4,
        stages: str = "",
        drain: bool = False,
        far: bool = False,
        crash_at: str = "",
        freeze_at: str = "",
        environment: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> WorkerProcess:
        """Start a worker. It serves until it is stopped or, with `drain`, until nothing is left to do.

        `far` lets it look like a worker of another machine: only its silence can tell that it is dead. `crash_at` is
        HOLDFAST_CRASH_AT; `freeze_at` names two points and a number, as in `store.beat commit.before 2`: it stops where
        the second follows the first for the second time. With `ready` the call returns when the worker is among the living.
        """
        arguments = [
            "--url",
            self.url,
            "--pipeline",
            self._name,
            "--name",
            name,
            "--lease",
            str(lease),
            "--grace",
            str(grace),
            "--poll",
            str(poll),
            "--concurrency",
            str(concurrency),
            "--stages",
            stages,
            "--freeze-at",
            freeze_at,
            *["--drain"] * drain,
            *["--far"] * far,
        ]
        whole = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HOLDFAST_TEST_LEDGER": str(self.ledger.path),
            CRASH_VARIABLE: crash_at,
            **(environment or {}),
        }
        said = self._folder / f"said-{len(self.workers)}"
        if not self.forks or {"HOLDFAST_TEST_MEMORY", "LD_PRELOAD"} & whole.keys():
            # What the mother has loaded would count, and what a process is begun with cannot be had by a fork.
            command = [sys.executable, "-m", "tests.support.worker_main", *arguments]
            worker = WorkerProcess.spawned(command, whole, said, self.url)
        else:
            with said.open("wb") as file:
                process = Forked("tests.support.worker_main", arguments, whole, stdout=file)
            worker = WorkerProcess(process, said, self.url)
        self.workers.append(worker)
        if ready:
            wait_for(lambda: not worker.is_alive or self.is_known(worker))
        return worker

    def is_known(self, worker: WorkerProcess) -> bool:
        """Is it among the workers of the store?"""
        return any(one.process == str(worker.pid) for one in self.app.workers())

    def is_done(self) -> bool:
        """Has every item come to an end?"""
        return not any(
            stage.backfilling or OPEN & stage.states.keys()
            for pipeline in self.app.status().pipelines
            for stage in pipeline.stages
        )

    def wait_until_done(self, timeout: float = STUCK_SECONDS) -> None:
        try:
            wait_for(self.is_done, timeout, every=0.05)
        except AssertionError:
            raise AssertionError(f"not done within {timeout:.0f} s: {self.app.status()}\n{self.all_said()}") from None

    def stop(self) -> None:
        """Ask every worker to stop, and see that each ends well."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait()

    def end(self) -> None:
        """Whatever is left ends now."""
        for worker in self.workers:
            worker.kill()
        self.app.close()

    def all_said(self) -> str:
        return "".join(f"--- {worker.pid}\n{worker.said}" for worker in self.workers)

    # What is there ----------------------------------------------------------------------------------------------------

    def states(self) -> dict[tuple[str, str], str]:
        """The state of each stage of each item."""
        rows = self.app.items(stage=None, state=None, most=1_000_000)
        found = {}
        for row in rows:
            for one in self.app.show(row.key).stages:
                found[row.key, one.stage] = one.state
        return found

    def stage(self, key: str, stage: str) -> StageOfItem:
        """One stage of an item: state, attempts, error, result."""
        return self.app.show(key).stage(stage)

    def events(self, event: str, key: str | None = None) -> Events:
        return self.app.events(event=event, key=key, most=100_000)

    def judge(self) -> None:
        """Nothing is lost, nothing was accepted twice, every item is accounted for."""
        assert self.is_done()
        assert self.app.check() == []
        book = _Book(self.ledger.lines())
        for row in self.app.items(most=1_000_000):
            shown = self.app.show(row.key)
            for one in shown.stages:
                freed = sum(event.event in _FREED and event.stage == one.stage for event in shown.history)
                book.check(row.key, one, freed)
            assert shown.status in ("done", "failed", "cancelled"), shown


#: Events that say why a stage of an item could start once more.
_FREED = {"lease_expired", "handed_back", "attempt_failed", "snoozed", "retried"}


class _Book:
    """The ledger, by item and stage."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
        self._seen: dict[tuple[str, str], set[str]] = defaultdict(set)
        for line in lines:
            self._lines[line.what, line.key, line.stage].append(line)
            if line.what == "start" and line.seen:
                stage, _, mark = line.seen.partition(" ")
                self._seen[line.key, stage].add(mark)

    def check(self, key: str, stage: StageOfItem, freed: int) -> None:
        name, state, attempts = stage.stage, stage.state, stage.attempts
        starts, ends = self._lines["start", key, name], self._lines["end", key, name]
        where = f"item {key!r}, stage {name!r} ({state}, attempt {attempts})"
        if state is None:
            assert not starts, f"{where}: ran although it never began"
            return
        assert state not in OPEN, f"{where}: is still open"
        assert len(starts) <= 1 + freed, f"{where}: started {len(starts)} times, was set free {freed} times"
        assert max((line.attempt for line in starts), default=0) <= attempts, f"{where}: an attempt was not counted"
        if state != "done":
            return
        # The accepted result is that of one execution, under the attempt that was accepted; nobody started after it had
        # ended; and whoever came after has seen this one and no other.
        mark = stage.result["mark"]
        # A process that a handler forked may write as well; the mark names the process whose execution it was.
        accepted = [line for line in ends if line.mark == mark and mark.startswith(f"{line.pid}.")]
        assert len(accepted) == 1, f"{where}: its result has the mark {mark!r} of {len(accepted)} executions"
        assert accepted[0].attempt == attempts, f"{where}: accepted the result of attempt {accepted[0].attempt}"
        late = [line for line in starts if line.at > accepted[0].at]
        assert not late, f"{where}: ran again in process {late[0].pid} after it had ended"
        seen = self._seen[key, name]
        assert seen <= {mark}, f"{where}: later stages saw {seen}, what stands is {mark!r}"


@contextmanager
def crew_on(url: str, folder: Path, pipeline: str = "tests.support.books:books") -> Iterator[Crew]:
    """A crew whose processes are all ended at the end."""
    crew = Crew(url, folder, pipeline)
    try:
        yield crew
    finally:
        crew.end()
