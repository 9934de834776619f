"""A reader of a SQLite file takes no lock while nobody writes, and still never gives a torn answer."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from holdfast.errors import StoreBroken, StoreConflict
from holdfast.store import open_store, sqlite_reader

pytestmark = pytest.mark.req("V14")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def url(path, clock):
    """The address of a store that is at rest."""
    store = open_store(f"sqlite:///{path}", clock=clock)
    store.upgrade()
    store.close()
    return f"sqlite:///{path}"


@pytest.fixture
def reader(url, clock):
    reader = open_store(url, clock=clock, create=False).reader()
    yield reader
    reader.close()


def write(url, clock, name):
    """Come, write, and go: what was written is in the file, and no log is left."""
    store = open_store(url, clock=clock)
    store.write(lambda tx: tx.run("add_pipeline", name=name, now=tx.now))
    store.close()


def pipelines(tx):
    return sorted(row[1] for row in tx.run("read_pipelines"))


def test_an_answer_that_was_written_over_meanwhile_is_thrown_away(url, clock, path, reader):
    answers = []

    def ask(tx):
        before = pipelines(tx)
        if not answers:
            write(url, clock, "new")
        answers.append((before, pipelines(tx)))
        return answers[-1]

    assert reader.read(ask) == (["new"], ["new"])
    assert len(answers) == 2
    assert not path.with_name("store.db-wal").exists()


def test_an_error_that_comes_from_a_file_written_over_meanwhile_is_not_told(url, clock, reader):
    asked = []

    def ask(tx):
        if not asked:
            asked.append(pipelines(tx))
            write(url, clock, "new")
            raise KeyError("half of a page")
        return pipelines(tx)

    assert reader.read(ask) == ["new"]


def test_an_error_of_the_question_itself_is_told(reader):
    with pytest.raises(KeyError, match="mine"):
        reader.read(lambda tx: {}["mine"])


def test_a_file_that_is_written_over_again_and_again_is_said_to_be(url, clock, reader):
    def ask(tx):
        write(url, clock, f"p{len(pipelines(tx))}")

    with pytest.raises(StoreConflict, match="was written to while it was read"):
        reader.read(ask, patience_seconds=0.0)


def test_a_writer_that_comes_meanwhile_does_not_wait_and_is_not_waited_for(url, clock, reader):
    """It writes to its log, the question is answered from the file."""
    store = open_store(url, clock=clock)

    def ask(tx):
        store.write(lambda tx: tx.run("add_pipeline", name="new", now=tx.now))
        return pipelines(tx)

    assert reader.read(ask) == []
    assert reader.read(pipelines) == ["new"]
    store.close()


@pytest.mark.parametrize(("ago", "tick"), [(1_234, sqlite_reader.FINE_NS), (0, sqlite_reader.COARSE_NS)])
def test_a_file_that_changed_just_now_is_looked_at_again_later(path, monkeypatch, ago, tick):
    """Its stamp may stand for the next change, too: the clocks of file systems tick slowly, some once a second."""
    now = 1_800_000_000_000_000_000
    slept = []

    class Time:
        time_ns = staticmethod(lambda: now + round(sum(slept) * 1e9))
        sleep = staticmethod(slept.append)

    path.touch()
    os.utime(path, ns=(now - ago, now - ago))
    monkeypatch.setattr(sqlite_reader, "time", Time)
    stamp = sqlite_reader._settled(path)
    assert Time.time_ns() - stamp[-1] >= tick


@pytest.mark.parametrize("changed_at", [-3_600, 3_600])
def test_a_file_that_changed_long_ago_or_in_the_future_is_not_waited_for(path, monkeypatch, changed_at):
    monkeypatch.setattr(sqlite_reader.time, "sleep", lambda seconds: pytest.fail("there is nothing to wait for"))
    path.touch()
    at = time.time() + changed_at
    os.utime(path, (at, at))
    assert sqlite_reader._settled(path) == sqlite_reader._stamp(path)


@pytest.fixture
def left_behind(url, clock, path, monkeypatch):
    """The files of a store as a crash leaves them, whose index only a writer could make."""
    store = open_store(url, clock=clock)
    store.write(lambda tx: tx.run("add_pipeline", name="old", now=tx.now))
    for end in ("", "-wal"):
        subprocess.run(["cp", f"{path}{end}", f"{path.with_name('left.db')}{end}"], check=True)
    store.close()
    allowed = os.access
    monkeypatch.setattr(sqlite_reader.os, "access", lambda file, mode: mode != os.W_OK and allowed(file, mode))
    return path.with_name("left.db")


def test_a_copy_of_files_that_were_written_to_meanwhile_is_made_again(left_behind, clock, monkeypatch):
    url = f"sqlite:///{left_behind}"
    copies = []

    def run(*args, **more):
        done = subprocess.Popen(*args, **more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        done.communicate()
        copies.append(args)
        if len(copies) == 1:
            with left_behind.with_name("left.db-wal").open("ab") as log:
                log.write(b"half of a frame")
        return done

    monkeypatch.setattr(sqlite_reader.subprocess, "run", lambda command, **_: run(command))
    reader = open_store(url, clock=clock, create=False).reader()
    assert reader.read(pipelines) == ["old"]
    assert len(copies) == 2
    reader.close()


def test_a_copy_is_kept_while_the_files_stay_as_they_are_and_not_longer(left_behind, clock, tmp_path, monkeypatch):
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr(sqlite_reader.tempfile, "tempdir", str(folder))
    reader = open_store(f"sqlite:///{left_behind}", clock=clock, create=False).reader()
    assert reader.schema_version() and reader.read(pipelines) == ["old"]
    [first] = folder.iterdir()
    assert reader.read(pipelines) == ["old"]
    assert list(folder.iterdir()) == [first]
    write(f"sqlite:///{left_behind}", clock, "new")
    assert reader.read(pipelines) == ["new", "old"]
    assert list(folder.iterdir()) == []
    reader.close()


def test_the_folder_for_copies_is_empty_after_an_error(left_behind, clock, tmp_path, monkeypatch):
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr(sqlite_reader.tempfile, "tempdir", str(folder))
    monkeypatch.setenv("PATH", str(folder))
    reader = open_store(f"sqlite:///{left_behind}", clock=clock, create=False).reader()
    with pytest.raises(StoreBroken, match="cannot be copied to be read"):
        reader.read(pipelines)
    assert list(folder.iterdir()) == []


HAS_LOCK = """
import fcntl, os, struct, sys
file = os.open(sys.argv[1], os.O_RDWR)
wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0x40000002, 510, 0)
kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, wanted))
print(pid if kind != fcntl.F_UNLCK else 0)
"""


def test_a_question_leaves_the_locks_of_this_process_on_the_file_as_they_are(url, clock, path, reader):
    store = open_store(url, clock=clock)

    def ask(tx):
        # Opened while the file is read without a lock.
        store.write(lambda tx: tx.run("add_pipeline", name="new", now=tx.now))

    for question in (ask, pipelines, pipelines):
        reader.read(question)
        found = subprocess.run([sys.executable, "-c", HAS_LOCK, str(path)], capture_output=True, text=True, check=True)
        assert int(found.stdout) == os.getpid()
    store.close()


def test_a_writer_opened_after_a_reader_in_one_process_can_write(url, clock, path):
    """Connections of one process share the index of the log: none may open it so that the others cannot write."""
    first = open_store(url, clock=clock)
    first.write(lambda tx: tx.run("add_pipeline", name="a", now=tx.now))
    left = path.with_name("left.db")
    for end in ("", "-wal", "-shm"):
        subprocess.run(["cp", f"{path}{end}", f"{left}{end}"], check=True)
    first.close()
    store = open_store(f"sqlite:///{left}", clock=clock)
    reader = store.reader()

    def ask(tx):
        store.write(lambda tx: tx.run("add_pipeline", name="b", now=tx.now))
        return pipelines(tx)

    assert reader.read(ask) == ["a"]
    assert reader.read(pipelines) == ["a", "b"]
    reader.close()
    store.close()


def test_a_reader_that_is_not_asked_has_no_lock_and_lets_the_last_writer_clear_up(url, clock, path, reader):
    store = open_store(url, clock=clock)
    store.write(lambda tx: tx.run("add_pipeline", name="a", now=tx.now))
    assert reader.read(pipelines) == ["a"]
    store.close()
    assert not path.with_name("store.db-wal").exists()
