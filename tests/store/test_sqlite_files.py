"""SQLite is a file, and files are removed, replaced, damaged, locked and full. Each is one clear error."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from holdfast.errors import StoreBroken, StoreError, StoreUnavailable
from holdfast.store import open_store, sqlite_files, sqlite_locks, sqlite_news
from holdfast.store.sqlite_permissions import user_name
from tests.support.forking import in_a_child
from tests.support.harness import App, connected
from tests.support.other_user import USER, as_root, become_user
from tests.support.together import wait_for

pytestmark = pytest.mark.fault(48)


@pytest.fixture
def database():
    return "sqlite"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path, clock):
    path.write_text("my thesis\n" * 200)
    with pytest.raises(StoreBroken, match=r"store\.db is not a SQLite database"):
        open_store(f"sqlite:///{path}", clock=clock).upgrade()
    assert path.read_text() == "my thesis\n" * 200
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


def test_a_library_that_is_too_old_is_named(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    with pytest.raises(StoreBroken, match=r"needs SQLite 3\.38 or newer, and this Python has 3\."):
        open_store(f"sqlite:///{path}").upgrade()
    assert list(path.parent.iterdir()) == []


def test_a_file_that_does_not_exist_is_made_only_where_that_is_wanted(path):
    with pytest.raises(StoreBroken, match="does not exist"):
        open_store(f"sqlite:///{path}", create=False)
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_does_not_exist_is_not_made(tmp_path):
    with pytest.raises(StoreBroken, match="nowhere does not exist: make the folder first"):
        open_store(f"sqlite:///{tmp_path}/nowhere/store.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_database(tmp_path):
    with pytest.raises(StoreBroken, match="is a folder"):
        open_store(f"sqlite:///{tmp_path}")


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreBroken, match="file does not exist: make the folder first"):
        open_store(f"sqlite:///{tmp_path}/file/store.db")


def test_a_file_removed_while_in_use_is_an_error_and_no_new_empty_database(app, path):
    app.pipeline({"a": []})
    for file in path.parent.glob("store.db*"):
        file.unlink()
    for use in (lambda: app.add(["x"]), lambda: app.states("x"), app.store.upgrade, app.store.schema_version):
        with pytest.raises(StoreBroken, match="removed or replaced"):
            use()
    app.store.close()
    assert not path.exists()
    with pytest.raises(StoreError):
        app.add(["x"])
    assert not path.exists()


def test_a_file_replaced_while_in_use_is_an_error_and_neither_is_written_to(app, path, clock):
    app.pipeline({"a": []})
    path.rename(path.with_name("moved.db"))
    other = open_store(f"sqlite:///{path}", clock=clock)
    other.upgrade()
    with pytest.raises(StoreBroken, match="removed or replaced"):
        app.add(["x"])
    assert other.read(lambda tx: tx.run("read_pipelines")) == []
    other.close()


def test_a_damaged_page_is_said_to_be_damage_and_what_to_do(app, path, clock):
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(2000))
    app.store.close()
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for place in range(4096, size - 4096, 4096):
            file.seek(place)
            file.write(b"\xff" * 2048)
    with pytest.raises(StoreBroken, match="is damaged: stop the workers, copy it aside"):
        App(open_store(f"sqlite:///{path}", clock=clock), clock).add(["x"])


def test_a_file_that_was_cut_off_is_said_to_be_damage(app, path, clock):
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(2000))
    app.store.close()
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StoreBroken, match="damaged"):
        App(open_store(f"sqlite:///{path}", clock=clock), clock).add(f"new {n}" for n in range(2000))


def test_a_header_that_was_overwritten_is_no_database(app, path, clock):
    app.pipeline({"a": []})
    app.store.close()
    with path.open("r+b") as file:
        file.write(b"not a database at all")
    with pytest.raises(StoreBroken, match="is not a SQLite database"):
        open_store(f"sqlite:///{path}", clock=clock).schema_version()


@pytest.mark.fault(44)
def test_a_full_disk_passes_by_itself_and_nothing_half_written_stays(app):
    app.pipeline({"a": []})
    connection = app.store.driver.connection
    [(pages,)] = connection.execute("PRAGMA page_count").fetchall()
    connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    data = [{"key": f"k{n}", "text": "x" * 1000} for n in range(100)]
    write = app.store.writing(lambda tx: _add(tx, data))
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        write.run()
    assert app.query("SELECT COUNT(*) FROM holdfast_items") == [(0,)]
    connection.execute("PRAGMA max_page_count = 1000000")
    assert write.run() == (100, 0, 0)
    assert app.counts() == app.recount() == {"a": {"pending": 100}}


def _add(tx, data):
    from holdfast.engine.add import add_items, read_items

    return add_items(tx, "p", read_items(data))


def test_a_database_that_may_only_be_read_says_so(app):
    app.pipeline({"a": []})
    app.store.driver.connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreBroken, match="it is read-only"):
        app.add(["x"])
    app.store.driver.connection.execute("PRAGMA query_only = OFF")
    app.add(["x"])


@pytest.mark.fault(40)
def test_a_foreign_writer_that_holds_the_lock_is_waited_for(url, clock, path, monkeypatch):
    monkeypatch.setattr(sqlite_files, "BUSY_SECONDS", 0.05)
    store = open_store(url, clock=clock)
    store.upgrade()
    app = App(store, clock)
    app.pipeline({"a": []})
    foreign = sqlite3.connect(path, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    write = store.writing(lambda tx: tx.run("add_pipeline", name="q", now=0))
    with pytest.raises(StoreUnavailable, match="locked by another program"):
        write.run()
    assert app.counts() == {}  # who only reads is not held up
    foreign.execute("ROLLBACK")
    write.run()
    foreign.close()
    store.close()


def test_an_error_in_a_statement_of_the_users_is_not_taken_for_trouble_of_the_store(app):
    with pytest.raises(sqlite3.IntegrityError):
        app.execute("INSERT INTO holdfast_stages (pipeline) VALUES (1)")
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        app.execute("SELECT 1 FROM no_such_table")


def test_a_copy_of_the_file_is_a_store_of_its_own(app, path, clock):
    app.pipeline({"a": []})
    app.add(["x"])
    app.store.close()
    shutil.copy(path, path.with_name("copy.db"))
    copy = App(open_store(f"sqlite:///{path.with_name('copy.db')}", clock=clock), clock)
    assert copy.states("x") == {"a": "pending"}
    copy.store.close()


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    """What the system says is mounted: a disk, and what a test adds."""
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(sqlite_files, "MOUNTS", table)

    def mount(kind, place):
        lines = f"21 1 254:0 / / rw - ext4 /dev/vda rw\n90 21 0:50 / {place} rw shared:1 - {kind} server:/share rw\n"
        table.write_text(f"{lines}91 21 0:51 / {place}-beside rw - ext4 /dev/vdb rw\n")

    return mount


@pytest.fixture
def shared(tmp_path):
    """A folder whose name mount tables have to write in another way."""
    folder = tmp_path / "shared folder"
    folder.mkdir()
    return folder


@pytest.mark.fault(49)
@pytest.mark.req("P10")
@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "ceph", "lustre", "fuse.sshfs"])
def test_a_shared_file_system_is_refused_before_anything_is_made_unless_somebody_insists(
    shared, mounts, monkeypatch, kind
):
    (shared / "below").mkdir()
    mounts(kind, str(shared).replace(" ", "\\040"))
    for place in (shared, shared / "below"):
        with pytest.raises(StoreBroken, match=rf"lies on a shared file system \({kind}\), where SQLite loses data"):
            open_store(f"sqlite:///{place}/store.db")
        assert not list(place.glob("store.db*"))
    monkeypatch.setenv("HOLDFAST_ALLOW_SHARED_FILE_SYSTEM", "1")
    store = open_store(f"sqlite:///{shared}/store.db")
    store.upgrade()
    assert store.facts()["file_system"] == kind
    store.close()


@pytest.mark.fault(49)
def test_a_store_that_comes_to_lie_on_a_shared_file_system_is_refused_to_those_who_ask_too(shared, mounts):
    open_store(f"sqlite:///{shared}/store.db").close()
    mounts("nfs4", str(shared).replace(" ", "\\040"))
    with pytest.raises(StoreBroken, match="shared file system"):
        open_store(f"sqlite:///{shared}/store.db", create=False).reader().schema_version()


@pytest.mark.fault(49)
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs"])
def test_a_disk_of_this_machine_is_not_taken_for_a_shared_one(shared, mounts, kind):
    mounts(kind, str(shared).replace(" ", "\\040"))
    open_store(f"sqlite:///{shared}/store.db").close()
    mounts("nfs4", "/srv")
    open_store(f"sqlite:///{shared}/store.db").close()


# One file, several names ----------------------------------------------------------------------------------------------


@pytest.fixture
def bind():
    """Give a file or a folder a second place."""
    done = []

    def bind(old, new):
        program = shutil.which("mount")
        if program is None:
            pytest.skip("NOT PROVED HERE: there is no mount program")
        found = subprocess.run([program, "--bind", old, new], capture_output=True, text=True, check=False)
        if found.returncode:
            pytest.skip(
                f"NOT PROVED HERE: a second place for a folder needs the right to mount: {found.stderr.strip()}"
            )
        done.append(new)

    yield bind
    for one in done:
        subprocess.run(["umount", "--lazy", one], check=True)


@pytest.fixture(
    params=["a link to the file", "a link to the folder", "a path from here", "a folder that is mounted twice"]
)
def second(request, app, path, tmp_path, monkeypatch):
    """Another name of the store's file."""
    app.pipeline({"a": []})
    link = tmp_path / "link"
    if request.param == "a link to the file":
        link.symlink_to(path)
        return f"sqlite:///{link}"
    if request.param == "a link to the folder":
        link.symlink_to(tmp_path)
    elif request.param == "a path from here":
        link.mkdir()
        monkeypatch.chdir(link)
        return "sqlite:///../link/../store.db"
    else:
        link.mkdir()
        request.getfixturevalue("bind")(tmp_path, link)
    return f"sqlite:///{link}/store.db"


