"""Open the store at an address: SQLite or PostgreSQL."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.errors import UsageError
from holdfast.store.kind import kind_of_address
from holdfast.store.postgres_address import MISSING_DRIVER
from holdfast.store.store import Store


def open_store(url: str, *, create: bool = True, clock: Clock | None = None) -> Store:
    """Open the store at this address. Only `create` lets it make a new SQLite file."""
    kind = kind_of_address(url)
    if kind == "sqlite":
        from holdfast.store.sqlite import SQLite
        from holdfast.store.sqlite_reader import SQLiteReader

        return SQLite.store(url, create=create, clock=clock, reader=SQLiteReader)
    if kind == "postgres":
        try:
            from holdfast.store.postgres import Postgres
        except ImportError as error:
            # Also raised by a driver without its libpq, which the package named here brings along.
            raise UsageError(f"{MISSING_DRIVER} ({error})") from error

        return Postgres.store(url, clock=clock)
    # The address is not shown: it may hold a password in an unexpected place.
    raise UsageError(
        "the store's address is of no known kind: write sqlite:///path/to/file.db or postgresql://user@host/database"
    )
