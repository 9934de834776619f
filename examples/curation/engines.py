"""The two engines of the service, on one database: one for schedulers with threads, one for those with tasks."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from holdfast import UsageError

#: Which driver serves a database, in threads and on an event loop; psycopg is both.
DRIVERS = {
    "sqlite": ("sqlite", "sqlite+aiosqlite"),
    "postgresql": ("postgresql+psycopg", "postgresql+psycopg"),
}
#: How long a process waits for another one that writes to the same SQLite file.
PATIENCE_SECONDS = 30


def sync_engine(address: str) -> Engine:
    url, settings = _read(address, 0)
    return _prepared(sa.create_engine(url, **settings))


def async_engine(address: str) -> AsyncEngine:
    url, settings = _read(address, 1)
    engine = create_async_engine(url, **settings)
    _prepared(engine.sync_engine)
    return engine


def _read(address: str, which: int) -> tuple[sa.URL, dict[str, Any]]:
    kind = address.partition(":")[0].partition("+")[0]
    if kind not in DRIVERS:
        raise UsageError(f"CURATION_DATABASE: {kind!r} is none of {', '.join(DRIVERS)}")
    url = sa.make_url(address).set(drivername=DRIVERS[kind][which])
    return url, {"connect_args": {"timeout": PATIENCE_SECONDS}} if kind == "sqlite" else {"pool_size": 10}


def _prepared(engine: Engine) -> Engine:
    """A SQLite file with a write-ahead log, on which every commit is on the disk before it is called one."""
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _set_pragmas)
    return engine


def _set_pragmas(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
