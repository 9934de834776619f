"""The files of a SQLite store: where they may be, how they are opened, and what their errors mean."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

from holdfast.errors import StoreBroken, StoreConflict, StoreError, StoreUnavailable, UsageError
from holdfast.store.database_errors import AS_OURS, kind_of, sqlite_code_of
from holdfast.store.driver import quietly
from holdfast.store.sqlite_locks import in_the_way
from holdfast.store.sqlite_permissions import check_files, check_kind, check_owner, check_planted, file_mode, lock_mode

#: Files that this process has opened: one that is missing now was removed.
opened: set[Path] = set()

#: The first with strict tables and with ->> that reads JSON as our statements do.
OLDEST_SQLITE = (3, 38, 0)

#: How long one call waits for a program that holds SQLite's lock without queueing for ours.
BUSY_SECONDS = 2.0

#: A disk with less free space counts as full: the log of a single write may need more.
FULL_BYTES = 1 << 20

MOUNTS = Path("/proc/self/mountinfo")
_SHARED_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "9p",
        "ncpfs",
        "ocfs2",
        "gfs2",
        "beegfs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph",
    }
)


def file_of(url: str) -> Path:
    """The file that an address names, with links resolved: one database has one name."""
    rest = url.removeprefix("sqlite://")
    if not rest.startswith("/") or "?" in rest or rest in ("/", "/:memory:"):
        raise UsageError(f"store {url!r}: write sqlite:///file.db, or sqlite:////folder/file.db for an absolute path")
    named = unquote(rest[1:])
    if os.path.islink(named):
        check_planted(Path(named))
    path = Path(os.path.realpath(named))
    try:
        if path.is_dir():
            raise StoreBroken(f"{path} is a folder, not a database file")
    except PermissionError:
        raise StoreBroken(f"{path} cannot be reached: you need the right to enter its folder") from None
    return path


def check_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise StoreBroken(f"{path.parent} does not exist: make the folder first, or name another store")
    mount, kind = _mount_of(path)
    if mount == str(path):
        raise StoreBroken(
            f"{path} is mounted by itself, without the log that belongs beside it: mount the folder, not the file"
        )
    if kind in _SHARED_FILE_SYSTEMS and not os.environ.get("HOLDFAST_ALLOW_SHARED_FILE_SYSTEM"):
        raise StoreBroken(
            f"{path} lies on a shared file system ({kind}), where SQLite loses data: use a local disk, or PostgreSQL"
        )


def free_bytes(folder: Path) -> int:
    """The free space for this user; only root may use the reserved part."""
    found = os.statvfs(folder)
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)


def open_lock_file(path: Path, ending: str = "writer") -> int:
    """A lock file beside the database, that of the writers or another one, created if it is missing."""
    file = Path(f"{path}-{ending}")
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        database = os.stat(path)
        mode = lock_mode(database)
        try:
            # In a folder that everybody may write to, kernels refuse O_CREAT for another user's file.
            queue = os.open(file, flags)
        except FileNotFoundError:
            queue = os.open(file, flags | os.O_CREAT, mode)
    except OSError as error:
        with quietly(OSError):
            check_kind(file, os.lstat(file))
        raise StoreBroken(
            f"cannot write beside {path} ({error.strerror}): holdfast needs to write in its folder"
        ) from None
    try:
        found = os.fstat(queue)
        check_kind(file, found)
        check_owner(file, found, path, database)
        if os.geteuid() == 0 and found.st_uid != database.st_uid:
            # As SQLite does with its own files.
            os.fchown(queue, database.st_uid, database.st_gid)
        if os.geteuid() in (0, found.st_uid) and stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(queue, mode)
    except BaseException:
        os.close(queue)
        raise
    return queue


def make_database(path: Path) -> None:
    """Create an empty database if there is none, with the configured mode, whatever the umask is."""
    check_place(path)
    if path.exists():
        return
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}-mode-") as pattern:
            os.fchmod(pattern.fileno(), file_mode())
            # SQLite creates it: if we did, closing it could drop the locks of a thread that opened it in the meantime.
            connect(path, f"mode=rwc&modeof={quote(pattern.name)}").close()
    except OSError as error:
        raise StoreBroken(f"{path} cannot be made ({error.strerror}): holdfast needs to write in its folder") from None


def connect(path: Path, how: str) -> sqlite3.Connection:
    """Open the file; `how` is the query of SQLite's URI, such as `mode=rw`."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreBroken(
            f"holdfast needs SQLite 3.38 or newer, and this Python has {sqlite3.sqlite_version}: "
            "use a newer Python, or PostgreSQL"
        )
    check_files(path)
    try:
        conn = sqlite3.connect(
            f"file:{quote(str(path))}?{how}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_SECONDS,
            cached_statements=256,
        )
    except sqlite3.Error as error:
        raise translated(error, path) or StoreBroken(f"{path}: {error}") from error
    if path in _with_odd_text:
        conn.text_factory = _readable
    return conn


