"""On a machine with other users: they can neither read, block nor misdirect a store that was not opened to them."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import sqlite3
import stat
import tempfile
from pathlib import Path

import pytest

from holdfast.crashtest.copies import copies_for
from holdfast.errors import StoreBroken, UsageError
from holdfast.store import open_store
from holdfast.store.sqlalchemy_engine import store_engine
from holdfast.store.sqlite_permissions import FILE_MODE
from tests.support.forking import in_a_child
from tests.support.other_user import USER, as_root, as_user

pytestmark = pytest.mark.req("P10")

TREASURE = b"what another file has in it\n" * 100
SIDES = ["-writer", "-wal", "-shm", "-journal"]
#: Another one.
NEIGHBOUR = USER - 1


@pytest.fixture(autouse=True)
def no_mode_in_the_environment(monkeypatch):
    monkeypatch.delenv(FILE_MODE, raising=False)


@pytest.fixture
def folder():
    """Open to everybody, as /tmp is."""
    # Not in pytest's own folder, which nobody else may enter.
    folder = Path(tempfile.mkdtemp(prefix="hf-shared-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def path(folder):
    """A store that nobody has open."""
    path = folder / "store.db"
    _use(path)
    Path(f"{path}-writer").unlink()
    return path


def _use(path):
    store = open_store(f"sqlite:///{path}")
    try:
        store.upgrade()
        store.write(lambda tx: tx.record("written"))
    finally:
        store.close()


def _ask(path):
    store = open_store(f"sqlite:///{path}", create=False).reader()
    try:
        return store.schema_version()
    finally:
        store.close()


def _of(use, *arguments):
    """What is said to whoever does this."""
    try:
        use(*arguments)
    except StoreBroken as error:
        return str(error)
    return "done"


@pytest.mark.parametrize("end", SIDES)
@pytest.mark.parametrize("kind", ["a link", "a dangling link", "a hard link", "a FIFO", "a folder", "a socket"])
def test_what_is_no_file_of_its_own_beside_a_store_is_refused_at_once_and_left_alone(path, folder, kind, end):
    treasure, odd = folder / "treasure", Path(f"{path}{end}")
    treasure.write_bytes(TREASURE)
    if kind in ("a link", "a dangling link"):
        odd.symlink_to(treasure if kind == "a link" else folder / "nothing")
    elif kind == "a hard link":
        odd.hardlink_to(treasure)
    elif kind == "a FIFO":
        os.mkfifo(odd)
    elif kind == "a folder":
        odd.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(odd))
    before = path.read_bytes()
    expected = "has 2 names" if kind == "a hard link" else f"is {kind.replace('dangling ', '')}, not a file"
    for use in (_use, _ask) if end != "-writer" else (_use,):
        # In a process of its own: some of these would keep whoever opens them waiting.
        assert f"{odd} {expected}" in in_a_child(lambda use=use: _of(use, path))
    assert treasure.read_bytes() == TREASURE
    assert not (folder / "nothing").exists()
    assert path.read_bytes() == before


@as_root
@pytest.mark.parametrize("end", SIDES)
def test_a_file_of_a_stranger_beside_a_store_is_refused(path, end):
    os.chown(path, NEIGHBOUR, NEIGHBOUR)
    planted = Path(f"{path}{end}")
    assert as_user(lambda: planted.write_bytes(b"")) == "0"
    planted.chmod(0o666)
    for use in (_use, _ask) if end != "-writer" else (_use,):
        said = as_user(lambda use=use: _of(use, path), NEIGHBOUR)
        assert f"{planted} belongs to {_name(USER)}, who has no right to write to store.db" in said
    assert planted.read_bytes() == b""


@as_root
def test_a_log_that_a_stranger_has_forged_does_not_get_into_the_store(path, folder):
    """SQLite copies a log into its database, whoever wrote it."""
    forged = folder / "forged.db"
    shutil.copy(path, forged)
    conn = sqlite3.connect(forged, isolation_level=None)
    conn.execute("PRAGMA journal_mode = WAL")
    conn.execute("CREATE TABLE forged (x)")
    shutil.copy(f"{forged}-wal", f"{path}-wal")
    conn.close()
    os.chown(f"{path}-wal", USER, USER)
    assert f"belongs to {_name(USER)}" in _of(_use, path)
    Path(f"{path}-wal").unlink()
    _use(path)
    with sqlite3.connect(path) as conn:
        assert conn.execute("SELECT name FROM sqlite_master WHERE name = 'forged'").fetchall() == []
    conn.close()


@as_root
def test_a_store_that_a_stranger_has_put_where_everybody_may_is_not_written_to_and_can_be_read(path):
    os.chown(path, USER, USER)
    path.chmod(0o666)
    said = as_user(lambda: _of(_use, path), NEIGHBOUR)
    assert f"{path} belongs to {_name(USER)} and lies in a folder where everybody may put files" in said
    assert as_user(lambda: _of(_ask, path), NEIGHBOUR) == "'done'"


@as_root
def test_a_link_that_a_stranger_has_put_where_everybody_may_leads_nowhere(path, folder):
    link = folder / "link.db"
    assert as_user(lambda: link.symlink_to(path)) == "None"
    assert f"{link} belongs to {_name(USER)}" in _of(_use, link)
    link.unlink()
    link.symlink_to(path)
    assert _of(_use, link) == "done"


@as_root
def test_a_lock_file_that_root_makes_is_the_owners_who_can_go_on(path, folder):
    for file in (folder, path):
        os.chown(file, USER, USER)
    _use(path)
    assert os.stat(f"{path}-writer").st_uid == USER
    assert as_user(lambda: _of(_use, path)) == "'done'"


def _name(user):
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


# Modes ----------------------------------------------------------------------------------------------------------------


def _modes(path):
    return {file.name: oct(stat.S_IMODE(file.stat().st_mode)) for file in path.parent.glob(f"{path.name}*")}


def _modes_in_use(path, umask=0o022):
    """The modes of the files of a store that is made with this umask, while it is in use."""
    os.umask(umask)
    store = open_store(f"sqlite:///{path}")
    store.upgrade()
    found = _modes(path)
    store.close()
    return found


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777], ids=oct)
@pytest.mark.parametrize(
    ("given", "mode", "lock"),
    [
        (None, "0o600", "0o600"),
        ("0640", "0o640", "0o600"),
        ("660", "0o660", "0o660"),
        ("0644", "0o644", "0o600"),
        ("0664", "0o664", "0o660"),
    ],
)
def test_files_have_the_mode_that_was_asked_for_and_the_lock_file_is_for_those_who_write(
    folder, monkeypatch, umask, given, mode, lock
):
    if given:
        monkeypatch.setenv(FILE_MODE, given)
    expected = {"new.db": mode, "new.db-wal": mode, "new.db-shm": mode, "new.db-writer": lock}
    said = in_a_child(lambda: _modes_in_use(folder / "new.db", umask) == expected or _modes(folder / "new.db"))
    assert said == "True"


@pytest.mark.parametrize("given", ["0666", "0602", "0700", "0400", "rw", "", "-1", "06000"])
def test_a_mode_that_cannot_be_meant_is_refused_and_nothing_is_made(folder, monkeypatch, given):
    monkeypatch.setenv(FILE_MODE, given or "0")
    with pytest.raises(UsageError, match=r"HOLDFAST_FILE_MODE=.*: write 0600 for the owner alone"):
        open_store(f"sqlite:///{folder}/new.db")
    assert list(folder.iterdir()) == []


def _denied(use):
    try:
        use()
    except PermissionError:
        return True
    return False


@as_root
def test_a_stranger_can_neither_read_nor_lock_any_file_of_a_store(folder):
    store = open_store(f"sqlite:///{folder}/new.db")
    store.upgrade()
    files = sorted(folder.glob("new.db*"))
    assert len(files) == 4
    assert as_user(lambda: [_denied(lambda file=file: file.open("rb")) for file in files]) == str([True] * 4)
    store.close()


@as_root
def test_who_may_read_can_ask_and_cannot_open_the_lock_file(folder, monkeypatch):
    monkeypatch.setenv(FILE_MODE, "0644")
    in_a_child(lambda: _write_and_die(folder / "new.db"))
    assert as_user(lambda: _of(_ask, folder / "new.db")) == "'done'"
    assert as_user(lambda: _denied(lambda: os.open(f"{folder}/new.db-writer", os.O_RDONLY))) == "True"


@as_root
def test_a_store_of_the_version_before_goes_on_and_its_lock_file_is_closed_to_readers_by_its_owner(path, folder):
    """It made files that everybody may read."""
    lock = Path(f"{path}-writer")
    lock.touch()
    for file in (path, lock):
        os.chown(file, USER, USER)
        file.chmod(0o644)
    assert as_user(lambda: _of(_use, path)) == "'done'"
    assert _modes(path) == {"store.db": "0o644", "store.db-writer": "0o600"}


@as_root
def test_members_of_a_group_share_a_store_and_nobody_else_does(folder, monkeypatch):
    monkeypatch.setenv(FILE_MODE, "0660")
    group, path = NEIGHBOUR - 1, folder / "team" / "store.db"
    path.parent.mkdir()
    os.chown(path.parent, -1, group)
    path.parent.chmod(0o2775)
    for user in (USER, NEIGHBOUR, USER, NEIGHBOUR):
        # Whoever comes first leaves the log to the other, as a kill does.
        assert as_user(lambda: _write_and_die(path), user, [group]) == ""
        assert as_user(lambda: _of(_use, path), USER + NEIGHBOUR - user, [group]) == "'done'"
    assert as_user(lambda: _denied(lambda: path.open("rb")), USER - 10) == "True"
    assert as_user(lambda: _denied(lambda: os.open(f"{path}-writer", os.O_RDONLY)), USER - 10) == "True"


def _write_and_die(path):
    store = open_store(f"sqlite:///{path}")
    store.upgrade()
    store.write(lambda tx: tx.record("written"))
    os._exit(0)


@as_root
def test_in_a_folder_for_everybody_the_group_of_a_file_says_nothing(folder, monkeypatch):
    """A folder may hand its group on to whatever is made in it."""
    monkeypatch.setenv(FILE_MODE, "0660")
    os.chown(folder, -1, NEIGHBOUR)
    folder.chmod(0o3777)
    _use(folder / "new.db")
    planted = folder / "new.db-wal"
    assert as_user(lambda: planted.touch(0o660)) == "None"
    assert planted.stat().st_gid == NEIGHBOUR
    assert f"belongs to {_name(USER)}" in _of(_use, folder / "new.db")


def test_a_store_that_the_users_own_tables_make_has_the_same_mode(folder):
    path = folder / "new.db"
    with store_engine(f"sqlite:///{path}").begin() as conn:
        conn.exec_driver_sql("CREATE TABLE mine (x)")
    assert _modes(path) == {"new.db": "0o600"}


def test_copies_that_a_crash_test_makes_are_for_its_user_alone(path, folder):
    path.chmod(0o644)
    with copies_for(None, folder, str(path)) as copies:
        file = Path(copies.url.removeprefix("sqlite:///"))
        copies.keep()
        assert set(_modes(file).values()) == {"0o600"}
        assert set(_modes(file.with_name("kept.db")).values()) == {"0o600"}
        copies.fresh()
        assert _modes(file) == {"store.db": "0o600"}
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
