"""Inspects a table before a migration is written for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

from holdfast.adopt.database_errors import passes
from holdfast.adopt.ddl.migration import DIALECTS, Wish
from holdfast.adopt.ddl.sqlite import Present
from holdfast.adopt.ddl.sqlite import look as look_at_sqlite
from holdfast.errors import DefinitionError, StoreBroken, StoreUnavailable, UsageError
from holdfast.model.redact import ESCAPE, is_ambiguous


def look(url: str, wish: Wish) -> tuple[str, Present | None, Wish]:
    """The dialect, what the database already has (SQLite only), and the wish with the table's real primary key."""
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
            return name, *_look(connection, wish)
    except sa.exc.OperationalError as error:
        unusable = StoreUnavailable if passes(error) else StoreBroken
        raise unusable(f"{engine.url.render_as_string()}: {error.orig}") from error
    finally:
        engine.dispose()


def _look(connection: sa.Connection, wish: Wish) -> tuple[Present | None, Wish]:
    inspector = sa.inspect(connection)
    if not inspector.has_table(wish.table, schema=wish.schema):
        raise DefinitionError(f"there is no table {wish.table!r} in this database")
    columns = {one["name"] for one in inspector.get_columns(wish.table, schema=wish.schema)}
    if wish.status not in columns:
        raise DefinitionError(
            f"table {wish.table!r} has no column {wish.status!r}; it has: {', '.join(sorted(columns))}"
        )
    key = inspector.get_pk_constraint(wish.table, schema=wish.schema)["constrained_columns"]
    wish = replace(wish, key=tuple(key) or wish.key)
    return (look_at_sqlite(connection, wish) if connection.dialect.name == "sqlite" else None), wish
