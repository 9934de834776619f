"""The database: an engine with the settings that several processes need, and what holdfast must know of the tables.

    database = Database("sqlite:///fiction.db")
    database.create()
    claim(database.engine, database.items, 10)

A mapping names the columns of a model that holdfast may read and write. It writes no others.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from examples.fiction.models import Base, Checkpoint, Item, Requirement, Status, Task
from holdfast.adopt import TableMapping

#: The columns that guard a claim, each of them optional.
GUARDS = {"holder": "holder", "version": "version", "heartbeat": "last_heartbeat"}
#: How often a piece, or a page of the world bible, is tried.
MOST_ATTEMPTS = 5


class Database:
    """An engine, sessions on it, and a mapping for each table with a status; `guards` names those of GUARDS to use."""

    def __init__(self, url: str, guards: Collection[str] = tuple(GUARDS), most_attempts: int = MOST_ATTEMPTS) -> None:
        self.engine = _engine_on(url)
        self.sessions: sessionmaker[Session] = sessionmaker(self.engine)
        counted = {"attempts": "attempts", "max_attempts": most_attempts}
        # An item is tried as often as its task is: to enqueue it is not yet an attempt.
        self.items = _mapping(Item, guards)
        self.tasks = _mapping(Task, guards, **counted)
        self.checkpoints = _mapping(Checkpoint, guards)
        self.requirements = _mapping(Requirement, guards, **counted)

    def create(self) -> None:
        """Make the tables that are missing, and see that those that are there will do: DefinitionError if not."""
        Base.metadata.create_all(self.engine)
        for mapping in (self.items, self.tasks, self.checkpoints, self.requirements):
            mapping.check(self.engine)

    def close(self) -> None:
        self.engine.dispose()


def _mapping(model: Any, guards: Collection[str], **more: Any) -> TableMapping:
    return TableMapping(
        model,
        queued=Status.PENDING,
        processing=Status.IN_PROGRESS,
        completed=Status.COMPLETE,
        failed=Status.FAILED,
        error="error",
        next_attempt="next_attempt_at",
        started="started_at",
        **{role: GUARDS[role] for role in guards},
        **more,
    )


def _engine_on(url: str) -> Engine:
    """An engine; on SQLite with a write-ahead log, patience, and foreign keys that are kept."""
    if url.startswith("postgresql:"):
        url = url.replace("postgresql:", "postgresql+psycopg:", 1)
    if not url.startswith("sqlite"):
        return sa.create_engine(url)
    engine = sa.create_engine(url, connect_args={"timeout": 30})
    sa.event.listen(engine, "connect", _prepare)
    return engine


def _prepare(connection: Any, _: object) -> None:
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
