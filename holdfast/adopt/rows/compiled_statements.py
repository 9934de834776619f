"""Statements that are compiled once, and on SQLite run on the driver directly, on connections from the engine's pool.

Building a statement takes longer than many databases take to run it, and SQLite runs one faster than SQLAlchemy can
process it. So a loop's most frequent statements are compiled once, and on SQLite passed to a driver's cursor as text.

The shortcut must not be observable. An engine with event listeners, statement logging or execution options goes through
SQLAlchemy. A statement that fails is undone and left to SQLAlchemy, which raises the error if it occurs again.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from operator import attrgetter
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Dialect, Engine, QueuePool, Update
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import PoolProxiedConnection

#: How long to keep a connection before returning it to the pool.
KEPT_SECONDS = 1.0

#: Event listeners that the direct path would bypass.
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


class Prepared:
    """A compiled UPDATE. Its parameters begin with `hf_`."""

    def __init__(self, statement: Update, dialect: Dialect) -> None:
        self._statement = statement
        compiled: Any = statement.compile(dialect=dialect)
        self.text = str(compiled)
        self._order = getattr(compiled, "positiontup", None)
        #: Parameters that are named after the user's columns, with the characters that a driver cannot read replaced.
        self._escaped: dict[str, str] = dict(compiled.escaped_bind_names or {})
        binds: list[tuple[str, Any]] = [(name, bind) for bind, name in compiled.bind_names.items()]
        self._fixed = {name: bind.value for name, bind in binds if not (bind.required or bind.callable)}
        self._computed = [(name, bind.callable) for name, bind in binds if bind.callable]
        self._processors = {
            name: found for name, bind in binds if (found := bind.type.dialect_impl(dialect).bind_processor(dialect))
        }
        #: The text can be sent as it is: no list to expand, and no parameter of the user's without a value.
        self.is_whole = not (compiled.post_compile_params or compiled.literal_execute_params) and all(
            name.startswith("hf_") for name, bind in binds if bind.required
        )

    def given(self, values: dict[str, Any]) -> Any:
        """All values as the driver expects them: by name, or by position."""
        whole = {**self._fixed, **values}
        for name, compute in self._computed:
            whole[name] = compute()
        for name, process in self._processors.items():
            whole[name] = process(whole[name])
        if self._order is not None:
            return tuple(map(whole.__getitem__, self._order))
        for name, escaped in self._escaped.items():
            whole[escaped] = whole.pop(name)
        return whole

    def run(self, connection: Connection, values: dict[str, Any]) -> int:
        """Run the statement; return how many rows it changed."""
        if "schema_translate_map" in connection.get_execution_options():
            return connection.execute(self._statement, values).rowcount
        return connection.exec_driver_sql(self.text, self.given(values)).rowcount


class Answer(NamedTuple):
    """The rows that a statement returned, and how many it changed."""

    rows: list[Any]
    changed: int


def is_plain(engine: Engine) -> bool:
    """Whether SQLAlchemy would only pass a statement on to SQLite."""
    return (
        type(engine.dialect) is sqlite.dialect
        and type(engine) is Engine
        and not engine.get_execution_options()
        and not any(_of_engine(engine.dispatch))
        and not any(_of_dialect(engine.dialect.dispatch))
        and not engine.logger.isEnabledFor(logging.INFO)
    )


class DirectLine:
    """Direct access to the driver for one thread: each statement is a transaction of its own.

    The connection returns to the pool after each statement. With `stays_open` it is kept for the next one, if the pool
    has enough left for `others`: a checkout costs as much as a statement, and another connection lacks the page cache. It
    is kept only briefly, so that changes to the engine and its pool take effect.
    """

    def __init__(self, others: int = 0) -> None:
        self._others = others
        self._pooled: PoolProxiedConnection | None = None
        self._until = 0.0
        #: Set by the caller if the next statement follows soon.
        self.stays_open = False

    def close(self) -> None:
        """Return the connection to the pool, if one is kept."""
        pooled, self._pooled = self._pooled, None
        if pooled is not None:
            pooled.close()

    def transact(self, engine: Engine, statement: Prepared, values: dict[str, Any]) -> Answer | None:
        """Run the statement, and commit. None means that nothing was done: use SQLAlchemy instead."""
        pooled = self._pooled
        if pooled is None or time.monotonic() >= self._until:
            self.close()
            if not (statement.is_whole and is_plain(engine)) or (pooled := _connection(engine)) is None:
                return None
            if self.stays_open and _has_room(engine, self._others):
                self._pooled, self._until = pooled, time.monotonic() + KEPT_SECONDS
        answer = None
        try:
            answer = _carry_out(engine, pooled, statement.text, statement.given(values))
            return answer
        finally:
            if answer is None or not self.stays_open or self._pooled is None:
                self._pooled = None
                pooled.close()


def _connection(engine: Engine) -> PoolProxiedConnection | None:
    """A connection from the pool; None if it cannot be opened, so that SQLAlchemy reports why."""
    try:
        return engine.raw_connection()
    except sqlite3.Error:
        return None


def _has_room(engine: Engine, others: int) -> bool:
    """Whether the pool can still provide this many connections. False for pools other than QueuePool: unknown."""
    pool = engine.pool
    if not isinstance(pool, QueuePool):
        return False
    beyond = getattr(pool, "_max_overflow", 0)  # negative: unlimited
    return beyond < 0 or pool.size() + beyond - pool.checkedout() >= others


def _carry_out(engine: Engine, pooled: PoolProxiedConnection, text: str, values: Any) -> Answer | None:
    try:
        cursor = pooled.cursor()
        try:
            cursor.execute(text, values)
            answer = Answer(list(cursor.fetchall()), cursor.rowcount)
        finally:
            cursor.close()
        pooled.commit()
        return answer
    except BaseException as error:
        if isinstance(error, sqlite3.Error) and engine.dialect.is_disconnect(cast(Any, error), pooled, None):
            pooled.invalidate(error)
        else:
            with contextlib.suppress(sqlite3.Error):
                pooled.rollback()
        if not isinstance(error, sqlite3.Error):
            raise
        return None
