"""The write-ahead log of a SQLite file: it is cut when it has grown long, and who keeps it from being cut is named.

SQLite copies the log into the database now and then, but begins it anew only when nobody reads it: a reader that never ends
lets it grow without bound.
"""

from __future__ import annotations

import os
import sqlite3
from functools import cache
from pathlib import Path

from holdfast.model.logs import logger
from holdfast.store.driver import quietly
from holdfast.store.sqlite_locks import described, readers

log = logger("holdfast.store")

#: SQLite itself cuts the log back to this when it begins it anew.
KEPT_BYTES = 16 * 1024 * 1024
#: A log longer than this is cut by whoever commits next.
LONG_BYTES = 64 * 1024 * 1024
#: How often it is looked at, how long a cut waits for those who read, and how often it is complained about.
LOOK_SECONDS, PATIENCE_SECONDS, COMPLAIN_SECONDS = 5.0, 0.02, 60.0


class Log:
    """The log of one file, for all connections of a process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_long = False
        self._looked_at = self._complained_at = float("-inf")
        #: How often in a row it could not be cut; who read it the last time, and the last two times.
        self._refused = 0
        self._readers: set[int] = set()
        self._lasting: set[int] = set()

    def look(self, now: float) -> None:
        """See how long it is, and say so if it could not be cut twice."""
        if now < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = now
        size = self._size()
        self.is_long = size > LONG_BYTES
        if self.is_long and self._refused > 1 and now >= self._complained_at + COMPLAIN_SECONDS:
            self._complained_at = now
            who = ", ".join(map(described, sorted(self._lasting))) or "a process that cannot be seen from here"
            log.warning(
                "the write-ahead log of %s has grown to %d MB and cannot be cut: %s has a transaction open that reads; "
                "end it, or that process",
                self._path,
                size >> 20,
                who,
            )

    def cut(self, conn: sqlite3.Connection) -> None:
        """Copy it into the database and empty it. Only for who holds the lock of those who write, and is in no transaction:
        those who are seen to read then do nothing else."""
        self.is_long = False
        refused, found = False, set()
        # What was to be written is. If the file cannot be used any more, the next write says so.
        with quietly(sqlite3.Error, OSError):
            [(patience,)] = conn.execute("PRAGMA busy_timeout").fetchall()
            conn.execute(f"PRAGMA busy_timeout = {PATIENCE_SECONDS * 1000:.0f}")
            try:
                [(refused, _, _)] = conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                conn.execute(f"PRAGMA busy_timeout = {patience}")
            found = readers(self._path) if refused else set()
        self._refused = self._refused + 1 if refused else 0
        self._readers, self._lasting = found, self._readers & found

    def _size(self) -> int:
        try:
            return os.stat(f"{self._path}-wal").st_size
        except OSError:
            return 0


#: One for each file.
log_of = cache(Log)
