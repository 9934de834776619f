"""The database: an engine with the settings that several processes need, and the tables in it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from examples.fiction.tables import Tables


def engine_on(url: str) -> Engine:
    """An engine; on SQLite with a write-ahead log, patience, and foreign keys that are kept."""
    if url.startswith("postgresql:"):
        url = url.replace("postgresql:", "postgresql+psycopg:", 1)
    if not url.startswith("sqlite"):
        return sa.create_engine(url)
    engine = sa.create_engine(url, connect_args={"timeout": 30})
    sa.event.listen(engine, "connect", _prepare)
    return engine


def _prepare(connection: Any, _: object) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")


class Database:
    """An engine, sessions on it, and the tables they know."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self.engine = engine
        self.tables = tables
        self.sessions: sessionmaker[Session] = sessionmaker(engine)

    def create(self) -> None:
        """Make the tables that are missing, and see that those that are there will do."""
        self.tables.metadata.create_all(self.engine)
        self.tables.check(self.engine)

    def close(self) -> None:
        self.engine.dispose()
