"""Which process holds a lock on a file of a SQLite store. Linux tells, in `/proc/locks`.

A process is named only if it has that file open. The number in the lock file may be old or forged. The system names the process
that took a lock, which may have passed it to a child and ended. And numbers of processes and files are used again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.store.driver import quietly
from holdfast.store.sqlite_permissions import user_name

LOCKS = Path("/proc/locks")

#: Bytes of the `-shm` file that SQLite locks to write, to checkpoint and to recover; and to read.
WRITING, READING = range(120, 123), range(123, 128)


def holder(queue: int) -> str:
    """Which process holds the write lock now, and whether it is stopped."""
    try:
        holders = sorted(_holders(queue, "FLOCK"))
    except OSError:
        return _last_holder(queue)
    if not holders:
        return "other processes hold the lock in turn, or one that cannot be seen from here"
    process = holders[0]
    if process == os.getpid():
        return f"{described(process)} holds the lock in another thread"
    if _is_stopped(process):
        return f"{described(process)} holds the lock and is stopped: let it go on (kill -CONT {process}), or end it"
    return f"{described(process)} holds the lock and is at work, in a long transaction"


def in_the_way(path: Path) -> str:
    """The other processes that hold the locks a writer needs from SQLite, as the end of a sentence."""
    with quietly(OSError):
        others = _holders(Path(f"{path}-shm"), "POSIX", WRITING) - {os.getpid()}
        return "".join(f", {described(process)}" for process in sorted(others))
    return ""


def readers(path: Path) -> set[int]:
    """Processes that are in a transaction on this database; OSError where the system does not tell."""
    return _holders(Path(f"{path}-shm"), "POSIX", READING)


def described(process: int) -> str:
    """A process, with its user if that is another one."""
    if process == os.getpid():
        return f"process {process}, this one,"
    with quietly(OSError):
        owner = os.stat(f"/proc/{process}").st_uid
        if owner != os.geteuid():
            return f"process {process} of {user_name(owner)}"
    return f"process {process}"


def _holders(file: Path | int, kind: str, places: range = range(0)) -> set[int]:
    """Processes that hold such a lock on a file, or on one of these bytes of it; OSError where the system does not tell."""
    found = os.stat(file)
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    named = set()
    for lock in _locks():
        if lock[0] != kind or not lock[4].endswith(f":{found.st_ino}"):
            continue
        if places and (int(lock[5]) > places[-1] or (lock[6] != "EOF" and int(lock[6]) < places[0])):
            continue
        if _has_open(int(lock[3]), found, lock[4] == f"{device}:{found.st_ino}"):
            named.add(int(lock[3]))
    return named


def _locks() -> Iterator[list[str]]:
    """Kind, mode, access, process, device and inode, first and last byte, of each lock that is held."""
    for line in LOCKS.read_text().splitlines():
        lock = line.split()[1:]
        if lock[0] != "->":  # a process that waits
            yield lock


def _has_open(process: int, found: os.stat_result, same_device: bool) -> bool:
    try:
        files = list(Path(f"/proc/{process}/fd").iterdir())
    except PermissionError:
        # Another user's. The device may differ from what the file itself reports; then nobody is named.
        return same_device
    except OSError:
        return False
    for file in files:
        with quietly(OSError):
            if os.path.samestat(os.stat(file), found):
                return True
    return False


def _last_holder(queue: int) -> str:
    last = os.pread(queue, 20, 0).decode(errors="replace").strip()
    with quietly(ProcessLookupError):
        if last.isdecimal():
            with quietly(PermissionError):
                os.kill(int(last), 0)
            return f"process {last} was the last to take the lock"
    return "this system does not tell who holds the lock"


def _is_stopped(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in ("T", "t")
