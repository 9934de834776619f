"""The connection of an async program as a sync one: each statement is sent to the program's event loop and waited for.

The program waits meanwhile, in a task of that loop, and uses the connection for nothing else. Known are SQLAlchemy's
AsyncConnection and AsyncSession, and what they are made of: connections of aiosqlite and of psycopg.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

T = TypeVar("T")


def is_async(connection: object) -> bool:
    """Whether what a caller gave has to be awaited."""
    return inspect.iscoroutinefunction(getattr(type(connection), "rollback", None))


class AsyncConnection:
    """What sync code in another thread does to a connection of this event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._running: Future[Any] | None = None
        self._is_cut_off = False

    async def reach(self, connection: Any) -> AwaitedSQLite | AwaitedPostgres | Any:
        """The connection of the driver below, for sync code. One that is not known stays as it is, and is refused later."""
        if callable(getattr(type(connection), "connection", None)):  # an AsyncSession
            connection = await connection.connection()
        if hasattr(connection, "get_raw_connection"):
            if not connection.in_transaction():
                # It has seen no statement yet, and would not commit what it does not know of.
                await connection.begin()
            connection = (await connection.get_raw_connection()).driver_connection
        found = _KNOWN.get(type(connection).__module__.partition(".")[0])
        return connection if found is None else found(connection, self.call)

    def call(self, statement: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop and wait for it, in another thread."""
        with self._lock:
            if self._is_cut_off:
                statement.close()
                raise CancelledError
            running: Future[T] = asyncio.run_coroutine_threadsafe(statement, self._loop)
            self._running = running
        return running.result()

    def cut_off(self) -> None:
        """The program was cancelled, and will roll back: no statement may come after that."""
        with self._lock:
            self._is_cut_off = True
            if self._running is not None:
                self._running.cancel()


Call = Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass(frozen=True, slots=True)
class _Rows:
    description: Sequence[Sequence[Any]] | None
    rows: list[Any]

    def fetchall(self) -> list[Any]:
        return self.rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


class AwaitedSQLite:
    """A connection of aiosqlite, as one of sqlite3."""

    def __init__(self, raw: Any, call: Call) -> None:
        self._raw = raw
        self._call = call

    @property
    def in_transaction(self) -> bool:
        return bool(self._raw.in_transaction)

    @property
    def isolation_level(self) -> str | None:
        level: str | None = self._raw.isolation_level
        return level

    def execute(self, text: str, params: Any = ()) -> _Rows:
        rows: _Rows = self._call(self._execute(text, params))
        return rows

    async def _execute(self, text: str, params: Any) -> _Rows:
        async with self._raw.execute(text, params) as cursor:
            return _Rows(cursor.description, list(await cursor.fetchall()))


class AwaitedPostgres:
    """A connection of psycopg's async side, as one of its sync side."""

    def __init__(self, raw: Any, call: Call) -> None:
        self._raw = raw
        self._call = call

    def __getattr__(self, name: str) -> Any:
        """What asks the server nothing: `info`, `autocommit`, `closed`."""
        return getattr(self._raw, name)

    def cursor(self, *, row_factory: Any = None) -> _Cursor:
        return _Cursor(self._raw.cursor(row_factory=row_factory or self._raw.row_factory), self._call)


class _Cursor:
    def __init__(self, raw: Any, call: Call) -> None:
        self._raw = raw
        self._call = call

    @property
    def description(self) -> Any:
        return self._raw.description

    def execute(self, text: str, params: Any = None) -> None:
        self._call(self._raw.execute(text, params))

    def fetchall(self) -> list[Any]:
        rows: list[Any] = self._call(self._raw.fetchall())
        return rows

    @contextmanager
    def copy(self, text: str) -> Iterator[io.BytesIO]:
        with io.BytesIO() as lines:
            yield lines
            self._call(self._copy_in(text, lines.getvalue()))

    async def _copy_in(self, text: str, lines: bytes) -> None:
        async with self._raw.copy(text) as copy:
            await copy.write(lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._raw.close())


#: By the package that a connection comes from.
_KNOWN: dict[str, Callable[[Any, Call], Any]] = {"aiosqlite": AwaitedSQLite, "psycopg": AwaitedPostgres}
