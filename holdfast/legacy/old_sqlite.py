"""An old SQLite database. Each batch is a read of its own, so a program that still uses the file is not kept waiting."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast.errors import UsageError
from holdfast.legacy.old_database import BATCH, OldDatabase, OldRow, OldTable, quoted, unreadable

#: How long to wait for a program that is writing to the file.
BUSY_SECONDS = 30.0


class OldSQLite(OldDatabase):
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.where = str(path)
        if not self.path.is_file():
            raise UsageError(f"{path} does not exist, or is no file: name the old SQLite database, or postgresql://…")
        with self._told():
            self._conn = sqlite3.connect(
                f"file:{quote(str(self.path.absolute()))}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
            )
        try:
            self._conn.text_factory = bytes
            self.run("PRAGMA query_only = ON")
            self.run("SELECT 1 FROM sqlite_master LIMIT 1")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._conn.close()

    def find(self, table: str) -> OldTable | None:
        rows = self.run(f"PRAGMA table_xinfo({quoted(table)})")
        return SQLiteTable(self, table, [row[1].decode(errors="replace") for row in rows]) if rows else None

    def tables(self) -> list[str]:
        rows = self.run("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        return [name.decode(errors="replace") for (name,) in rows]

    def run(self, text: str, *params: Any) -> Sequence[Any]:
        with self._told():
            return self._conn.execute(text, params).fetchall()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise unreadable(self.where, error) from error


class SQLiteTable:
    def __init__(self, database: OldSQLite, name: str, columns: Sequence[str]) -> None:
        self.name, self.columns = name, columns
        self._run = database.run
        self._table = quoted(name)
        self._row = self._row_number(database, {column.lower() for column in columns})

    def has(self, column: str) -> bool:
        # Names in SQLite are case-insensitive.
        return column.lower() in {name.lower() for name in self.columns}

    def count(self) -> int:
        return int(self._run(f"SELECT COUNT(*) FROM {self._table}")[0][0])

    def filled(self, columns: Sequence[str]) -> list[int]:
        counts = ", ".join(f"COUNT({quoted(name)})" for name in columns)
        return list(self._run(f"SELECT {counts} FROM {self._table}")[0]) if columns else []

    def batches(self, columns: Iterable[str], most: int = BATCH) -> Iterator[list[OldRow]]:
        names, select = self._select(columns)
        rows = self._run(f"{select} ORDER BY {self._row} LIMIT ?", most)
        while rows:
            yield [OldRow(row, dict(zip(names, cells, strict=True))) for row, *cells in rows]
            rows = self._run(f"{select} WHERE {self._row} > ? ORDER BY {self._row} LIMIT ?", rows[-1][0], most)

    def rows(self, numbers: Sequence[int], columns: Iterable[str]) -> list[OldRow]:
        names, select = self._select(columns)
        found: list[OldRow] = []
        for at in range(0, len(numbers), BATCH):
            some = numbers[at : at + BATCH]
            rows = self._run(
                f"{select} WHERE {self._row} IN ({', '.join('?' * len(some))}) ORDER BY {self._row}", *some
            )
            found += [OldRow(row, dict(zip(names, cells, strict=True))) for row, *cells in rows]
        return found

    def _select(self, columns: Iterable[str]) -> tuple[list[str], str]:
        names = list(columns)
        shown = [f"CAST({quoted(name)} AS TEXT)" for name in names]
        return names, f"SELECT {', '.join([self._row, *shown])} FROM {self._table}"

    def _row_number(self, database: OldSQLite, columns: set[str]) -> str:
        name = next((name for name in ("rowid", "_rowid_", "oid") if name not in columns), None)
        kinds = self._run("SELECT type FROM sqlite_master WHERE lower(name) = lower(?)", self.name)
        if name is not None and [kind for (kind,) in kinds] == [b"table"] and self._numbers_rows(name):
            return name
        raise UsageError(
            f"{database.where}: {self.name!r} is a view, or its rows have no numbers: copy it into a plain table first "
            f"(CREATE TABLE plain AS SELECT * FROM …) and name that one with --table"
        )

    def _numbers_rows(self, name: str) -> bool:
        try:
            self._run(f"SELECT {name} FROM {self._table} LIMIT 0")
        except UsageError as error:
            if "no such column" in str(error):
                return False
            raise
        return True
