"""The migration for SQLite: written from what the database has, since its statements cannot check that themselves.

`is_job_stale` is a column of a view with one row per processing row. The view's text records what the migration added.
Without access to the database, the migration assumes that only the table, its key, its status column and its started
column exist.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from holdfast.adopt.ddl.migration import MARK, Quote, TableMigration, Wish
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


def look(connection: Connection, wish: Wish) -> Present:
    """Read what the database has."""
    inspector = sa.inspect(connection)
    if not inspector.has_table(wish.table, schema=wish.schema):
        raise DefinitionError(f"table {wish.table!r} does not exist in this database")
    columns = frozenset(one["name"] for one in inspector.get_columns(wish.table, schema=wish.schema))
    master = sa.table("sqlite_master", *map(sa.column, ("type", "name", "sql")), schema=wish.schema)
    names = connection.execute(sa.select(master.c.name).where(master.c.type == "index")).scalars()
    view = connection.execute(
        sa.select(master.c.sql).where(master.c.type == "view", master.c.name == view_name(wish))
    ).scalar()
    found = _REMEMBERED.search(view or "")
    if view is not None and found is None:
        raise DefinitionError(f"there is a view {view_name(wish)!r} already, which is not holdfast's")
    added: dict[str, Any] = json.loads(found[1]) if found else {}
    return Present(columns, frozenset(names), view, tuple(added.get("columns", ())), tuple(added.get("indexes", ())))


def view_name(wish: Wish) -> str:
    return f"{wish.table}_is_job_stale"


def write_sqlite(wish: Wish, there: Present | None) -> TableMigration:
    quote = Quote("sqlite")
    table, view = quote.name(wish.schema, wish.table), quote.name(wish.schema, view_name(wish))
    if there is None:
        # The started column may be the owner's own: it is neither added nor dropped.
        new = {role: name for role, name in wish.columns.items() if role != "started"}
        new_indexes = {of: wish.index(of) for of in ("processing", "queued")}
        added_columns, added_indexes = list(new.values()), list(new_indexes.values())
    else:
        new = {role: name for role, name in wish.columns.items() if name not in there.columns}
        new_indexes = {of: wish.index(of) for of in ("processing", "queued") if wish.index(of) not in there.indexes}
        added_columns = [*there.added_columns, *new.values()]
        added_indexes = [*there.added_indexes, *new_indexes.values()]
    adding = [f"ALTER TABLE {table} ADD COLUMN {quote.name(name)} {_TYPES[role]};" for role, name in new.items()]
    adding += [_index(wish, quote, of, name) for of, name in new_indexes.items()]
    making = _view(wish, quote, view, added_columns, added_indexes)
    up = _up(there, adding, view, making)
    gone = there is not None and there.view is None
    down = [f"DROP VIEW IF EXISTS {view};"]
    down += [f"DROP INDEX IF EXISTS {quote.name(wish.schema, name)};" for name in reversed(added_indexes)]
    down += [f"ALTER TABLE {table} DROP COLUMN {quote.name(name)};" for name in reversed(added_columns)]
    if there is not None:
        down = ["-- nothing to take back"] if gone else ["BEGIN IMMEDIATE;", *down, "COMMIT;"]
    return TableMigration(tuple(up), tuple(down))


def _up(there: Present | None, adding: list[str], view: str, making: str) -> list[str]:
    if there is None:
        return [*adding, making.replace("CREATE VIEW", "CREATE VIEW IF NOT EXISTS", 1)]
    if not adding and there.view is not None and there.view == making.removesuffix(";"):
        return ["-- nothing to add"]
    return ["BEGIN IMMEDIATE;", *adding, f"DROP VIEW IF EXISTS {view};", making, "COMMIT;"]


def _index(wish: Wish, quote: Quote, of: str, name: str) -> str:
    word, columns = {
        "processing": (wish.processing, (wish.columns["heartbeat"],)),
        "queued": (wish.queued, tuple(wish.key)),
    }[of]
    # Only the index names the schema: its table is always in the same one.
    return (
        f"CREATE INDEX IF NOT EXISTS {quote.name(wish.schema, name)} ON {quote.name(wish.table)} ({quote.names(columns)})\n"
        f"  WHERE {quote.name(wish.status)} = {quote.text(word)};"
    )


def _view(wish: Wish, quote: Quote, view: str, columns: list[str], indexes: list[str]) -> str:
    remembered = json.dumps({"columns": columns, "indexes": indexes}).replace("*/", "*\\/")
    times = [quote.name(wish.columns[role]) for role in ("heartbeat", "started") if role in wish.columns]
    since = f"coalesce({', '.join(times)})" if len(times) > 1 else times[0]
    silent = f"(julianday('now') - julianday({since})) * 86400.0"
    return (
        f"CREATE VIEW {view} AS\n"
        f"/* {MARK}: {remembered} */\n"
        f"SELECT {quote.names(wish.key)}, {silent} AS silent_seconds,\n"
        f"  coalesce({silent} > {wish.stale_seconds:g}, 1) AS is_job_stale\n"
        f"FROM {quote.name(wish.table)} WHERE {quote.name(wish.status)} = {quote.text(wish.processing)};"
    )
