"""SQLite's log grows as long as somebody reads: it is cut as soon as that is possible, and the reader is named."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from holdfast.store import sqlite_wal
from holdfast.store.sqlite_wal import COMPLAIN_SECONDS, KEPT_BYTES, LOOK_SECONDS, log_of
from tests.support.harness import connected
from tests.support.locks import forgotten_reader

pytestmark = [pytest.mark.req("P10"), pytest.mark.fault(43)]

LONG_BYTES = 1 << 20


@pytest.fixture
def database():
    return "sqlite"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


class Watched:
    """The log of a store, looked at when the test says so."""

    def __init__(self, app, path, caplog):
        self._app, self._path, self._caplog = app, path, caplog
        self._driver = app.store.connect()
        self._now = 0.0
        # The thread that looks has a clock of its own.
        log_of(path)._looked_at = 0.0

    @property
    def size(self):
        return os.stat(f"{self._path}-wal").st_size

    def look(self, seconds=LOOK_SECONDS):
        """What is said at the next look."""
        self._caplog.clear()
        self._now += seconds
        log_of(self._path).look(self._now)
        return "".join(self._caplog.messages)

    def write(self, size=0):
        self._app.store.write(lambda tx: tx.record("written", text="x" * size))


@pytest.fixture
def watched(app, path, caplog, monkeypatch):
    monkeypatch.setattr(sqlite_wal, "LONG_BYTES", LONG_BYTES)
    monkeypatch.setattr("holdfast.store.sqlite.SQLite.look", lambda *_: None)
    return Watched(app, path, caplog)


def test_a_reader_that_does_not_end_is_named_and_the_log_is_emptied_when_it_is_gone(watched, path):
    with forgotten_reader(path) as pid:
        watched.write(2 * LONG_BYTES)
        assert watched.look() == ""
        watched.write()
        assert watched.look() == ""  # once may be chance
        watched.write()
        said = watched.look()
        assert (
            f"log of {path} has grown to 1 MB and cannot be cut: process {pid} has a transaction open that reads"
            in said
        )
        # Not at every look.
        watched.write()
        assert watched.look() == ""
        watched.write()
        assert f"process {pid} " in watched.look(COMPLAIN_SECONDS)
    watched.write()
    assert watched.size == 0
    watched.write()
    assert watched.look(COMPLAIN_SECONDS) == ""


def test_a_connection_that_was_forgotten_in_this_process_is_said_to_be_in_this_one(watched, path):
    mine = sqlite3.connect(path, isolation_level=None)
    mine.execute("BEGIN")
    mine.execute("SELECT * FROM holdfast_items").fetchall()
    for size in (2 * LONG_BYTES, 0, 0):
        watched.write(size)
        said = watched.look()
    assert f"process {os.getpid()}, this one, has a transaction open" in said
    mine.close()


def test_who_only_passes_by_is_not_named(watched, path):
    with forgotten_reader(path) as first:
        watched.write(2 * LONG_BYTES)
        watched.look()
        watched.write()
    with forgotten_reader(path) as second:
        watched.write(2 * LONG_BYTES)
        watched.look()
        watched.write()
        said = watched.look()
    assert str(first) not in said and str(second) not in said


def test_a_reader_that_cannot_be_seen_is_not_made_up(watched, path, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.store.sqlite_locks.LOCKS", tmp_path / "nothing")
    with forgotten_reader(path):
        for size in (2 * LONG_BYTES, 0, 0):
            watched.write(size)
            said = watched.look()
    assert "cannot be cut: a process that cannot be seen from here has a transaction open" in said


def test_a_long_log_that_nobody_reads_is_emptied_and_nothing_is_said(watched, app):
    watched.write(2 * LONG_BYTES)
    assert watched.look() == ""
    with connected(app) as other:
        other.store.write(lambda tx: tx.record("written"))
    assert watched.size == 0
    assert watched.look() == ""
    app.pipeline({"a": []})
    app.add(["x"])
    assert app.states("x") == {"a": "pending"}


def test_to_cut_the_log_leaves_the_connection_as_patient_as_it_was(watched, app):
    [before] = app.store.driver.connection.execute("PRAGMA busy_timeout").fetchall()
    watched.write(2 * LONG_BYTES)
    watched.look()
    watched.write()
    assert app.store.driver.connection.execute("PRAGMA busy_timeout").fetchall() == [before]


def test_sqlite_itself_keeps_less_of_a_log_than_it_did(app, path):
    """Without any look: the log is begun anew once it was copied and nobody reads it."""
    app.store.write(lambda tx: [tx.record("written", text="x" * 1_000_000) for _ in range(20)])
    wal = Path(f"{path}-wal")
    assert wal.stat().st_size > KEPT_BYTES
    for _ in range(3):
        app.store.write(lambda tx: tx.record("written"))
    assert wal.stat().st_size == KEPT_BYTES
