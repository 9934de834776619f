"""On a machine with other users: what they put beside a store is not used."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import tempfile
from pathlib import Path

import pytest

from holdfast.errors import StoreBroken
from holdfast.store import open_store
from tests.support.forking import in_a_child
from tests.support.other_user import USER, as_root, as_user

pytestmark = pytest.mark.req("P10")

TREASURE = b"what another file has in it\n" * 100
SIDES = ["-writer", "-wal", "-shm", "-journal"]
#: Another one.
NEIGHBOUR = USER - 1


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
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