@pytest.mark.fault(50)
@pytest.mark.req("P10")
def test_processes_that_know_a_store_by_different_names_see_and_wait_for_each_other(app, second, path):
    app.add(["x"])
    other = App(open_store(second, create=False), app.clock)
    assert other.states("x") == {"a": "pending"}
    for key in ("y", "z"):
        (other if key == "y" else app).add([key])
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, second], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        assert not app.store.connect()._try_queue(0)
        holder.communicate("\n", timeout=20)
    other.store.close()
    assert app.run_through() == 3
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.fault(22)
@pytest.mark.fault(50)
def test_a_forked_child_cannot_open_the_store_of_its_parent_by_another_name_either(app, second):
    def use():
        with pytest.raises(StoreError, match="was open in the process this one was forked from"):
            open_store(second, create=False).write(lambda tx: tx.record("written"))

    app.store.connect()
    assert in_a_child(use) == "None"


@pytest.mark.fault(50)
def test_a_connection_to_the_store_by_another_name_is_one_to_the_store(app, second):
    conn = sqlite3.connect(second.removeprefix("sqlite:///"))
    with app.store.guest(conn).within() as tx:
        tx.record("written")
    conn.commit()
    conn.close()


@pytest.mark.fault(50)
@pytest.mark.req("P10")
@pytest.mark.parametrize("use", ["writes", "asks"])
def test_a_file_with_a_second_name_in_its_folder_is_refused_under_both(app, path, tmp_path, use):
    """Each name would have a log of its own."""
    app.pipeline({"a": []})
    app.store.close()
    other = tmp_path / "other.db"
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(StoreBroken, match=rf"{name.name} has 2 names \(hard links\)"):
            _use(name, use)
    other.unlink()
    _use(path, use)


