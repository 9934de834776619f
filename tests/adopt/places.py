"""Engines as a user would make them, for a SQLAlchemy address that a test and its processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Engine

from holdfast.adopt.rows import sql

if TYPE_CHECKING:
    import pytest


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


def pretend_support(monkeypatch: pytest.MonkeyPatch, *, skip_locked: bool) -> None:
    """Let the statements be those for a database without RETURNING, with or without SKIP LOCKED."""
    pretended = sql.Support(skip_locked, returning=False)
    monkeypatch.setattr(sql, "support_of", lambda dialect: pretended)
