"""The migration for SQLite: written from what the database has, since its statements cannot check that themselves.

`is_job_stale` is a column of a view with one row per processing row. The view's text records what the migration added.
Without access to the database, the migration assumes that only the table, its key, its status column and its started
column exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from holdfast.adopt.ddl.missing_columns import MARK, TableMigration, WantedColumns, literal, quoted, quoted_list
from holdfast.errors import DefinitionError

_TYPES = {
    "heartbeat": "DATETIME",
    "started": "DATETIME",
    "attempts": "INTEGER NOT NULL DEFAULT 0",
    "next_attempt": "DATETIME",
    "version": "INTEGER NOT NULL DEFAULT 0",
    "holder": "TEXT",
}
_REMEMBERED = re.compile(rf"/\* {MARK}: (\{{.*?\}}) \*/", re.DOTALL)


@dataclass(frozen=True)
class Present:
    """What a database has: columns, indexes, the text of the view, and what that text records as added."""

    columns: frozenset[str]
    indexes: frozenset[str]
    view: str | None
    added_columns: tuple[str, ...] = ()
    added_indexes: tuple[str, ...] = ()


def read_present(connection: Connection, wanted: WantedColumns, columns: Iterable[str]) -> Present:
    """What the database has; the columns are known."""
    master = sa.table("sqlite_master", *map(sa.column, ("type", "name", "sql")), schema=wanted.schema)
    names = connection.execute(sa.select(master.c.name).where(master.c.type == "index")).scalars()
    name = view_name(wanted)
    view = connection.execute(sa.select(master.c.sql).where(master.c.type == "view", master.c.name == name)).scalar()
    found = _REMEMBERED.search(view or "")
    if view is not None and found is None:
        raise DefinitionError(f"there is a view {name!r} already, which is not holdfast's")
    added: dict[str, Any] = json.loads(found[1]) if found else {}
    return Present(frozenset(columns), frozenset(names), view, **{f"added_{one}": tuple(added[one]) for one in added})


def view_name(wanted: WantedColumns) -> str:
    return f"{wanted.table}_is_job_stale"


def write_sqlite(wanted: WantedColumns, present: Present | None) -> TableMigration:
    table, view = quoted(wanted.schema, wanted.table), quoted(wanted.schema, view_name(wanted))
    # Without access to the database: the started column may be the owner's own, and is neither added nor dropped.
    there = present or Present(frozenset([wanted.columns.get("started", "")]), frozenset(), None)
    new = {role: name for role, name in wanted.columns.items() if name not in there.columns}
    new_indexes = {of: wanted.index(of) for of in wanted.indexes if wanted.index(of) not in there.indexes}
    added_columns = [*there.added_columns, *new.values()]
    added_indexes = [*there.added_indexes, *new_indexes.values()]
    adding = [f"ALTER TABLE {table} ADD COLUMN {quoted(name)} {_TYPES[role]};" for role, name in new.items()]
    adding += [_index(wanted, of, name) for of, name in new_indexes.items()]
    making = _view(wanted, view, added_columns, added_indexes)
    down = [f"DROP VIEW IF EXISTS {view};"]
    down += [f"DROP INDEX IF EXISTS {quoted(wanted.schema, name)};" for name in reversed(added_indexes)]
    down += [f"ALTER TABLE {table} DROP COLUMN {quoted(name)};" for name in reversed(added_columns)]
    if present is not None:
        down = ["-- nothing to take back"] if present.view is None else ["BEGIN IMMEDIATE;", *down, "COMMIT;"]
    return TableMigration(tuple(_up(present, adding, view, making)), tuple(down))


def _up(there: Present | None, adding: list[str], view: str, making: str) -> list[str]:
    if there is None:
        return [*adding, making.replace("CREATE VIEW", "CREATE VIEW IF NOT EXISTS", 1)]
    if not adding and there.view is not None and there.view == making.removesuffix(";"):
        return ["-- nothing to add"]
    return ["BEGIN IMMEDIATE;", *adding, f"DROP VIEW IF EXISTS {view};", making, "COMMIT;"]


def _index(wanted: WantedColumns, of: str, name: str) -> str:
    word, columns = wanted.indexes[of]
    # Only the index names the schema: its table is always in the same one.
    return (
        f"CREATE INDEX IF NOT EXISTS {quoted(wanted.schema, name)} ON {quoted(wanted.table)} ({quoted_list(columns)})\n"
        f"  WHERE {quoted(wanted.status)} = {literal(word)};"
    )


def _view(wanted: WantedColumns, view: str, columns: list[str], indexes: list[str]) -> str:
    remembered = json.dumps({"columns": columns, "indexes": indexes}).replace("*/", "*\\/")
    times = wanted.times
    since = f"coalesce({', '.join(times)})" if len(times) > 1 else times[0]
    silent = f"(julianday('now') - julianday({since})) * 86400.0"
    return (
        f"CREATE VIEW {view} AS\n"
        f"/* {MARK}: {remembered} */\n"
        f"SELECT {quoted_list(wanted.key)}, {silent} AS silent_seconds,\n"
        f"  coalesce({silent} > {wanted.stale_seconds:g}, 1) AS is_job_stale\n"
        f"FROM {quoted(wanted.table)} WHERE {quoted(wanted.status)} = {literal(wanted.processing)};"
    )
