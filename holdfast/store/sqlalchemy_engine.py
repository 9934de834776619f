"""A SQLAlchemy engine for the database of a store, for users' own tables there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.store.kind import kind_of_address
from holdfast.store.postgres_address import MISSING_DRIVER, read_url
from holdfast.store.sqlite_files import file_of, make_database

if TYPE_CHECKING:
    from sqlalchemy import Engine


def store_engine(url: str) -> Engine:
    """A SQLAlchemy engine for the database of a store, given its address. It opens a new connection each time, so processes
    may be forked. On SQLite foreign keys are enforced, as they are in effects."""
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    if kind_of_address(url) == "sqlite":
        path = file_of(url)
        engine = create_engine(f"sqlite:///{path}", poolclass=NullPool, connect_args={"timeout": 30})
        event.listen(engine, "do_connect", lambda *_: make_database(path))
        event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA foreign_keys = ON"))
        return engine
    try:
        import psycopg
    except ImportError:
        raise UsageError(MISSING_DRIVER) from None
    conninfo = read_url(url)[0]
    # No prepared statements: behind a pooler the sessions are shared.
    return create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo, prepare_threshold=None), poolclass=NullPool
    )
