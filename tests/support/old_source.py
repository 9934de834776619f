"""An old database to import from, on either database: its tables are made, and filled, by the test."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg


class OldSource:
    """Tables of an earlier program. What it keeps as JSON is text on SQLite, and jsonb on PostgreSQL."""

    def __init__(self, address: str, connection: Any, mark: str) -> None:
        self.address = address
        self._connection = connection
        self._mark = mark

    def sql(self, *texts: str) -> None:
        for text in texts:
            self._connection.execute(text)
        self._connection.commit()

    def add(self, table: str, *rows: Mapping[str, Any]) -> None:
        for row in rows:
            values = [json.dumps(value) if isinstance(value, (dict, list)) else value for value in row.values()]
            self._connection.execute(
                f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join([self._mark] * len(row))})", values
            )
        self._connection.commit()


@contextmanager
def old_source(kind: str, folder: Path, postgres: str) -> Iterator[OldSource]:
    if kind == "sqlite":
        with closing(sqlite3.connect(folder / "old.db")) as connection:
            yield OldSource(str(folder / "old.db"), connection, "?")
        return
    schema = f"old_{secrets.token_hex(6)}"
    with psycopg.connect(postgres) as made:
        made.execute(f"CREATE SCHEMA {schema}")
        made.execute(f"SET search_path TO {schema}")
        made.commit()
        yield OldSource(f"{postgres}{'&' if '?' in postgres else '?'}schema={schema}", made, "%s")
        made.rollback()
        made.execute(f"DROP SCHEMA {schema} CASCADE")