@pytest.mark.fault(50)
@pytest.mark.req("P10")
@pytest.mark.parametrize("use", ["writes", "asks"])
def test_a_file_that_is_mounted_by_itself_is_refused_and_gets_no_second_log(app, path, tmp_path, bind, use):
    app.pipeline({"a": []})
    app.store.close()
    alone = tmp_path / "alone" / "store.db"
    alone.parent.mkdir()
    alone.touch()
    bind(path, alone)
    with pytest.raises(
        StoreBroken, match="is mounted by itself, without the log that belongs beside it: mount the folder"
    ):
        _use(alone, use)
    assert [file.name for file in alone.parent.iterdir()] == ["store.db"]


def _use(path, use):
    store = open_store(f"sqlite:///{path}", create=False)
    try:
        if use == "writes":
            store.write(lambda tx: tx.record("written"))
        else:
            store.reader().schema_version()
    finally:
        store.close()


def test_every_connection_is_as_durable_as_promised(app):
    with connected(app) as other:
        for one in (app, other):
            one.store.connect()
            facts = one.store.facts()
            assert (facts["journal_mode"], facts["synchronous"], facts["integrity"]) == ("wal", "full", "ok")
            assert one.store.driver.connection.execute("PRAGMA foreign_keys").fetchall() == [(1,)]


