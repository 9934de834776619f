"""Schemas with holdfast's tables that tests of one process use in turn: making them takes longer than most tests.

A schema gets a new name with every use. Whoever still knows the old one finds nothing there, as after DROP SCHEMA; who is
still in the middle of something holds a lock, and then the schema is dropped after all. So is one that a test has
altered, or filled with a lot; tables that a test has added are dropped alone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from holdfast.store import open_store
from holdfast.testing import ManualClock

#: A schema that has grown beyond this is not emptied but dropped.
MOST_BYTES = 4_000_000

_TABLES = "SELECT relname FROM pg_class WHERE relnamespace = %s::text::regnamespace AND relkind = 'r' ORDER BY relname"
#: How large it is, which tables were written to, and everything that a test could have altered, as one line.
_SHAPE = """
WITH c AS (SELECT *, pg_relation_size(oid) AS bytes FROM pg_class WHERE relnamespace = %(name)s::text::regnamespace)
SELECT (SELECT sum(bytes)::bigint FROM c), (SELECT array_agg(relname::text) FROM c WHERE relkind = 'r' AND bytes > 0),
  md5(concat(
    (SELECT string_agg(concat(relname, relkind, reloptions, relhastriggers, relrowsecurity, relacl), ' ' ORDER BY relname)
     FROM c),
    (SELECT string_agg(concat(c.relname, attname, atttypid, attnotnull, atthasdef, attisdropped), ' '
                       ORDER BY c.relname, attnum)
     FROM pg_attribute a JOIN c ON c.oid = a.attrelid AND attnum > 0),
    (SELECT string_agg(concat(c.relname, conname, contype, convalidated), ' ' ORDER BY c.relname, conname)
     FROM pg_constraint JOIN c ON c.oid = conrelid),
    (SELECT string_agg(concat(c.relname, indisvalid), ' ' ORDER BY c.relname) FROM pg_index JOIN c ON c.oid = indexrelid),
    (SELECT count(*) FROM pg_trigger JOIN c ON c.oid = tgrelid),
    (SELECT count(*) FROM pg_proc WHERE pronamespace = %(name)s::text::regnamespace),
    (SELECT concat(nspacl) FROM pg_namespace WHERE nspname = %(name)s)
))
"""
_SEQUENCES = "SELECT relname FROM pg_class WHERE relnamespace = %s::text::regnamespace AND relkind = 'S'"


def address(base: str, schema: str) -> str:
    """The address of a store in this schema of a server."""
    return f"{base}{'&' if '?' in base else '?'}schema={schema}"


def in_database(url: str, name: str) -> str:
    """The same address, of another database of that server."""
    return re.sub(r"(?<=://)([^/?]*)/?[^?]*", rf"\g<1>/{quote(name)}", url, count=1)


@contextmanager
def bare_schema(base: str, **settings: str) -> Iterator[str]:
    """An address by which SQLAlchemy finds an empty schema and nothing else, in sessions with these settings."""
    schema = _new_name()
    options = quote(" ".join(f"-c{name}={value}" for name, value in {"search_path": schema, **settings}.items()))
    with psycopg.connect(base, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        try:
            with_driver = base.replace("postgresql:", "postgresql+psycopg:", 1)
            yield f"{with_driver}{'&' if '?' in base else '?'}options={options}"
        finally:
            drop(conn, schema)


class Schemas:
    """The schemas of one process on one server."""

    def __init__(self, base: str) -> None:
        self.base = base
        self._conn = psycopg.connect(base, autocommit=True)
        self._pristine = self._make()
        _, self._seeded, self._shape = self._look_at(self._pristine)
        self._tables = [name for (name,) in self._conn.execute(_TABLES, [self._pristine])]
        self._sequences = [name for (name,) in self._conn.execute(_SEQUENCES, [self._pristine])]
        self._free: list[str] = []

    def take(self) -> str:
        """The name of a schema with empty tables."""
        if not self._free:
            return self._make()
        name = _new_name()
        self._rename(self._free.pop(), name)
        return name

    def give_back(self, name: str) -> None:
        spare = _new_name()
        try:
            self._rename(name, spare)
        except psycopg.errors.InvalidSchemaName:
            return  # the test has dropped it
        if self._empty(spare):
            self._free.append(spare)
        else:
            drop(self._conn, spare)

    def close(self) -> None:
        for name in [self._pristine, *self._free]:
            drop(self._conn, name)
        self._conn.close()

    def _make(self) -> str:
        name = _new_name()
        store = open_store(address(self.base, name), clock=ManualClock())
        store.upgrade()
        store.close()
        return name

    def _rename(self, old: str, new: str) -> None:
        self._conn.execute(sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(sql.Identifier(old), sql.Identifier(new)))

    def _look_at(self, name: str) -> tuple[int, list[str], str]:
        found: tuple[int, list[str] | None, str] | None = self._conn.execute(_SHAPE, {"name": name}).fetchone()
        assert found is not None
        return found[0], found[1] or [], found[2]

    def _empty(self, name: str) -> bool:
        """False if it is in use, large, or not as it was."""
        everything = ", ".join(f"{name}.{table}" for table in self._tables)
        try:
            with self._conn.transaction():
                self._send(f"LOCK TABLE {everything} IN ACCESS EXCLUSIVE MODE NOWAIT")
                size, written, shape = self._look_at(name)
                if shape != self._shape and self._drop_what_is_not_ours(name):
                    size, written, shape = self._look_at(name)
                if size >= MOST_BYTES or shape != self._shape:
                    return False
                self._send(
                    "SET LOCAL session_replication_role = replica",
                    *(f"DELETE FROM {name}.{table}" for table in written),
                    *(f"INSERT INTO {name}.{table} SELECT * FROM {self._pristine}.{table}" for table in self._seeded),
                    *(f"SELECT setval('{name}.{sequence}', 1, false)" for sequence in self._sequences),
                )
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
            return False
        return True

    def _drop_what_is_not_ours(self, name: str) -> bool:
        """Whether there were tables that a test has added."""
        added = [
            sql.Identifier(name, table) for (table,) in self._conn.execute(_TABLES, [name]) if table not in self._tables
        ]
        if added:
            every = sql.SQL(", ").join(added)
            self._conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(every))
            self._conn.execute(sql.SQL("DROP TABLE {} CASCADE").format(every))
        return bool(added)

    def _send(self, *orders: str) -> None:
        """All in one message: the server is quick, the way to it is not."""
        self._conn.execute("; ".join(orders))


def drop(conn: psycopg.Connection[Any], schema: str) -> None:
    conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def _new_name() -> str:
    return f"t{secrets.token_hex(6)}"
