"""A SQLAlchemy Connection inside a transaction of the store.

It runs on the store's own driver connection, through a dialect that uses savepoints but neither commits nor rolls back.
SQLAlchemy is loaded before the first transaction with an effect: loading takes a while, and most processes never need it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.store.slow_calls import awake_seconds

if TYPE_CHECKING:
    from sqlalchemy import Connection

#: Statements that end a transaction or begin one, after any comments. Savepoints are the user's to use.
_ENDS = re.compile(
    r"(?:\s+|/\*.*?\*/|--[^\n]*\n)*"
    r"(?:COMMIT|END|ABORT|BEGIN|START\s+TRANSACTION|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)


class Enlisted:
    """A connection of ours as SQLAlchemy knows it, and how long user code has left it idle."""

    def __init__(self, raw: Any, dialect: str) -> None:
        from sqlalchemy import create_engine, event, literal, select
        from sqlalchemy.pool import StaticPool

        self.raw = raw
        self._longest, self._since = 0.0, _running()
        url = {"sqlite": "sqlite://", "postgres": "postgresql+psycopg://"}[dialect]
        self._engine = create_engine(url, creator=lambda: raw, poolclass=StaticPool, pool_reset_on_return=None)
        for method in ("do_commit", "do_rollback", "do_close", "do_terminate"):
            setattr(self._engine.dialect, method, _leave_alone)
        event.listen(self._engine, "before_cursor_execute", self._before)
        event.listen(self._engine, "after_cursor_execute", self._after)
        event.listen(self._engine, "handle_error", self._after)
        # The first connection asks the server what it can do, and the first statement loads the compiler.
        with self._engine.connect() as connection:
            connection.execute(select(literal(1)))

    @contextmanager
    def join(self) -> Iterator[Connection]:
        """A Connection in the transaction. The caller has made a savepoint before, and rolls back to it if this raises."""
        self._longest, self._since = 0.0, _running()
        with self._engine.connect() as connection:
            connection.begin()
            # A Session on it then commits and rolls back a savepoint of its own, and nothing else.
            inner = connection.begin_nested()
            yield connection
            if not inner.is_active or connection.get_nested_transaction() is not inner:
                raise _not_yours()
            inner.commit()

    @property
    def longest_pause(self) -> float:
        """The longest time, in seconds, for which user code has kept the database waiting since it joined. Time in which this
        process was stopped, or the database was busy, does not count."""
        self._note_pause()
        return self._longest

    def _note_pause(self) -> None:
        awake, busy = _running()
        self._longest = max(self._longest, awake - self._since[0], busy - self._since[1])

    def _before(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        self._note_pause()
        if _ENDS.match(statement):
            raise _not_yours()

    def _after(self, *_: Any) -> None:
        self._since = _running()


def _running() -> tuple[float, float]:
    """How long this process has been running, and this thread busy. The first stops during a call that lets no other thread
    run."""
    return awake_seconds(), time.thread_time()


def _leave_alone(connection: Any) -> None:
    """Only the store ends the transaction."""


def _not_yours() -> UsageError:
    return UsageError(
        "an effect may not commit or roll back: it is part of the transaction that completes the stage; "
        "raise an exception to undo it"
    )
