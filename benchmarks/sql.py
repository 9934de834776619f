"""Plain statements to a store of holdfast's, on either database: for filling it, and for nothing that is measured."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol


class Sql(Protocol):
    prefix: str

    def run(self, statement: str) -> None: ...

    def rows(self, statement: str) -> Sequence[tuple[Any, ...]]: ...

    def columns(self, table: str) -> list[str]: ...

    def numbers(self, low: int, high: int) -> str:
        """A table of whole numbers, in a column named i."""
        ...

    def size(self) -> int:
        """The bytes that the store takes on disk."""
        ...

    def finish(self, tables: Sequence[str]) -> None:
        """Leave the store as it would be after a quiet time."""
        ...

    def close(self) -> None: ...


class SqliteSql:
    prefix = "holdfast_"

    def __init__(self, url: str) -> None:
        self._path = Path(url.removeprefix("sqlite:///"))
        self._conn = sqlite3.connect(self._path, isolation_level=None)
        self._conn.execute("PRAGMA synchronous = OFF")
        self._conn.execute("PRAGMA cache_size = -200000")

    def run(self, statement: str) -> None:
        self._conn.execute(statement)

    def rows(self, statement: str) -> Sequence[tuple[Any, ...]]:
        return self._conn.execute(statement).fetchall()

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self._conn.execute(f"PRAGMA table_info({self.prefix}{table})")]

    def numbers(self, low: int, high: int) -> str:
        return (
            f"(WITH RECURSIVE n(i) AS (SELECT {low:d} UNION ALL SELECT i + 1 FROM n WHERE i < {high:d}) "
            "SELECT i FROM n) AS n"
        )

    def size(self) -> int:
        return sum(file.stat().st_size for file in self._path.parent.glob(f"{self._path.name}*"))

    def finish(self, tables: Sequence[str]) -> None:
        self._conn.execute("PRAGMA synchronous = FULL")
        self._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._conn.close()


class PostgresSql:
    prefix = ""

    def __init__(self, url: str) -> None:
        import psycopg

        self._conn: Any = psycopg.connect(url, autocommit=True)
        self._conn.execute("SET search_path = holdfast")

    def run(self, statement: str) -> None:
        self._conn.execute(statement)

    def rows(self, statement: str) -> Sequence[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._conn.execute(statement).fetchall()
        return found

    def columns(self, table: str) -> list[str]:
        asked = (
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'holdfast' AND table_name = %s "
            "ORDER BY ordinal_position"
        )
        return [row[0] for row in self._conn.execute(asked, (table,)).fetchall()]

    def numbers(self, low: int, high: int) -> str:
        return f"generate_series({low:d}::bigint, {high:d}::bigint) AS n(i)"

    def size(self) -> int:
        [(size,)] = self.rows("SELECT pg_database_size(current_database())")
        return int(size)

    def finish(self, tables: Sequence[str]) -> None:
        self._conn.execute("SELECT setval(pg_get_serial_sequence('items', 'id'), (SELECT max(id) FROM items))")
        self._conn.execute(f"VACUUM ANALYZE {', '.join(tables)}")
        self._conn.execute("CHECKPOINT")

    def close(self) -> None:
        self._conn.close()


@contextmanager
def opened(url: str) -> Iterator[Sql]:
    """A connection of its own, beside holdfast's."""
    database: Sql = SqliteSql(url) if url.startswith("sqlite") else PostgresSql(url)
    try:
        yield database
    finally:
        database.close()
