"""The database file is removed, replaced, made read-only or damaged under a running worker: it says so, and ends."""

from __future__ import annotations

import array
import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.errors import StoreBroken
from tests.support.mother import Forked
from tests.support.processes import Crew, WorkerProcess, crew_on, wait_for
from tests.support.slowness import slowness
from tests.support.temporary import on_disk
from tests.support.unharmed import pages

#: A worker whose database is gone must have ended by then.
SOON = 5.0
EXIT_CODE = StoreBroken.exit_code

#: ioctl numbers and the flag of <linux/fs.h>.
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IMMUTABLE = 0x80086601, 0x40086602, 0x10


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On a disk: not every kernel lets a file in memory be made unchangeable."""
    with on_disk() as folder:
        yield folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def crew(file: Path, tmp_path: Path) -> Iterator[Crew]:
    with crew_on(f"sqlite:///{file}", tmp_path) as crew:
        crew.app.register()
        yield crew


@pytest.fixture(params=["idle", "busy"])
def worker(crew: Crew, tmp_path: Path, request: pytest.FixtureRequest) -> WorkerProcess:
    """A worker that ends with the error's own exit code, with nothing or with much to do."""
    arguments = [
        "--url",
        crew.url,
        "--pipeline",
        "tests.support.books:books",
        "--name",
        "w",
        "--stages",
        "",
        "--freeze-at",
        "",
        "--lease",
        "1",
        "--grace",
        "5",
        "--poll",
        "0.2",
        "--concurrency",
        "4",
    ]
    environment = {**os.environ, "HOLDFAST_TEST_LEDGER": str(crew.ledger.path)}
    if request.param == "busy":
        crew.add(pages(1000, 0.01))
    said = tmp_path / "said"
    with said.open("wb") as file:
        worker = WorkerProcess(
            Forked("tests.support.exiting_main", arguments, environment, stdout=file), said, crew.url
        )
    crew.workers.append(worker)
    wait_for(lambda: not worker.is_alive or crew.is_known(worker))
    if request.param == "busy":
        wait_for(lambda: len(crew.ledger.ends()) > 20)
    assert worker.is_alive, worker.said
    # From here on only the worker has the file open.
    crew.app.close()
    return worker


@pytest.mark.req("V2", "V7")
def test_a_process_that_leaves_takes_nothing_from_those_that_stay(crew: Crew):
    """The last to close the database clears up its log. Who is the last, SQLite knows by locks that are easily lost."""
    worker = crew.start("w")
    for number in range(2):
        crew.app.close()
        assert _deleted_files(worker.pid) == []
        crew.add([f"page-{number}"])
        crew.wait_until_done(10)
    crew.judge()


def _deleted_files(pid: int) -> list[str]:
    """Files a process works with that are no longer there."""
    held = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            held.append(os.readlink(link))
    return [name for name in held if "store.db" in name and name.endswith("(deleted)")]


def _ends_with(worker: WorkerProcess, *words: str) -> None:
    """The worker ends soon, with the exit code for a database in trouble and one line that has one of these words."""
    since = time.monotonic()
    assert worker.wait() == EXIT_CODE, worker.said
    assert time.monotonic() - since < SOON * slowness()
    last = worker.said.strip().splitlines()[-1]
    assert last.startswith("holdfast: "), worker.said
    assert any(word in last for word in words), last


@pytest.mark.fault(48)
@pytest.mark.req("V7")
def test_a_removed_file_ends_the_worker_and_is_not_made_anew(worker: WorkerProcess, file: Path):
    file.unlink()
    _ends_with(worker, "was removed or replaced")
    assert not file.exists()


@pytest.mark.fault(48)
@pytest.mark.req("V7")
def test_a_removed_folder_ends_the_worker_and_is_not_made_anew(worker: WorkerProcess, file: Path, tmp_path: Path):
    gone = tmp_path / "gone"
    gone.mkdir()
    for one in tmp_path.glob("store.db*"):
        one.rename(gone / one.name)
    shutil.rmtree(gone)
    _ends_with(worker, "was removed or replaced")
    assert list(tmp_path.glob("store.db")) == []


@pytest.mark.fault(48)
@pytest.mark.req("V7")
def test_a_replaced_file_ends_the_worker_and_is_left_as_it_is(worker: WorkerProcess, file: Path, tmp_path: Path):
    other = tmp_path / "other.db"
    with Holdfast(f"sqlite:///{other}") as app:
        app.upgrade()
    content = other.read_bytes()
    other.rename(file)
    _ends_with(worker, "was removed or replaced")
    assert file.read_bytes() == content


@pytest.mark.fault(48)
@pytest.mark.req("V7")
def test_a_file_that_may_not_be_written_any_more_ends_the_worker(worker: WorkerProcess, file: Path):
    with _unchangeable(file), _unchangeable(Path(f"{file}-wal")):
        _ends_with(worker, "does not read or write", "read-only")


@pytest.mark.fault(48)
@pytest.mark.req("V7")
@pytest.mark.parametrize("first_page", [1, 2], ids=["the header", "all but the header"])
def test_a_damaged_file_ends_the_worker(worker: WorkerProcess, file: Path, first_page: int):
    size = _empty_the_log(file)
    with file.open("r+b") as damaged:
        damaged.seek((first_page - 1) * size)
        damaged.write(b"\xa5" * (file.stat().st_size - damaged.tell()))
        os.fsync(damaged.fileno())
    _ends_with(worker, "is damaged", "is not a SQLite database")


def _empty_the_log(file: Path) -> int:
    """Copy the write-ahead log into the file, so that what is read next is read there; return the size of a page."""
    conn = sqlite3.connect(file, timeout=10)
    try:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [(size,)] = conn.execute("PRAGMA page_size").fetchall()
    finally:
        conn.close()
    return int(size)


@contextmanager
def _unchangeable(file: Path) -> Iterator[None]:
    """The kernel refuses every write to it, also through files that are open, also by root."""
    with file.open("rb") as opened:
        flags = array.array("l", [0])
        try:
            fcntl.ioctl(opened, FS_IOC_GETFLAGS, flags, True)
            old = flags[0]
            fcntl.ioctl(opened, FS_IOC_SETFLAGS, array.array("l", [old | FS_IMMUTABLE]))
        except OSError as error:
            pytest.skip(f"a file in use can be made read-only only where its flags can be set, by root: {error}")
        try:
            yield
        finally:
            fcntl.ioctl(opened, FS_IOC_SETFLAGS, array.array("l", [old]))