def test_the_file_says_when_another_process_has_written(app):
    listener = app.store.listener()
    assert listener.wait(0) is None
    app.pipeline({"a": []})
    assert listener.wait(5) == ()
    assert listener.wait(0) is None
    listener.close()


@pytest.mark.parametrize("kernel", ["tells", "has too many to tell", "does not tell"])
def test_who_waits_for_news_hears_of_a_commit_whatever_the_kernel_tells(app, monkeypatch, kernel):
    if kernel != "tells":
        monkeypatch.setattr(
            sqlite_news.ctypes, "CDLL", lambda _: Libc() if kernel == "has too many to tell" else object()
        )
    app.pipeline({"a": []})
    listener = app.store.listener()
    assert (listener._touches is not None) is (kernel == "tells")
    for key in ("x", "y"):
        heard = Future()
        waiting = threading.Thread(target=lambda heard=heard: heard.set_result(listener.wait(30)))
        waiting.start()
        app.add([key])
        assert heard.result(30) == ()
        waiting.join()
    listener.close()


class Libc:
    """A kernel that has no watch left for us."""

    inotify_init1 = inotify_add_watch = staticmethod(lambda *_: -1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_who_waits_for_news_is_woken_by_a_commit_not_by_its_own_clock(app, monkeypatch):
    monkeypatch.setattr(sqlite_news.FileNews, "SELDOM_SECONDS", 60.0)
    app.pipeline({"a": []})
    listener = app.store.listener()
    heard = Future()
    waiting = threading.Thread(target=lambda: heard.set_result(listener.wait(60)))
    waiting.start()
    app.add(["x"])
    assert heard.result(20) == ()
    waiting.join()
    listener.close()


# The lock of those who write ------------------------------------------------------------------------------------------

_HOLD = """
import sys
from holdfast.store import open_store
store = open_store(sys.argv[1], create=False)
store.write(lambda tx: (print("held", flush=True), sys.stdin.readline()))
"""


@pytest.mark.req("V7")
def test_who_waits_to_write_names_the_process_that_holds_the_lock_now_and_calls_only_a_stopped_one_stopped(
    app, url, monkeypatch, caplog
):
    monkeypatch.setattr("holdfast.store.sqlite.REPORT_SECONDS", 0.0)
    driver = app.store.connect()

    def told() -> str:
        caplog.clear()
        driver.look(time.monotonic() + 1)
        return caplog.messages[-1] if caplog.messages else ""

    with (
        subprocess.Popen(
            [sys.executable, "-c", _HOLD, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder,
        ThreadPoolExecutor(1) as pool,
    ):
        try:
            assert holder.stdout.readline() == "held\n"
            waits = pool.submit(app.store.write, lambda tx: tx.record("written"))
            wait_for(lambda: f"process {holder.pid} holds the lock and is at work" in told())
            assert "end it" not in told()
            holder.send_signal(signal.SIGSTOP)
            wait_for(lambda: f"process {holder.pid} holds the lock and is stopped" in told())
            assert f"kill -CONT {holder.pid}" in told()
            holder.send_signal(signal.SIGCONT)
            holder.stdin.write("\n")
            holder.stdin.flush()
            waits.result(20)
        finally:
            holder.kill()
    assert told() == ""


@pytest.fixture
def queue(app):
    """The lock file as another process has it open, and the number of an innocent process in it."""
    app.store.write(lambda tx: tx.record("written"))
    with open(f"{app.store.where}-writer", "r+b") as file:
        file.write(b"%-20d\n" % os.getppid())
        file.flush()
        yield file.fileno()


NOBODY = "other processes hold the lock in turn, or one that cannot be seen from here"


@pytest.mark.req("P10")
def test_a_process_that_held_the_lock_before_is_not_named(queue):
    """Its number is still in the file."""
    assert sqlite_locks.holder(queue) == NOBODY


@pytest.mark.req("P10")
@pytest.mark.parametrize("how", [fcntl.LOCK_EX, fcntl.LOCK_SH], ids=["to write", "to read"])
def test_who_holds_the_lock_is_named_whatever_the_file_says(queue, app, how):
    with _in_a_process(lambda: fcntl.flock(os.open(f"{app.store.where}-writer", os.O_RDWR), how)) as pid:
        assert f"process {pid} holds the lock" in sqlite_locks.holder(queue)


@as_root
@pytest.mark.req("P10")
def test_a_process_of_another_user_is_named_with_its_user(queue, app):
    def lock():
        opened = os.open(f"{app.store.where}-writer", os.O_RDWR)
        become_user()
        fcntl.flock(opened, fcntl.LOCK_EX)

    with _in_a_process(lock) as pid:
        assert f"process {pid} of {user_name(USER)} holds the lock" in sqlite_locks.holder(queue)


@pytest.mark.req("P10")
def test_a_process_that_does_not_have_the_file_open_is_not_named(queue, tmp_path, monkeypatch):
    """Its number was that of the process which took the lock, and left it to a child; or it is about another file system."""
    found = os.fstat(queue)
    locks = tmp_path / "locks"
    monkeypatch.setattr(sqlite_locks, "LOCKS", locks)
    with _in_a_process(lambda: _close(queue)) as pid:
        locks.write_text(f"1: FLOCK  ADVISORY  WRITE {pid} {_place(found)} 0 EOF\n")
        assert sqlite_locks.holder(queue) == NOBODY
    assert sqlite_locks.holder(queue) == NOBODY


@pytest.mark.req("P10")
def test_where_the_system_tells_of_no_locks_only_a_process_that_lives_is_named(queue, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_locks, "LOCKS", tmp_path / "nothing")
    assert sqlite_locks.holder(queue) == f"process {os.getppid()} was the last to take the lock"
    with _in_a_process(lambda: None) as pid:
        pass
    for odd in (str(pid), "-1", "", "x"):
        os.pwrite(queue, b"%-20s\n" % odd.encode(), 0)
        assert sqlite_locks.holder(queue) == "this system does not tell who holds the lock"


@pytest.mark.fault(40)
@pytest.mark.req("P10")
@pytest.mark.parametrize(("first", "length"), [(120, 1), (0, 0)], ids=["the byte for writing", "everything"])
def test_who_holds_a_lock_of_sqlites_own_is_named_also_if_it_may_only_read(app, path, monkeypatch, first, length):
    monkeypatch.setattr(sqlite_files, "BUSY_SECONDS", 0.05)
    app.pipeline({"a": []})
    app.store.close()
    app.store.connect()

    def lock():
        fcntl.lockf(os.open(f"{path}-shm", os.O_RDONLY), fcntl.LOCK_SH, length, first)

    with _in_a_process(lock) as pid:
        with pytest.raises(StoreUnavailable, match=f"is locked by another program, process {pid}$"):
            app.store.write(lambda tx: tx.record("written"), patience_seconds=0)
    app.store.write(lambda tx: tx.record("written"))


@contextmanager
def _in_a_process(work):
    """A process that does this and stays."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(writing, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"."
        yield pid
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _close(queue):
    found = os.fstat(queue)
    for one in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.path.samestat(os.fstat(one), found):
                os.close(one)


def _place(found):
    return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"


@pytest.mark.req("V7")
@pytest.mark.parametrize("given_away", [False, True])
def test_a_lock_file_that_somebody_has_closed_is_a_broken_store_and_no_other_file_is_written_to(
    app, tmp_path, given_away
):
    """The number of a descriptor that was closed is given to the next file that is opened."""
    driver = app.store.connect()
    queue = driver.descriptors()[0]
    os.close(queue)
    other = tmp_path / "thesis"
    other.write_bytes(b"my thesis\n" * 10)
    if given_away:
        opened = os.open(other, os.O_RDWR)
        taken = os.dup2(opened, queue)  # a lower number may have become free meanwhile
    for _ in range(2):
        with pytest.raises(StoreBroken, match=r"lock file .* cannot be used any more"):
            app.store.write(lambda tx: tx.record("written"))
    app.store.close()
    assert other.read_bytes() == b"my thesis\n" * 10
    if given_away:
        os.close(taken)  # it is still ours
        if opened != taken:
            os.close(opened)


def test_a_watch_that_somebody_has_closed_is_a_broken_store(app):
    news = app.store.listener()
    assert news.wait(0) is None
    os.close(news._touches._descriptor)
    with pytest.raises(StoreBroken, match="closed files"):
        news.wait(0.02)
    news.close()
