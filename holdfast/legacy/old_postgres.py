"""An old PostgreSQL database, read in one transaction and by cursors, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from holdfast.legacy.old_database import BATCH, OldDatabase, OldRow, OldTable, quoted, unreadable
from holdfast.store.postgres_address import read_url

_TABLES = """SELECT c.oid::regclass::text FROM pg_class c
WHERE c.relkind IN ('r', 'p') AND c.relnamespace::regnamespace::text !~ '^(pg_|information_schema)' ORDER BY 1"""
#: Each column, whether it is an array, and whether it is an integer primary key.
_COLUMNS = """SELECT a.attname, t.typcategory = 'A', t.typname ~ '^int' AND EXISTS (
    SELECT 1 FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary AND i.indkey::text = a.attnum::text)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
#: Without an integer key, the physical position of a row is its number. It is stable while nobody writes to the row.
_PLACE = """(split_part(trim('()' FROM ctid::text), ',', 1)::bigint * 65536
    + split_part(trim('()' FROM ctid::text), ',', 2)::bigint)"""


class OldPostgres(OldDatabase):
    def __init__(self, address: str) -> None:
        url, schema, self.where = read_url(address)
        with self.told():
            # Because of poolers: nothing is prepared or set in a session that others use later.
            self.conn = psycopg.connect(url, autocommit=True, prepare_threshold=None)
            self.conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if "schema=" in address:
                self.conn.execute("SELECT set_config('search_path', %s, true)", [schema])

    def close(self) -> None:
        self.conn.close()

    def find(self, table: str) -> OldTable | None:
        with self.told():
            name = ".".join(quoted(part) for part in table.split("."))
            [(found,)] = self.conn.execute("SELECT to_regclass(%s)", [name]).fetchall()
            return None if found is None else PostgresTable(self, table, name)

    def tables(self) -> list[str]:
        with self.told():
            return [name for (name,) in self.conn.execute(_TABLES).fetchall()]

    @contextmanager
    def told(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise unreadable(self.where, error) from error


class PostgresTable:
    def __init__(self, database: OldPostgres, name: str, quoted_name: str) -> None:
        self.name = name
        self._database, self._table = database, quoted_name
        rows = database.conn.execute(_COLUMNS, [quoted_name]).fetchall()
        self.columns: Sequence[str] = [column for column, *_ in rows]
        self._lists = {column for column, is_list, _ in rows if is_list}
        self._key = next((column for column, _, is_key in rows if is_key), None)
        self._row = _PLACE if self._key is None else quoted(self._key)

    def has(self, column: str) -> bool:
        return column in self.columns

    def count(self) -> int:
        with self._database.told():
            return int(self._database.conn.execute(f"SELECT COUNT(*) FROM {self._table}").fetchall()[0][0])

    def filled(self, columns: Sequence[str]) -> list[int]:
        counts = ", ".join(f"COUNT({quoted(name)})" for name in columns)
        with self._database.told():
            return (
                list(self._database.conn.execute(f"SELECT {counts} FROM {self._table}").fetchall()[0])
                if columns
                else []
            )

    def batches(self, columns: Iterable[str], most: int = BATCH) -> Iterator[list[OldRow]]:
        names, select = self._select(columns)
        with self._database.told(), self._database.conn.cursor(f"read {self.name}") as cursor:
            cursor.execute(f"{select} ORDER BY 1")
            while rows := cursor.fetchmany(most):
                yield [_old_row(names, row) for row in rows]

    def rows(self, numbers: Sequence[int], columns: Iterable[str]) -> list[OldRow]:
        names, select = self._select(columns)
        given: list[Any]
        which, given = f"{self._row} = ANY(%s)", [*numbers]
        if self._key is None:
            which, given = "ctid = ANY(%s::text[]::tid[])", [f"({row >> 16},{row & 65535})" for row in numbers]
        with self._database.told():
            found = self._database.conn.execute(f"{select} WHERE {which} ORDER BY 1", [given]).fetchall()
        return [_old_row(names, row) for row in found]

    def _select(self, columns: Iterable[str]) -> tuple[list[str], str]:
        names = list(columns)
        shown = [
            f"to_jsonb({quoted(name)})::text" if name in self._lists else f"{quoted(name)}::text" for name in names
        ]
        return names, f"SELECT {', '.join([self._row, *shown])} FROM {self._table}"


def _old_row(names: Sequence[str], row: Sequence[Any]) -> OldRow:
    number, *cells = row
    return OldRow(
        number, {name: None if cell is None else cell.encode() for name, cell in zip(names, cells, strict=True)}
    )
