"""Who may use the files of a SQLite store, and whose files it uses.

The mode of the database decides for all of them. SQLite gives `-wal` and `-shm` the same mode. Only users who may write to the
database can open the lock file, since the right to read a file is enough to lock it.

A file beside the database that another user put there is refused: the log is copied into the database, and the lock file is
written to.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from pathlib import Path

from holdfast.errors import StoreBroken, UsageError

#: The environment variable with the mode of new databases.
FILE_MODE = "HOLDFAST_FILE_MODE"
BESIDE = ("-wal", "-shm", "-journal")

_KINDS = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
_ROOT = 0


def file_mode() -> int:
    """The mode of a new database."""
    given = os.environ.get(FILE_MODE) or "0600"
    if not re.fullmatch("0?6[046][04]", given):
        raise UsageError(
            f"{FILE_MODE}={given}: write 0600 for the owner alone, 0640 or 0660 to let a group read or write, 0644 or 0664 to "
            f"let everybody read"
        )
    return int(given, 8)


def lock_mode(database: os.stat_result) -> int:
    """The mode of the lock file: users who may write to the database may read and write it."""
    writers = database.st_mode & 0o222
    return writers | writers << 1


def check_files(path: Path) -> None:
    """Refuse a database that has a second name, and files that others have put beside it."""
    try:
        database = os.lstat(path)
    except OSError:
        return  # Opening it will say what is wrong.
    check_kind(path, database)
    for end in BESIDE:
        file = Path(f"{path}{end}")
        try:
            found = os.lstat(file)
        except FileNotFoundError:
            continue
        check_kind(file, found)
        check_owner(file, found, path, database)


def check_kind(file: Path, found: os.stat_result) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise StoreBroken(f"{file} is {_KINDS.get(kind, 'a device')}, not a file: find out who made it, and remove it")
    if found.st_nlink > 1:
        raise StoreBroken(
            f"{file} has {found.st_nlink} names (hard links): to write to it under two names damages it, or what else has that "
            f"name; remove the other one, or use a copy"
        )


def check_owner(file: Path, found: os.stat_result, path: Path, database: os.stat_result) -> None:
    """Refuse a file beside the database whose owner could not have written to the database as well."""
    if found.st_uid in (os.geteuid(), _ROOT, database.st_uid) or database.st_mode & stat.S_IWOTH:
        return
    if database.st_mode & stat.S_IWGRP and found.st_gid == database.st_gid:
        # In a folder open to everybody the group proves nothing: it may come from the folder.
        if not os.stat(path.parent).st_mode & stat.S_IWOTH:
            return
    raise StoreBroken(
        f"{file} belongs to {user_name(found.st_uid)}, who has no right to write to {path.name}: find out why it is there, and "
        f"remove it"
    )


def check_planted(path: Path) -> None:
    """Refuse a file or a link that another user put into a folder such as /tmp, where everybody may create files."""
    try:
        found, folder = os.lstat(path), os.stat(path.parent)
    except OSError:
        return
    open_to_all = stat.S_ISVTX | stat.S_IWOTH
    if folder.st_mode & open_to_all != open_to_all or found.st_uid in (os.geteuid(), _ROOT, folder.st_uid):
        return
    raise StoreBroken(
        f"{path} belongs to {user_name(found.st_uid)} and lies in a folder where everybody may put files: what you keep in it "
        f"would be theirs; use a folder of your own"
    )


def user_name(number: int) -> str:
    """A user's name; the number where there is none, as in many containers."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
