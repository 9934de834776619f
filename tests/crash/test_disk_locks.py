"""Others hold SQLite's locks: a foreign program that writes or reads, a worker that is frozen, a handler's own transaction."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.store.sqlite_wal import KEPT_BYTES, LONG_BYTES
from tests.support.locks import foreign_writer, forgotten_reader
from tests.support.processes import RECOVERY_SECONDS, Crew, crew_on, wait_for
from tests.support.slowness import slowness
from tests.support.temporary import on_disk
from tests.support.unharmed import assert_unharmed, begin, pages

LEASE = 1.0


@pytest.fixture
def database() -> str:
    return "sqlite"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On a disk, where SQLite's locks are taken most."""
    with on_disk() as folder:
        yield folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.mark.fault(40)
@pytest.mark.req("V5", "V6", "V7")
def test_a_foreign_program_that_holds_the_write_lock_costs_nobody_anything(crew: Crew, file: Path, tmp_path: Path):
    for number in range(2):
        crew.start(f"w{number}", lease=LEASE, far=True)
    gate = tmp_path / "gate"
    begin(crew, gate, pages(150, 0.02))
    with foreign_writer(file):
        time.sleep(3 * LEASE)
    gate.touch()
    crew.wait_until_done()
    assert_unharmed(crew)


@pytest.mark.fault(41)
@pytest.mark.req("V5")
def test_a_worker_frozen_inside_the_write_lock_is_named_and_killing_it_lets_all_go_on(crew: Crew):
    """Also by a worker that only now opens the store; and questions are answered all the time."""
    crew.add(pages(60, 0.05))
    frozen = crew.start("frozen", lease=LEASE, freeze_at="claim.before commit.before 2", ready=False)
    wait_for(lambda: _is_stopped(frozen.pid))
    other = crew.start("other", lease=LEASE, ready=False)
    asked = _in_time(lambda: Holdfast(crew.url, create=False).status(), seconds=2.0 * slowness())
    wait_for(lambda: f"process {frozen.pid} holds the lock" in other.said)
    assert other.is_alive
    frozen.kill()
    assert asked, "a question had to wait for the frozen worker"
    killed_at = time.monotonic()
    wait_for(
        lambda: [line for line in crew.ledger.starts() if line.at > killed_at], timeout=RECOVERY_SECONDS * slowness()
    )
    crew.wait_until_done()
    crew.judge()


@pytest.mark.fault(41)
@pytest.mark.req("V3", "V5")
def test_a_worker_at_work_waits_out_another_that_froze_inside_the_write_lock(crew: Crew, tmp_path: Path):
    """What the waiting worker holds stays its own, however long it waits."""
    other = crew.start("other", lease=LEASE, far=True)
    gate = tmp_path / "gate"
    crew.add([{"key": f"long-{number}", "fetch": f"until {gate}"} for number in range(4)])
    wait_for(lambda: len(crew.ledger.starts()) == 4)
    crew.add(pages(20, 0.01))
    frozen = crew.start("frozen", lease=LEASE, far=True, freeze_at="store.claim commit.before 2", ready=False)
    wait_for(lambda: _is_stopped(frozen.pid))
    wait_for(lambda: f"process {frozen.pid} holds the lock" in other.said)
    frozen.kill()
    gate.touch()
    crew.wait_until_done()
    crew.judge()
    for number in range(4):
        assert [line.pid for line in crew.ledger.starts(f"long-{number}", "fetch")] == [other.pid]
        assert crew.stage(f"long-{number}", "fetch").attempts == 1
    assert other.is_alive


@pytest.mark.fault(42)
@pytest.mark.req("V7", "V8")
def test_a_handlers_own_transaction_on_the_same_file_never_troubles_the_worker(file: Path, tmp_path: Path):
    with crew_on(f"sqlite:///{file}", tmp_path, "tests.support.odd_books:own_tables") as crew:
        crew.add({"key": f"note-{number}", "file": str(file)} for number in range(8))
        with sqlite3.connect(file) as conn:
            conn.execute("CREATE TABLE notes (key TEXT, n INTEGER)")
        conn.close()
        worker = crew.start("w", concurrency=3)
        crew.wait_until_done()
        refused = crew.ledger.lines("refused")
        assert sorted(line.key for line in refused) == [f"note-{number}" for number in range(8)]
        # Plain BUSY, at once as well, if the worker happened to be in its next commit.
        assert {line.mark for line in refused} <= {"SQLITE_BUSY_SNAPSHOT", "SQLITE_BUSY"}
        # It is the handler's own error: its attempt failed, and the next one worked.
        for line in refused:
            assert crew.stage(line.key, "note").state == "done"
            [failed] = crew.events("attempt_failed", line.key)
            assert failed.data["error"] == "OperationalError: database is locked"
        assert {crew.stage(line.key, "look").state for line in refused} == {"done"}
        with sqlite3.connect(file) as conn:
            assert conn.execute("SELECT count(DISTINCT key), count(*) FROM notes").fetchone() == (8, 8)
        conn.close()
        assert crew.app.check() == []
        assert worker.is_alive
        assert worker.said == ""


@pytest.mark.fault(43)
@pytest.mark.req("P10", "V7")
def test_a_reader_that_never_ends_is_named_and_the_log_is_short_again_when_it_is_gone(
    tmp_path_factory: pytest.TempPathFactory,
):
    # In memory, if tests are: this is much to write.
    folder = tmp_path_factory.mktemp("log")
    file, wal = folder / "store.db", folder / "store.db-wal"
    with crew_on(f"sqlite:///{file}", folder) as crew:
        worker = crew.start("w", lease=LEASE)
        with forgotten_reader(file) as pid:
            for number in range(10):
                crew.add({"key": f"{number}-{n}", "text": "x" * 200_000} for n in range(40))
            crew.wait_until_done()
            assert wal.stat().st_size > LONG_BYTES
            wait_for(lambda: f"cannot be cut: process {pid} has a transaction open that reads" in worker.said)
            assert worker.said.count("cannot be cut") == 1
        # Its heartbeat is enough to cut it.
        wait_for(lambda: wal.stat().st_size <= KEPT_BYTES)
        assert worker.is_alive
        assert_unharmed(crew)


def _in_time(work: Callable[[], object], seconds: float) -> bool:
    """Does this end within so many seconds?"""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