#: Files in which a text was found that is not UTF-8, which only somebody else can have written. It is read with replacements
#: from then on: a function that is called for every text costs too much for all files.
_with_odd_text: set[Path] = set()


def _readable(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def read_odd_text(conn: sqlite3.Connection, path: Path, error: sqlite3.Error) -> StoreConflict | None:
    """If this error is about text that is not UTF-8, have the connection read it, and return the error that has the
    transaction run again: what the statement has changed is not known."""
    if "Could not decode to UTF-8" not in str(error):
        return None
    _with_odd_text.add(path)
    conn.text_factory = _readable
    return StoreConflict(
        f"{path}: a text in it is not UTF-8, so somebody else has written it; `holdfast db check` names it"
    )


#: The highest number that SQLite can give to a row.
HIGHEST = 2**63 - 1


def out_of_numbers(conn: sqlite3.Connection, path: Path, error: sqlite3.Error) -> StoreBroken | None:
    """What to do if SQLite says that it is full because a row has the highest number there is, which no new row can exceed."""
    if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:
        return None
    with quietly(sqlite3.Error):
        for table, seq in conn.execute("SELECT name, seq FROM sqlite_sequence").fetchall():
            # A row that was given another number leaves seq as it was.
            last = seq if seq == HIGHEST else conn.execute(f'SELECT MAX(rowid) FROM "{table}"').fetchone()[0]
            if last != HIGHEST:
                continue
            return StoreBroken(
                f"{path}: {table} can take no more rows: one has the highest number there is, so somebody else has written it. "
                f"Stop the workers; with sqlite3, delete the rows of {table} that are not holdfast's, and set seq of {table} "
                "in sqlite_sequence to the highest id that is left"
            )
    return None


def identity_of(path: Path | int) -> tuple[int, int]:
    """Device and inode of a file, by its name or descriptor; zeros if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


def lock_trouble(path: Path, error: OSError) -> StoreError:
    """The error for a lock file that cannot be used."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable(f"{path}: the disk is full")
    return StoreBroken(
        f"the lock file of {path} cannot be used any more ({error.strerror}): something in this process, a handler perhaps, "
        f"has closed files that are not its own; a new process must take over"
    )


def closed_elsewhere() -> OSError:
    return OSError(errno.EBADF, os.strerror(errno.EBADF))


def file_system(path: Path) -> str:
    """The type of the file system that holds a path, if the system tells."""
    return _mount_of(path)[1]


def _mount_of(path: Path) -> tuple[str, str]:
    """Its mount point and its type."""
    best, kind = "", "unknown"
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return best, kind
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), left.split()[4])
        if len(mount) >= len(best) and (str(path) + "/").startswith(mount.rstrip("/") + "/"):
            best, kind = mount, right.split()[0]
    return best, kind


#: Messages for the most common errors, in place of SQLite's.
_WORDS: dict[int, Callable[[Path, sqlite3.Error], str]] = {
    sqlite3.SQLITE_BUSY: lambda path, error: f"{path} is locked by another program{in_the_way(path)}",
    sqlite3.SQLITE_LOCKED: lambda path, error: f"{path} is locked",
    sqlite3.SQLITE_NOMEM: lambda path, error: f"{path}: out of memory",
    sqlite3.SQLITE_FULL: lambda path, error: f"{path}: the disk is full",
    sqlite3.SQLITE_IOERR: lambda path, error: (
        f"{path}: the disk does not read or write ({getattr(error, 'sqlite_errorname', error)})"
    ),
    sqlite3.SQLITE_READONLY: lambda path, error: f"{path} cannot be written to: it is read-only",
    sqlite3.SQLITE_CORRUPT: lambda path, error: (
        f"{path} is damaged: stop the workers, copy it aside, restore a backup or try sqlite3's .recover"
    ),
    sqlite3.SQLITE_NOTADB: lambda path, error: f"{path} is not a SQLite database",
    sqlite3.SQLITE_CANTOPEN: lambda path, error: (
        f"{path} cannot be opened ({error}): holdfast needs to read and write it, and to write in its folder"
        if path.exists() or path not in opened
        else f"{path} was removed or replaced while it was in use"
    ),
}


def translated(error: sqlite3.Error, path: Path) -> StoreError | None:
    """The StoreError for this error; None if it is not about the state of the database."""
    ours = AS_OURS.get(kind_of(error))
    words = _WORDS.get(sqlite_code_of(error) or 0)
    return ours(words(path, error) if words else f"{path}: {error}") if ours else None
