"""Engines as a user would make them, for a SQLAlchemy address that a test and its processes share."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine


def engine_on(url: str, **settings: Any) -> Engine:
    """An engine; a SQLite file with a write-ahead log, and patience."""
    if not url.startswith("sqlite"):
        return sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:", 1), **settings)
    engine = sa.create_engine(url, connect_args={"timeout": 30}, **settings)
    sa.event.listen(engine, "connect", _use_write_ahead_log)
    return engine


def _use_write_ahead_log(connection: Any, _: object) -> None:
    connection.execute("PRAGMA journal_mode = WAL")


def async_url(url: str) -> str:
    return url.replace("sqlite:", "sqlite+aiosqlite:", 1)
