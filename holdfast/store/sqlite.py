"""SQLite: one file, any number of processes on one machine.

Writers queue on a lock file beside the database: SQLite's own waiting sleeps and polls, and can starve a process for
seconds. The file is checked before each write, so that a database which was removed or replaced is an error, and never a
new, empty database.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.clock import Clock, HostClock
from holdfast.errors import StoreBroken, StoreConflict, StoreError, UsageError
from holdfast.model.log_lines import logger
from holdfast.schema import LaterIndex
from holdfast.store.async_connection import AwaitedSQLite
from holdfast.store.database_errors import is_innocent
from holdfast.store.driver import MARKING, Begun, Driver, Forkable, Mark, Row, quietly
from holdfast.store.slow_calls import watch
from holdfast.store.sqlite_dialect import SQLiteDialect
from holdfast.store.sqlite_files import (
    FULL_BYTES,
    check_place,
    closed_elsewhere,
    connect,
    file_of,
    file_system,
    free_bytes,
    identity_of,
    lock_trouble,
    make_database,
    open_lock_file,
    opened,
    out_of_numbers,
    read_odd_text,
    translated,
)
from holdfast.store.sqlite_locks import holder
from holdfast.store.sqlite_news import FileNews
from holdfast.store.sqlite_permissions import check_files, check_planted
from holdfast.store.sqlite_run_lock import FileLock
from holdfast.store.sqlite_wal import KEPT_BYTES, log_of
from holdfast.store.statements import GENERATION, Statement
from holdfast.store.store import Store

log = logger("holdfast.store")

#: Files up to this size are checked for damage whenever `doctor` asks for facts.
LOOKED_THROUGH_BYTES = 256 * 1024 * 1024
#: A wait for the write lock is logged each time this has passed.
REPORT_SECONDS = 5.0
#: How many rows one call inserts. Each call releases the interpreter lock and has to wait for it again.
ROWS_AT_ONCE = (128, 16, 4, 1)

#: Connections that must not be closed.
_abandoned: list[sqlite3.Connection | None] = []

_from_json = msgspec.json.Decoder().decode


class SQLite(Forkable):
    """A connection to one SQLite file."""

    def _set_up(self, path: Path, clock: Clock) -> None:
        """Everything except the connection."""
        Forkable.__init__(self)
        self.path = path
        self.dialect = SQLiteDialect()
        self._marking = self.dialect.render("marking", MARKING)
        self.clock_name = clock.name
        self._clock = clock
        self._steps: dict[str, list[str]] = {}
        self._description: Sequence[Sequence[Any]] = ()
        self._waiting_since = 0.0
        self._reported_at = 0.0
        self._queue = -1
        #: Left with the commit, unless it was left at the beginning.
        self._mark: Mark | None = None
        self._identity = identity_of(path)
        self._log = log_of(path)
        self._conn: sqlite3.Connection | None = None

    def __init__(self, path: Path, clock: Clock) -> None:
        refuse_inherited(path)
        self._set_up(path, clock)
        check_place(path)
        check_planted(path)
        watch(self)
        try:
            # Only SQLite opens the file: closing any other descriptor of it would drop this process's locks.
            self._conn = connect(path, "mode=rw")
            self._mode = self._run("PRAGMA journal_mode", {})[0][0]
            self._queue = open_lock_file(path)
            self._queue_identity = identity_of(self._queue)
            self._prepare(self._conn)
            # Once more, for files that were put there between the check and the opening.
            check_files(path)
            opened.add(path)
        except BaseException:
            self.close()
            raise

    @classmethod
    def store(cls, url: str, *, create: bool, clock: Clock | None, reader: Callable[[Path, Clock], Driver]) -> Store:
        path = file_of(url)
        if not create and not path.exists():
            raise StoreBroken(f"{path} does not exist: add items to make it, or name another with --store")
        if create and not path.exists():
            # Created here and nowhere else: a connection that is reopened later must find the file.
            make_database(path)
            cls(path, clock or HostClock()).close()
        return Store(
            "sqlite",
            lambda _: cls(path, clock or HostClock()),
            str(path),
            connect_to_read=lambda _: reader(path, clock or HostClock()),
        )

    # Transactions -------------------------------------------------------------------------------------------------

    def begin(self, mark: Mark, *, exclusive: bool, in_doubt: bool) -> Begun:
        self._begin_immediate()
        fresh = bool(self._leave(mark)) if in_doubt else True
        self._mark = None if in_doubt else mark
        return Begun(self._clock.now(), self._clock.steady(), self._generation(), fresh, self._clock.elapsed())

    @property
    def far(self) -> None:
        """None: there is no round trip to save."""

    def ready(self) -> None:
        self._check()

    def begin_read(self, within_seconds: float | None = None) -> Begun:
        # Without a limit: it also writes.
        self._check()
        self._run("BEGIN", {})
        return Begun(self._clock.now(), self._clock.steady(), -1, True, self._clock.elapsed())

    def check_read(self) -> None:
        """Nothing to check: SQLite's locks keep the view consistent."""

    def _generation(self) -> int:
        [(generation,)] = self._run(f"SELECT {GENERATION}", {})
        return int(generation)

    def over(self, raw: Any) -> SQLite:
        if not isinstance(raw, sqlite3.Connection | AwaitedSQLite):
            raise UsageError(f"a connection to {self.path} is needed, not a {type(raw).__name__}")
        [(_, _, file)] = [row for row in raw.execute("PRAGMA database_list") if row[1] == "main"]
        if identity_of(Path(file)) != self._identity:
            raise UsageError(f"the connection is to {file or 'a database in memory'}, the store is {self.path}")
        if not raw.in_transaction and (raw.isolation_level is None or getattr(raw, "autocommit", None) is True):
            raise UsageError(
                f"the connection to {self.path} commits each statement by itself: begin a transaction first"
            )
        guest = SQLite.__new__(SQLite)
        guest._set_up(self.path, self._clock)
        guest._conn, guest._identity = cast(sqlite3.Connection, raw), self._identity
        return guest

    def begin_within(self) -> Begun:
        if self._conn is not None and not self._conn.in_transaction:
            # The caller's library begins its transaction with the first write, which is this one.
            self._run("BEGIN IMMEDIATE", {})
        return Begun(self._clock.now(), self._clock.steady(), self._generation(), True, self._clock.elapsed())

    def end_within(self) -> None:
        """Nothing to do: no setting was changed."""

    def begin_bare(self, lock_seconds: float = 0.0) -> int:
        self._begin_immediate()
        self._mark = None
        raw: Any = self._conn
        if hasattr(raw, "setconfig"):
            # From Python 3.12 on. Some systems forbid what migration 5 does to a definition, unless it is asked for.
            raw.setconfig(getattr(sqlite3, "SQLITE_DBCONFIG_DEFENSIVE"), False)  # noqa: B009
        return self._clock.now()

    def run(self, statement: Statement, params: dict[str, Any]) -> list[Row]:
        steps = self._steps.get(statement.name)
        if steps is None or statement.name in ("migration",):
            steps = self._steps[statement.name] = statement.text.split(";\n")
        answer: list[Row] = []
        for step in steps:
            rows = self._run(step, params)
            if self._description:
                answer = rows
                if self._description[0][0] == "packed":
                    answer = _from_json(rows[0][0])
        return answer

    def run_rows(self, statement: Statement, rows: Sequence[Sequence[Any]], params: dict[str, Any]) -> list[Row]:
        if not statement.row:
            params["rows"] = self.dialect.pack_rows(rows)
            return self.run(statement, params)
        begin = 0
        shared = [params[name] for name in statement.shared]
        for size in ROWS_AT_ONCE:
            while len(rows) - begin >= size:
                self._run(_written_often(statement, size), [*shared, *chain.from_iterable(rows[begin : begin + size])])
                begin += size
        return []

    def run_text(self, text: str) -> list[Row]:
        return self._run(text, {})

    def columns(self) -> list[str]:
        return [column[0] for column in self._description]

    def commit(self) -> None:
        if self._mark is not None:
            self._leave(self._mark)
            self._mark = None
        self._run("COMMIT", {})
        if self._queue >= 0:
            # Wakes the listeners. The commit is done: if the file has become unusable, the next write reports it.
            with quietly(OSError):
                os.utime(self._queue)
            if self._log.is_long:
                self._log.cut(self.connection)
        self._leave_queue()

    def before_whole_tables(self) -> None:
        """Nothing to do: no setting was changed."""

    def before_user_code(self) -> None:
        """Nothing to do: no setting was changed."""

    def after_user_code(self) -> None:
        """Nothing to do: no setting was changed."""

    def check_user_code(self) -> None:
        """Nothing to check: a failed statement has undone itself."""

    @property
    def lost(self) -> bool:
        return self._conn is None

    def trouble(self, error: BaseException) -> StoreError | None:
        if self._conn is None or not self._conn.in_transaction:
            return StoreConflict(f"{self.path}: user code ended the transaction it was part of: {error}")
        raw = error.__cause__ if isinstance(error, StoreError) else getattr(error, "orig", error)
        return translated(raw, self.path) if isinstance(raw, sqlite3.Error) and is_innocent(raw) else None

    def rollback(self) -> None:
        if self.pid == os.getpid():
            if self._conn is not None and self._conn.in_transaction:
                with quietly(sqlite3.Error):
                    self._conn.rollback()
            self._leave_queue()

    @property
    def connection(self) -> sqlite3.Connection:
        assert self._conn is not None
        return self._conn

    def notify(self, stages: Collection[int]) -> None:
        """Nothing to do: the change counter of the file shows every commit."""

    def listener(self) -> FileNews:
        return FileNews(self.path)

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        self.closed = True
        if self._cut_off():
            # Other code closed our descriptors, which may belong to other files by now: SQLite must not close them, nor
            # write to them as it closes.
            _abandoned.append(self._conn)
            self._conn, self._queue = None, -1
        if self._conn is not None:
            # The last connection copies the log into the database as it closes, which must not meet another process's write.
            locked = self._queue >= 0 and self._try_queue(1.0)
            with quietly(sqlite3.Error):
                self._conn.close()
            self._conn = None
            if locked:
                self._leave_queue()
        if self._queue >= 0:
            os.close(self._queue)
            self._queue = -1

    def descriptors(self) -> list[int]:
        return [self._queue] if self._queue >= 0 else []

    def integrity(self) -> str:
        [(found,)] = self._run("PRAGMA quick_check(1)", {})
        return str(found)

    def facts(self) -> dict[str, Any]:
        wal = Path(f"{self.path}-wal")
        size = self.path.stat().st_size
        return {
            "database": "sqlite",
            "file": str(self.path),
            "library": sqlite3.sqlite_version,
            "file_system": file_system(self.path),
            "bytes": size,
            "disk_free_bytes": free_bytes(self.path.parent),
            "wal_bytes": wal.stat().st_size if wal.exists() else 0,
            "journal_mode": self._journal_mode(),
            "synchronous": "full" if self._run("PRAGMA synchronous", {})[0][0] == 2 else "not full",
            "integrity": self.integrity() if size <= LOOKED_THROUGH_BYTES else "unchecked",
        }

    def _journal_mode(self) -> str:
        return str(self._run("PRAGMA journal_mode", {})[0][0])

    def unbuilt(self, indexes: Sequence[LaterIndex]) -> list[LaterIndex]:
        # There are none: every writer would wait while one is built.
        return []

    def build(self, index: LaterIndex) -> None:
        raise AssertionError("unreachable")

    def cannot_write(self) -> str | None:
        free = free_bytes(self.path.parent)
        if free >= FULL_BYTES:
            return None
        return (
            f"the disk is full: {free:,} bytes are left in {self.path.parent}; nothing can be saved until there is room"
        )

    def lock(self, name: str) -> FileLock | None:
        return FileLock.take(self.path, name)

    def hides(self) -> str | None:
        return None

    def look(self, now: float) -> None:
        self._log.look(now)
        since = self._waiting_since
        if since and now - since > REPORT_SECONDS and now - self._reported_at > REPORT_SECONDS:
            self._reported_at = now
            with quietly(OSError):
                log.warning("waiting for %.0f s to write to %s: %s", now - since, self.path, holder(self._queue))

    # The parts ----------------------------------------------------------------------------------------------------

    def _prepare(self, conn: sqlite3.Connection) -> None:
        try:
            mode = self._mode
            if mode != "wal":
                # Only the first process to open the file waits for the write lock. Reads must not wait.
                self._join_queue()
                try:
                    [(mode,)] = conn.execute("PRAGMA journal_mode = WAL").fetchall()
                finally:
                    self._leave_queue()
            if mode != "wal":
                raise StoreBroken(f"{self.path} cannot use a write-ahead log (journal mode stays {mode!r})")
            conn.execute("PRAGMA synchronous = FULL")
            conn.execute("PRAGMA foreign_keys = ON")
            conn.execute("PRAGMA temp_store = MEMORY")
            conn.execute("PRAGMA cache_size = -32000")
            conn.execute("PRAGMA wal_autocheckpoint = 2000")
            conn.execute(f"PRAGMA journal_size_limit = {KEPT_BYTES}")
        except sqlite3.Error as error:
            raise translated(error, self.path) or StoreBroken(f"{self.path}: {error}") from error

    def _begin_immediate(self) -> None:
        self._check()
        self._join_queue()
        try:
            self._run("BEGIN IMMEDIATE", {})
        except BaseException:
            self._leave_queue()
            raise

    def _leave(self, mark: Mark) -> list[Row]:
        return self.run(self._marking, {**mark._asdict(), "now": self._clock.now()})

    def _run(self, text: str, params: dict[str, Any] | list[Any]) -> list[Row]:
        assert self._conn is not None
        try:
            cursor = self._conn.execute(text, params)
            self._description = cursor.description or ()
            return cursor.fetchall()
        except sqlite3.Error as error:
            # A file that is gone fails in many ways; only this message helps.
            told = self._replaced() or self._cut_off() or out_of_numbers(self._conn, self.path, error)
            told = told or translated(error, self.path) or read_odd_text(self._conn, self.path, error)
            if told is None:
                raise
            raise told from error

    def _replaced(self) -> StoreBroken | None:
        if identity_of(self.path) == self._identity:
            return None
        return StoreBroken(f"{self.path} was removed or replaced while it was in use: nothing more is written to it")

    def _check(self) -> None:
        if self.pid != os.getpid():
            raise StoreError("a forked process must open a store of its own")
        if self._conn is None:
            raise StoreError(f"{self.path} was closed")
        if replaced := self._replaced():
            raise replaced
        if cut_off := self._cut_off():
            raise cut_off

    def _cut_off(self) -> StoreError | None:
        """An error if the descriptor is no longer that of the lock file: once closed, it may belong to another file."""
        if self._queue < 0 or identity_of(self._queue) == self._queue_identity:
            return None
        return lock_trouble(self.path, closed_elsewhere())

    def _join_queue(self) -> None:
        try:
            if not self._try_queue(0.0):
                self._waiting_since = time.monotonic()
                fcntl.flock(self._queue, fcntl.LOCK_EX)
                self._waiting_since = 0.0
            os.pwrite(self._queue, b"%-20d\n" % self.pid, 0)
        except OSError as error:
            self._waiting_since = 0.0
            self._leave_queue()
            raise lock_trouble(self.path, error) from error

    def _try_queue(self, patience_seconds: float) -> bool:
        give_up_at = time.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(self._queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= give_up_at:
                    return False
            time.sleep(0.01)

    def _leave_queue(self) -> None:
        if self._queue >= 0:
            with quietly(OSError):
                fcntl.flock(self._queue, fcntl.LOCK_UN)


@cache
def _written_often(statement: Statement, rows: int) -> str:
    return statement.text.replace(statement.row, ", ".join([statement.row] * rows))


def refuse_inherited(path: Path) -> None:
    """Refuse to open a file that the parent process had open when this one was forked. SQLite keeps its locks per process
    and trusts what it inherited: the child would lose what it writes."""
    found = identity_of(path)
    for one in Forkable.inherited():
        if isinstance(one, SQLite) and one._identity == found:
            raise StoreError(
                f"{path} was open in the process this one was forked from: start a process of its own instead "
                f"(subprocess, or multiprocessing with the spawn method)"
            )
