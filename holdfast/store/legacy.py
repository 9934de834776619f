"""A table of an old SQLite database, read in batches by row number. Nothing is ever written to it.

Every batch is a read of its own: a program that still uses the database is not kept waiting.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from holdfast.errors import UsageError
from holdfast.model.names import there_are

BATCH = 1000
#: How long to wait for a program that is writing to it.
BUSY_SECONDS = 30.0


class OldRow(NamedTuple):
    """A row as it lies there: bytes, so that text which is no text can be told."""

    row: int
    key: bytes | None
    pipeline: bytes | None
    stages: bytes | None
    data: bytes | None


class OldTable:
    """One table with a key, and perhaps columns for pipeline, stages and data; those that are not there are empty."""

    def __init__(
        self,
        path: str | Path,
        *,
        table: str = "work_items",
        key: str = "item_key",
        pipeline: str = "job_id",
        stages: str = "stages",
        data: str = "data",
    ) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise UsageError(f"{path} does not exist, or is no file: name the old SQLite database")
        with self._told():
            self._conn = sqlite3.connect(
                f"file:{quote(str(self.path.absolute()))}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
            )
        try:
            self._conn.text_factory = bytes
            self._run("PRAGMA query_only = ON")
            self._table = _quoted(table)
            columns = self._columns(table)
            if key.lower() not in columns:
                raise UsageError(
                    f"{path}: table {table!r} has no column {key!r}; {there_are(key, columns.values())}; "
                    f"say with --key-column which names the item"
                )
            wanted = (key, pipeline, stages, data)
            #: Columns that were looked for and are not there.
            self.missing = [name for name in wanted if name.lower() not in columns]
            self.has_pipelines = pipeline not in self.missing
            self._row = self._row_number(table, columns)
            shown = [f"CAST({_quoted(name)} AS TEXT)" if name not in self.missing else "NULL" for name in wanted]
            self._key, self._pipeline = shown[0], shown[1]
            self._select = f"SELECT {self._row}, {', '.join(shown)} FROM {self._table}"
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> OldTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._conn.close()

    def count(self) -> int:
        return int(self._run(f"SELECT COUNT(*) FROM {self._table}")[0][0])

    def repeated(self) -> dict[tuple[bytes | None, bytes], int]:
        """Keys that several rows of a pipeline have, with the number of the first of these rows."""
        rows = self._run(
            f"SELECT {self._pipeline}, {self._key}, MIN({self._row}) FROM {self._table} WHERE {self._key} IS NOT NULL "
            f"GROUP BY 1, 2 HAVING COUNT(*) > 1"
        )
        return {(pipeline, key): first for pipeline, key, first in rows}

    def batches(self, most: int = BATCH) -> Iterator[list[OldRow]]:
        """Every row, in the order of row numbers."""
        rows = self._run(f"{self._select} ORDER BY {self._row} LIMIT ?", most)
        while rows:
            yield [OldRow(*row) for row in rows]
            rows = self._run(f"{self._select} WHERE {self._row} > ? ORDER BY {self._row} LIMIT ?", rows[-1][0], most)

    def _columns(self, table: str) -> dict[str, str]:
        """The names of the columns, by the same in small letters: SQLite does not tell capitals from them."""
        rows = self._run(f"PRAGMA table_xinfo({self._table})")
        if not rows:
            there = self._run("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            names = there_are(table, [row[0].decode(errors="replace") for row in there])
            raise UsageError(f"{self.path} has no table {table!r}; {names}; say with --table which to read")
        names_found = [row[1].decode(errors="replace") for row in rows]
        return {name.lower(): name for name in names_found}

    def _row_number(self, table: str, columns: dict[str, str]) -> str:
        name = next((name for name in ("rowid", "_rowid_", "oid") if name not in columns), None)
        kinds = self._run("SELECT type FROM sqlite_master WHERE lower(name) = lower(?)", table)
        if name is None or [kind for (kind,) in kinds] != [b"table"] or not self._numbers_rows(name):
            raise UsageError(
                f"{self.path}: {table!r} is a view, or its rows have no numbers: copy it into a plain table first "
                f"(CREATE TABLE plain AS SELECT * FROM …) and name that one with --table"
            )
        return name

    def _numbers_rows(self, name: str) -> bool:
        try:
            self._conn.execute(f"SELECT {name} FROM {self._table} LIMIT 0")
        except sqlite3.OperationalError as error:
            if "no such column" in str(error):
                return False
            raise
        return True

    def _run(self, text: str, *params: Any) -> Sequence[Any]:
        with self._told():
            return self._conn.execute(text, params).fetchall()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise UsageError(
                f"{self.path} cannot be read ({error}); what was imported so far stays, and the same command goes on from there"
            ) from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
