"""Open an old database: SQLite or PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import UsageError
from holdfast.legacy.old_database import OldDatabase
from holdfast.legacy.old_sqlite import OldSQLite
from holdfast.store.kind import kind_of_address
from holdfast.store.postgres_address import MISSING_DRIVER


def open_old(address: str | Path) -> OldDatabase:
    """Open the old database at a path, or at the address of a SQLite file or a PostgreSQL database."""
    given = str(address)
    if kind_of_address(given) == "postgres":
        try:
            from holdfast.legacy.old_postgres import OldPostgres
        except ImportError as error:
            raise UsageError(f"{MISSING_DRIVER} ({error})") from error
        return OldPostgres(given)
    return OldSQLite(given.removeprefix("sqlite:///"))
