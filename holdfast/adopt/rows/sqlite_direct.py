"""Direct: one statement, straight to SQLite's driver.

SQLite answers faster than SQLAlchemy carries a statement to it and back. A loop says the same few statements again and
again; those are kept as texts, and given to a cursor of the driver's own, on a connection out of the engine's pool.

Nobody may miss anything by it. An engine that somebody listens to, that logs its statements, or that was given options is
spoken to through SQLAlchemy. Errors are those that SQLAlchemy would raise.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple, cast

from sqlalchemy import Engine, QueuePool, exc
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.pool import PoolProxiedConnection

#: Said by whoever reads an answer that is not the usual one: nothing is to be kept of it, SQLAlchemy may ask once more.
UNUSUAL = object()

#: For how long a connection is kept at most, before it is returned and one is taken anew.
KEPT_SECONDS = 1.0

#: Who would hear of a statement, a connection or a transaction that SQLAlchemy sees to.
_of_engine = attrgetter(
    "before_execute",
    "after_execute",
    "before_cursor_execute",
    "after_cursor_execute",
    "begin",
    "commit",
    "rollback",
    "engine_connect",
)
_of_dialect = attrgetter("do_execute", "handle_error")


class Direct(NamedTuple):
    """A statement, its values as the driver takes them, and what is read from the cursor: an answer, or UNUSUAL."""

    text: str
    values: Any
    read: Callable[[DBAPICursor], Any]


def is_plain(engine: Engine) -> bool:
    """Whether SQLAlchemy would do no more with a statement than hand it on to SQLite."""
    return (
        type(engine.dialect) is sqlite.dialect
        and type(engine) is Engine
        and not engine.get_execution_options()
        and not any(_of_engine(engine.dispatch))
        and not any(_of_dialect(engine.dialect.dispatch))
        and not engine.logger.isEnabledFor(logging.INFO)
    )


class DirectLine:
    """A way to the driver, for one thread: each statement is a transaction of its own.

    The connection goes back to the pool after it; or stays for the next one, if its user has said that this is near, and
    if the pool then still has enough for `others`. To take one and to return it costs as much as a statement does, and
    another one does not know what this one has read. It is not kept for long at a time, so that what changes about the
    engine and its pool is seen.
    """

    def __init__(self, others: int = 0) -> None:
        self._others = others
        self._pooled: PoolProxiedConnection | None = None
        self._until = 0.0
        #: Set by its user: the next statement is near.
        self.stays_open = False

    def close(self) -> None:
        """Return the connection, if one is kept."""
        pooled, self._pooled = self._pooled, None
        if pooled is not None:
            pooled.close()

    def transact(self, engine: Engine, make: Callable[[], Direct | None]) -> Any:
        """Carry out the statement that is made; UNUSUAL: nothing was done, ask through SQLAlchemy."""
        pooled = self._pooled
        if pooled is None or time.monotonic() >= self._until:
            self.close()
            if not is_plain(engine) or (pooled := _connection(engine)) is None:
                return UNUSUAL
            if self.stays_open and _has_room(engine, self._others):
                self._pooled, self._until = pooled, time.monotonic() + KEPT_SECONDS
        stays = False
        try:
            direct = make()
            answer = UNUSUAL if direct is None else _carry_out(engine, pooled, direct)
            stays = self.stays_open and answer is not UNUSUAL
            return answer
        finally:
            if not stays or self._pooled is None:
                self._pooled = None
                pooled.close()


def _connection(engine: Engine) -> PoolProxiedConnection | None:
    """One out of the pool; None if none could be opened, and SQLAlchemy is to say why."""
    try:
        return engine.raw_connection()
    except sqlite3.Error:
        return None


def _has_room(engine: Engine, others: int) -> bool:
    """Whether so many more connections can be had at once. Of other pools than the usual one it is not known."""
    pool = engine.pool
    if not isinstance(pool, QueuePool):
        return False
    beyond = getattr(pool, "_max_overflow", 0)  # below zero: as many as anybody wants
    return beyond < 0 or pool.size() + beyond - pool.checkedout() >= others


def _carry_out(engine: Engine, pooled: PoolProxiedConnection, direct: Direct) -> Any:
    text, values, read = direct
    try:
        cursor = pooled.cursor()
        try:
            cursor.execute(text, values)
            answer = read(cursor)
        finally:
            cursor.close()
        if answer is UNUSUAL:
            pooled.rollback()
        else:
            pooled.commit()
        return answer
    except BaseException as error:
        is_cut_off = isinstance(error, sqlite3.Error) and engine.dialect.is_disconnect(cast(Any, error), pooled, None)
        if is_cut_off:
            pooled.invalidate(error)
        else:
            with contextlib.suppress(sqlite3.Error):
                pooled.rollback()
        if not isinstance(error, sqlite3.Error):
            raise
        raise exc.DBAPIError.instance(
            text,
            values,
            error,
            sqlite3.Error,
            hide_parameters=engine.hide_parameters,
            connection_invalidated=is_cut_off,
            dialect=engine.dialect,
        ) from error
