"""Which keys an import has seen, and which rows of other tables belong to them, in a temporary file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from holdfast.legacy.old_database import quoted


class KeyIndex:
    """The keys seen so far, and the rows of side tables by key. In a temporary file, so that memory use stays small."""

    def __init__(self) -> None:
        self._conn = sqlite3.connect("", isolation_level=None)
        self._conn.execute("BEGIN")
        self._conn.execute("CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID")

    def close(self) -> None:
        self._conn.close()

    def is_new(self, key: bytes) -> bool:
        """Remember a key; True the first time."""
        return bool(self._conn.execute("INSERT OR IGNORE INTO seen VALUES (?)", (key,)).rowcount)

    def knows(self, key: bytes) -> bool:
        """Whether a key was seen."""
        return bool(self._conn.execute("SELECT 1 FROM seen WHERE key = ?", (key,)).fetchall())

    def fill(self, table: str, pairs: Iterator[tuple[bytes, int]]) -> None:
        """Store the rows of a table by key."""
        self._conn.execute(f"CREATE TABLE {quoted('of ' + table)} (key BLOB, row INTEGER)")
        self._conn.executemany(f"INSERT INTO {quoted('of ' + table)} VALUES (?, ?)", pairs)
        self._conn.execute(f"CREATE INDEX {quoted('by key ' + table)} ON {quoted('of ' + table)} (key, row)")

    def rows_of(self, table: str, keys: Iterable[bytes]) -> dict[int, bytes]:
        """The rows of a table that belong to these keys, each with its key."""
        find = f"SELECT row FROM {quoted('of ' + table)} WHERE key = ?"
        return {row: key for key in keys for (row,) in self._conn.execute(find, (key,))}
