"""Reading a SQLite file without the right to write it.

A reader creates no files, waits in no queue, never checkpoints, and has the file open only while it answers. How it opens the
file depends on what is beside it:

- **No log, or an empty one.** The file holds everything, and only the checkpoint of a later writer could change it. It is read
  as it is (`immutable`). If it was written to in the meantime, the answer is thrown away and the read is repeated.
- **A log.** SQLite reads both files, read-only, beside any writer.
- **A log that SQLite cannot read without writing.** Its index (`-shm`) is missing or unusable, as after a crash or in a copy of
  the folder, and the reader has no right to create it. Both files are copied to a temporary folder and read there. The copy is
  good if neither file was written to meanwhile, since SQLite can recover from the state of the disk at any instant. It is
  kept until one of the files changes.

The time stamp of a file shows whether it was written to. `_settled` handles the one case in which that is not enough.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import StoreBroken, StoreConflict
from holdfast.store.driver import Begun, quietly
from holdfast.store.sqlite import SQLite, refuse_inherited
from holdfast.store.sqlite_files import check_place, connect, opened, translated
from holdfast.store.sqlite_permissions import user_name

#: Larger files are not copied.
COPIED_BYTES = 256 * 1024 * 1024

#: Two changes further apart than this have different time stamps: on file systems whose stamps have fractions of a second, and
#: on others.
FINE_NS, COARSE_NS = 20_000_000, 2_000_000_000

#: How many steps of SQLite's machine lie between two looks at the clock: a fraction of a millisecond.
STEPS = 10_000

#: Differs if a file was written to or replaced; None without a file.
Stamp = tuple[int, int, int, int] | None

#: SQLite would have to write to the file or in its folder.
_NEEDS_TO_WRITE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


class SQLiteReader(SQLite):
    """A connection to a SQLite file that is open only during a read."""

    def __init__(self, path: Path, clock: Clock) -> None:
        refuse_inherited(path)
        self._set_up(path, clock)
        #: There is a connection only during a read.
        self.closed = True
        check_place(path)
        #: When the read that runs is to be ended.
        self._give_up_at: float | None = None
        #: The stamp of the file before it was read without a lock.
        self._unlocked: Stamp = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._copied: list[Stamp] = []
        opened.add(path)

    def begin_read(self, within_seconds: float | None = None) -> Begun:
        self._give_up_at = None if within_seconds is None else time.monotonic() + within_seconds
        self._check()
        try:
            self._open_file()
        except sqlite3.Error as error:
            told = translated(error, self.path)
            if told is None:
                raise
            raise told from error
        return Begun(self._clock.now(), self._clock.steady(), -1, True, self._clock.elapsed())

    def check_read(self) -> None:
        if self._unlocked is not None and _stamp(self.path) != self._unlocked:
            raise StoreConflict(f"{self.path} was written to while it was read")

    def rollback(self) -> None:
        if self.pid == os.getpid():
            self._unlocked = None
            self._end()

    def close(self) -> None:
        if self.pid == os.getpid():
            self.rollback()
            self._drop_copy()

    def ready(self) -> None:
        raise NotImplementedError("a reader answers between begin_read and rollback")

    def _begin_immediate(self) -> None:
        raise NotImplementedError("a reader writes nothing")

    def _check(self) -> None:
        if self.pid != os.getpid():
            refuse_inherited(self.path)
        if replaced := self._replaced():
            raise replaced
        if not self.path.exists():
            raise StoreBroken(f"{self.path} does not exist any more")
        if not os.access(self.path, os.R_OK):
            raise StoreBroken(f"{self.path} cannot be read: ask its owner, {self._owner()}, for the right to read it")

    def _journal_mode(self) -> str:
        # Without a lock SQLite does not read it.
        return "not in use" if self._unlocked is not None else super()._journal_mode()

    # Opening ------------------------------------------------------------------------------------------------------

    def _open_file(self) -> None:
        if self._copy is not None:
            if self._copied == self._stamps():
                self._begin(Path(self._copy.name, self.path.name), "mode=rw")
                return
            self._drop_copy()
        if self._is_at_rest():
            stamp = _settled(self.path)
            # The stamp comes first: with a log, it could stand for half of a checkpoint.
            if self._is_at_rest():
                self._unlocked = stamp
                self._begin(self.path, "mode=ro&immutable=1")
                return
        may_write = os.access(self.path, os.W_OK)
        try:
            # All connections of a process share one index: while it is open read-only, none of them can write.
            self._begin(self.path, "mode=ro" if may_write else "mode=ro&readonly_shm=1")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF not in _NEEDS_TO_WRITE:
                raise
            self._remove_stray_log()
            if self._is_at_rest():
                raise StoreConflict(f"{self.path} was closed while it was opened to be read") from error
            self._copy_aside()

    def _is_at_rest(self) -> bool:
        return not _size(self._beside("-wal")) and not _size(self._beside("-journal"))

    def _begin(self, file: Path, how: str) -> None:
        self._conn = connect(file, how)
        self.closed = False
        try:
            for setting in ("temp_store = MEMORY", "cache_size = -32000", "synchronous = FULL"):
                self._conn.execute(f"PRAGMA {setting}")
            if (until := self._give_up_at) is not None:
                self._conn.set_progress_handler(lambda: time.monotonic() > until, STEPS)
            self._conn.execute("BEGIN")
            # Takes the snapshot now, and raises now what SQLite cannot read.
            self._conn.execute("PRAGMA schema_version").fetchall()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        if self._conn is not None:
            with quietly(sqlite3.Error):
                self._conn.close()
            self._conn = None
        self.closed = True

    def _remove_stray_log(self) -> None:
        """Remove the log that SQLite creates if the last writer closes the file just before it is opened here. If the reader
        may write in the folder but not to the file, that log belongs to the reader, and the next writer could not use it."""
        log = self._beside("-wal")
        with quietly(OSError):
            found = log.stat()
            if not found.st_size and found.st_uid == os.geteuid() != self.path.stat().st_uid:
                log.unlink()

    # Copying ------------------------------------------------------------------------------------------------------

    def _copy_aside(self) -> None:
        files = [file for file in (self.path, self._beside("-wal"), self._beside("-journal")) if file.exists()]
        size = sum(map(_size, files))
        if size > COPIED_BYTES:
            raise StoreBroken(
                f"{self.path} was left behind by a crash or copied without its -shm file, and only a user who may write in "
                f"its folder can open it: run `holdfast status` on it as {self._owner()}, or start a worker, and ask again; "
                f"a copy of {size >> 20} MB to read is over the limit of {COPIED_BYTES >> 20} MB"
            )
        for file in files:
            _settled(file)
        before = self._stamps()
        with ExitStack() as stack:
            try:
                folder = tempfile.TemporaryDirectory(prefix="holdfast-")
                stack.callback(folder.cleanup)
                # In another process: closing a descriptor of the file here would drop the locks that SQLite holds on it.
                done = subprocess.run(["cp", "--", *files, folder.name], capture_output=True, text=True)
            except OSError as error:
                raise StoreBroken(f"{self.path} cannot be copied to be read: {error}") from error
            if self._stamps() != before:
                raise StoreConflict(f"{self.path} was written to while it was copied to be read")
            if done.returncode:
                raise StoreBroken(f"{self.path} cannot be copied to be read: {done.stderr.strip()}")
            self._begin(Path(folder.name, self.path.name), "mode=rw")
            stack.pop_all()
        self._copy, self._copied = folder, before

    def _drop_copy(self) -> None:
        if self._copy is not None:
            self._copy.cleanup()
            self._copy, self._copied = None, []

    def _stamps(self) -> list[Stamp]:
        return [_stamp(file) for file in (self.path, self._beside("-wal"), self._beside("-journal"))]

    def _beside(self, end: str) -> Path:
        return Path(f"{self.path}{end}")

    def _owner(self) -> str:
        return user_name(self.path.stat().st_uid)


def _stamp(file: Path) -> Stamp:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _settled(file: Path) -> Stamp:
    """The stamp of a file, once any further change would show in it. Clocks of file systems tick slowly, and two changes
    within one tick have the same stamp."""
    while True:
        stamp = _stamp(file)
        if stamp is None:
            return None
        changed_at = stamp[3]
        left = changed_at + (FINE_NS if changed_at % 1_000_000_000 else COARSE_NS) - time.time_ns()
        # A time in the future was set before the clock was turned back.
        if not 0 < left <= COARSE_NS:
            return stamp
        time.sleep(left / 1e9)


def _size(file: Path) -> int:
    try:
        return os.stat(file).st_size
    except FileNotFoundError:
        return 0
