"""The disk is full. Work waits, costs nobody an attempt, and goes on by itself when there is room."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli import commands
from holdfast.engine.add import add_items, read_items
from holdfast.errors import StoreUnavailable
from tests.support.processes import Crew, crew_on, wait_for
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.unharmed import assert_unharmed, begin, pages

LEASE = 1.0
BIG = [{"key": f"big-{number}", "text": "x" * 100_000} for number in range(20)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "size=8m") as disk:
        yield disk


@pytest.fixture
def crew(disk: SmallDisk, tmp_path: Path) -> Iterator[Crew]:
    with crew_on(f"sqlite:///{disk.folder / 'store.db'}", tmp_path) as crew:
        yield crew


@pytest.mark.fault(44)
@pytest.mark.req("V6", "V7")
def test_a_full_disk_makes_work_wait_and_room_lets_it_go_on(crew: Crew, disk: SmallDisk, tmp_path: Path):
    for number in range(2):
        crew.start(f"w{number}", lease=LEASE)
    gate = tmp_path / "gate"
    begin(crew, gate, pages(100, 0.02))
    disk.fill()
    gate.touch()
    wait_for(lambda: all("the disk is full" in worker.said for worker in crew.workers), timeout=10)
    # Handlers that run may end; then nothing starts any more.
    wait_for(lambda: time.monotonic() - crew.ledger.lines()[-1].at > 2 * LEASE)
    assert disk.free == 0
    assert not crew.is_done()
    for worker in crew.workers:
        assert worker.said.count("the disk is full") == 1

    assert disk.mount("remount,size=64m") == ""
    crew.wait_until_done()
    assert_unharmed(crew)
    with sqlite3.connect(disk.folder / "store.db") as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    conn.close()


@pytest.mark.fault(44)
@pytest.mark.req("V6")
def test_a_worker_started_on_a_full_disk_waits_for_room(crew: Crew, disk: SmallDisk):
    crew.add(pages(5, 0.01))
    disk.fill()
    worker = crew.start("w", lease=LEASE, ready=False)
    wait_for(lambda: not worker.is_alive or _opened(worker.pid, disk.folder / "store.db"))
    time.sleep(LEASE)
    assert worker.is_alive, worker.said
    assert disk.mount("remount,size=64m") == ""
    crew.wait_until_done()
    assert_unharmed(crew)


@pytest.mark.fault(44)
@pytest.mark.req("J5")
def test_whoever_asks_is_told_that_the_disk_is_full(crew: Crew, disk: SmallDisk):
    crew.add(pages(1, 0))
    key = "page-0"
    with Holdfast(crew.url, create=False) as app:
        assert (app.status().cannot_write, app.why(key).reason) == (None, "no_worker")
        disk.fill()
        said = f"the disk is full: 0 bytes are left in {disk.folder}"
        assert (app.status().cannot_write or "").startswith(said)
        assert app.why(key).reason == "store" and app.why(key).text.startswith(said)
        for command, code in (["status"], 0), (["why", key], 0), (["doctor"], 5):
            result = CliRunner().invoke(commands, [*command, "--store", crew.url])
            assert "the disk is full: 0 bytes" in result.stdout.replace("The", "the"), (command, result.output)
            assert result.exit_code == code
        assert disk.mount("remount,size=64m") == ""
        assert app.status().cannot_write is None
        assert app.why(key).reason == "no_worker"


@pytest.mark.fault(44)
@pytest.mark.req("V2")
def test_items_that_find_no_room_are_refused_whole(crew: Crew, disk: SmallDisk):
    crew.add(pages(5, 0))
    with Holdfast(crew.url, crew.app.pipelines) as app:
        app.register()
        disk.fill()
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            app.store.write(lambda tx: add_items(tx, "books", read_items(BIG)), patience_seconds=0.2)
    assert len(crew.app.items()) == 5
    assert crew.app.check() == []


def _opened(pid: int, path: Path) -> bool:
    with suppress(OSError):
        return any(os.readlink(link) == str(path) for link in Path(f"/proc/{pid}/fd").iterdir())
    return False
