"""Schemas with holdfast's tables that tests of one process use in turn: making them takes longer than most tests.

A schema gets a new name with every use. Whoever still knows the old one finds nothing there, as after DROP SCHEMA; who is
still in the middle of something holds a lock, and then the schema is dropped after all. So is one that a test has
altered, or filled with a lot.
"""

from __future__ import annotations

import secrets
from typing import Any

import psycopg
from psycopg import sql

from holdfast.store import open_store
from holdfast.testing import ManualClock

#: A schema that has grown beyond this is not emptied but dropped.
MOST_BYTES = 4_000_000

_TABLES = "SELECT relname FROM pg_class WHERE relnamespace = %s::text::regnamespace AND relkind = 'r' ORDER BY relname"
_BYTES = "SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relnamespace = %s::text::regnamespace"
#: Everything that a test could have altered, as one line.
_SHAPE = """
WITH c AS (SELECT * FROM pg_class WHERE relnamespace = %(name)s::text::regnamespace)
SELECT md5(concat(
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
_SEQUENCES = """
SELECT format('%%I.%%I', %(name)s::text, relname) FROM pg_class
WHERE relnamespace = %(name)s::text::regnamespace AND relkind = 'S'
"""


def address(base: str, schema: str) -> str:
    """The address of a store in this schema of a server."""
    return f"{base}{'&' if '?' in base else '?'}schema={schema}"


class Schemas:
    """The schemas of one process on one server."""

    def __init__(self, base: str) -> None:
        self.base = base
        self._conn = psycopg.connect(base, autocommit=True)
        self._pristine = self._make()
        self._shape = self._fact(_SHAPE, name=self._pristine)
        self._tables = [name for (name,) in self._conn.execute(_TABLES, [self._pristine])]
        self._seeded = [name for name in self._tables if self._fact(f"SELECT count(*) FROM {self._pristine}.{name}")]
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
        if self._is_as_before(spare) and self._empty(spare):
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

    def _is_as_before(self, name: str) -> bool:
        small: bool = self._fact(_BYTES, name) < MOST_BYTES
        return small and bool(self._fact(_SHAPE, name=name) == self._shape)

    def _empty(self, name: str) -> bool:
        everything = ", ".join(f"{name}.{table}" for table in self._tables)
        try:
            with self._conn.transaction():
                self._conn.execute(f"LOCK TABLE {everything} IN ACCESS EXCLUSIVE MODE NOWAIT")
                self._conn.execute("SET LOCAL session_replication_role = replica")
                for table in self._tables:
                    self._conn.execute(f"DELETE FROM {name}.{table}")
                for table in self._seeded:
                    self._conn.execute(f"INSERT INTO {name}.{table} SELECT * FROM {self._pristine}.{table}")
                for (sequence,) in self._conn.execute(_SEQUENCES, {"name": name}).fetchall():
                    self._conn.execute("SELECT setval(%s::text::regclass, 1, false)", [sequence])
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    def _fact(self, query: str, *values: Any, **named: Any) -> Any:
        row = self._conn.execute(query, values or named).fetchone()  # type: ignore[call-overload]
        assert row is not None
        return row[0]


def drop(conn: psycopg.Connection[Any], schema: str) -> None:
    conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def _new_name() -> str:
    return f"t{secrets.token_hex(6)}"
