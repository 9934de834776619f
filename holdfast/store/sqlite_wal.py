"""The write-ahead log of a SQLite file: truncated when it has grown long, or else the process that prevents it is named.

SQLite copies the log into the database from time to time, but starts it again only when nobody reads it. A reader that never
ends lets it grow without bound.
"""

from __future__ import annotations

import os
import sqlite3
from functools import cache
from pathlib import Path

from holdfast.model.log_lines import logger
from holdfast.store.driver import quietly
from holdfast.store.sqlite_locks import described, readers

log = logger("holdfast.store")

#: SQLite truncates the log to this size when it starts it again.
KEPT_BYTES = 16 * 1024 * 1024
#: A log longer than this is truncated by the next commit.
LONG_BYTES = 64 * 1024 * 1024
#: How often the size is checked, how long truncating waits for readers, and how often a warning is logged.
LOOK_SECONDS, PATIENCE_SECONDS, COMPLAIN_SECONDS = 5.0, 0.02, 60.0


class Log:
    """The log of one file, for all connections of a process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_long = False
        self._looked_at = self._complained_at = float("-inf")
        #: How many times in a row it could not be truncated; who read it the last time, and the last two times.
        self._refused = 0
        self._readers: set[int] = set()
        self._lasting: set[int] = set()

    def look(self, now: float) -> None:
        """Check the size, and log a warning if truncating has failed twice."""
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
        """Copy the log into the database and truncate it. The caller holds the write lock and is in no transaction, so that
        every process seen in one is a reader."""
        self.is_long = False
        refused, found = False, set()
        # The commit is done. If the file has become unusable, the next write reports it.
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
