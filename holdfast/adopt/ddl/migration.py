"""Additive migrations for a table that has a status column: columns, indexes, and a check for stale rows.

    up     adds what is missing: heartbeat, started, attempts, next attempt, version, holder; one index of the processing
           rows and one of the queued rows; `is_job_stale`
    down   removes what up added, and nothing that existed before

Both are SQL text, to be reviewed and run with the database's own client. Up marks what it adds: with comments in
PostgreSQL, in the text of the view in SQLite. Both are idempotent.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

from holdfast.adopt.ddl.missing_columns import TableMigration, WantedColumns
from holdfast.adopt.ddl.postgresql import write_postgresql
from holdfast.adopt.ddl.sqlite import Present, read_present, write_sqlite
from holdfast.adopt.sqlalchemy_errors import passes
from holdfast.errors import DefinitionError, StoreBroken, StoreUnavailable, UsageError
from holdfast.model.redact import ESCAPE, is_ambiguous

DIALECTS = ("postgresql", "sqlite")


def migration(wanted: WantedColumns, dialect: str, present: Present | None = None) -> TableMigration:
    """The statements for a dialect. `present` is what `inspect` found; without it, SQLite's migration has to guess."""
    if dialect not in DIALECTS:
        raise UsageError(f"adopt-sql: no migration can be written for {dialect!r}; there are: {', '.join(DIALECTS)}")
    return write_postgresql(wanted) if dialect == "postgresql" else write_sqlite(wanted, present)


def inspect(url: str, wanted: WantedColumns) -> tuple[str, Present | None, WantedColumns]:
    """The dialect, what the database already has (SQLite only), and the wanted columns with the table's real primary key."""
    if is_ambiguous(url):
        raise UsageError(f"--url: the address cannot be read: {ESCAPE}")
    try:
        # `postgresql://` alone selects psycopg2, which is not a dependency.
        engine = sa.create_engine(sa.make_url(url.replace("postgresql://", "postgresql+psycopg://", 1)))
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ImportError) as error:
        raise UsageError(f"--url: {error}") from None
    name = engine.dialect.name
    if name not in DIALECTS:
        raise UsageError(f"--url: no migration can be written for {name}; there are: {', '.join(DIALECTS)}")
    file = engine.url.database
    if name == "sqlite" and not (file and (file.startswith("file:") or Path(file).is_file())):
        raise StoreBroken(f"--url: there is no file {file!r}")
    try:
        with engine.connect() as connection:
            return name, *_inspect(connection, wanted)
    except sa.exc.OperationalError as error:
        unusable = StoreUnavailable if passes(error) else StoreBroken
        raise unusable(f"{engine.url.render_as_string()}: {error.orig}") from error
    finally:
        engine.dispose()


def _inspect(connection: sa.Connection, wanted: WantedColumns) -> tuple[Present | None, WantedColumns]:
    inspector, table = sa.inspect(connection), wanted.table
    if not inspector.has_table(table, schema=wanted.schema):
        raise DefinitionError(f"there is no table {table!r} in this database")
    columns = {one["name"] for one in inspector.get_columns(table, schema=wanted.schema)}
    if wanted.status not in columns:
        raise DefinitionError(f"table {table!r} has no column {wanted.status!r}; it has: {', '.join(sorted(columns))}")
    key = inspector.get_pk_constraint(table, schema=wanted.schema)["constrained_columns"]
    wanted = replace(wanted, key=tuple(key) or wanted.key)
    return (read_present(connection, wanted, columns) if connection.dialect.name == "sqlite" else None), wanted
