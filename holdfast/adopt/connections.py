"""Where a statement runs: one interface for engines, connections and sessions, sync and async.

Given an Engine or a sessionmaker, a call is a transaction of its own, committed when it returns. Given a Connection or
a Session, it joins the transaction that is open there, and the caller commits. Given an async one of these, the call
returns an awaitable; the work inside is the same synchronous code, run through SQLAlchemy's greenlet bridge.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Mapper, Session, scoped_session, sessionmaker

from holdfast.errors import UsageError
from holdfast.store.database_errors import sqlstate_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
        AsyncSession,
        async_scoped_session,
        async_sessionmaker,
    )

    from holdfast.adopt.table.mapping import TableMapping

    AsyncPlace: TypeAlias = (
        AsyncEngine | AsyncConnection | AsyncSession | async_sessionmaker[Any] | async_scoped_session[Any]
    )

#: A place whose transaction is open, or begins with its first statement.
Open: TypeAlias = Connection | Session
SyncPlace: TypeAlias = "Engine | Connection | Session | sessionmaker[Any] | scoped_session[Any]"
Place: TypeAlias = "SyncPlace | AsyncPlace"

#: libpq's transaction status of a failed transaction.
FAILED_TRANSACTION = 3

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Primitive(Protocol[P, T_co]):
    """A function whose first argument is a place, sync or async."""

    @overload
    def __call__(self, at: AsyncPlace, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T_co]: ...
    @overload
    def __call__(self, at: SyncPlace, /, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


def primitive(work: Callable[Concatenate[Open, P], T]) -> Primitive[P, T]:
    """Let a function that takes an open Connection or Session be called with any place."""

    @wraps(work)
    def call(at: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return run(at, lambda place: work(place, *args, **kwargs))

    return cast("Primitive[P, T]", call)


def run(at: Place, work: Callable[[Open], T]) -> T | Awaitable[T]:
    """Run the work at a place: in a transaction of its own, or in the one that is open there."""
    if isinstance(at, (Connection, Session)):
        return work(at)
    if is_async(at):
        return _run_async(at, work)
    if isinstance(at, scoped_session):
        return work(at())
    if not makes_transactions(at):
        raise _no_place(at)
    with cast("Engine | sessionmaker[Any]", at).begin() as own:
        return work(own)


async def _run_async(at: Any, work: Callable[[Open], T]) -> T:
    if not makes_transactions(at):
        place = at() if hasattr(at, "registry") else at
        return cast(T, await place.run_sync(work))
    async with at.begin() as own:
        return cast(T, await own.run_sync(work))


def is_async(at: object) -> bool:
    # Looked up, not imported: the import needs greenlet, and a program with an async engine has already imported it.
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    names = ("AsyncEngine", "AsyncConnection", "AsyncSession", "async_sessionmaker", "async_scoped_session")
    return module is not None and isinstance(at, tuple(getattr(module, name) for name in names))


def makes_transactions(at: object) -> bool:
    """Whether this place can open several concurrent transactions."""
    if isinstance(at, (Engine, sessionmaker)):
        return True
    # Connections and sessions have `in_transaction`, scoped sessions a `registry`.
    return is_async(at) and not hasattr(at, "in_transaction") and not hasattr(at, "registry")


def bound_by(mapper: Mapper[Any] | None, table: Table) -> Any:
    """What a Session needs to know to choose the engine for a table."""
    return {"clause": table} if mapper is None else {"mapper": mapper}


def connection_of(place: Open, mapping: TableMapping) -> Connection:
    """The connection on which statements about this table run."""
    if isinstance(place, Connection):
        return unprepared(place)
    return unprepared(place.connection(bind_arguments=bound_by(mapping.mapper, mapping.table)))


_ASKED = "holdfast.pooler"


def unprepared(connection: Connection) -> Connection:
    """Return the connection; behind a transaction pooler, turn off psycopg's prepared statements. Asks once per connection.

    psycopg numbers them: `_pg3_0`, `_pg3_1`. In a server session that clients share, such a name may be missing, may already
    exist, or may be another client's statement, which then runs instead of ours.
    """
    if connection.dialect.driver == "psycopg" and _ASKED not in connection.info:
        raw: Any = connection.connection.driver_connection
        threshold, raw.prepare_threshold = raw.prepare_threshold, None
        backend = None if threshold is None else connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        if backend == raw.info.backend_pid:  # a pooler reports a made-up one
            raw.prepare_threshold = threshold
        connection.info[_ASKED] = True
    return connection


def check_user_code(place: Open) -> None:
    """Raise UsageError if user code left this transaction in a failed state: PostgreSQL would answer COMMIT with a rollback,
    and no error."""
    try:
        connection = place if isinstance(place, Connection) else place.connection()
    except UnboundExecutionError:
        return  # a session with an engine per table does not say which one it used
    if connection.dialect.name != "postgresql":
        return
    info = getattr(connection.connection.driver_connection, "info", None)
    try:
        if info is None:
            connection.exec_driver_sql("SELECT 1")  # asyncpg does not expose the transaction status
            return
        failed = info.transaction_status == FAILED_TRANSACTION
    except DBAPIError as error:
        failed = sqlstate_of(error.orig or error) == "25P02"
    if failed:
        raise UsageError(
            "a statement failed and the function went on, but PostgreSQL does nothing more in that transaction: let the "
            "error out, or put what may fail into `with connection.begin_nested():`"
        )


def sync_engine_of(at: Place, mapping: TableMapping) -> Engine:
    """The sync engine that reaches this table; used to know the dialect before connecting."""
    place: Any = at
    if isinstance(at, Engine):
        return at
    if isinstance(at, sessionmaker):
        with at() as session:
            return engine_of(session, mapping)
    if not makes_transactions(at):
        raise _no_place(at)
    return place.sync_engine if hasattr(at, "sync_engine") else engine_of(place().sync_session, mapping)


def engine_of(session: Session, mapping: TableMapping) -> Engine:
    """The engine that a session uses for this table."""
    bound = session.get_bind(**bound_by(mapping.mapper, mapping.table))
    if not isinstance(bound, Engine):
        raise UsageError("the sessions are bound to one Connection, which cannot serve several at once; bind an Engine")
    return bound


def _no_place(at: object) -> UsageError:
    return UsageError(
        f"a {type(at).__name__} cannot run statements; "
        "give an Engine, a Connection, a Session, a sessionmaker, or an async one of these"
    )
