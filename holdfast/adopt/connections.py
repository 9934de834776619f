"""Where a statement runs: an Engine, a Session and their async kin, seen alike.

Given an Engine or a sessionmaker, a call is a transaction of its own, committed when it returns. Given a Connection or
a Session, it is part of the transaction that is open there, and whoever opened it commits. Given an async one of these,
the call returns something to await; the work inside is the same synchronous code, run by SQLAlchemy's own bridge.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from holdfast.adopt.pooler import unprepared
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

#: Something with a transaction open, or about to be.
Open: TypeAlias = Connection | Session
SyncPlace: TypeAlias = "Engine | Connection | Session | sessionmaker[Any] | scoped_session[Any]"
Place: TypeAlias = "SyncPlace | AsyncPlace"

#: As libpq counts them.
FAILED_TRANSACTION = 3

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Primitive(Protocol[P, T_co]):
    """A function of a place, which may be async."""

    @overload
    def __call__(self, at: AsyncPlace, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T_co]: ...
    @overload
    def __call__(self, at: SyncPlace, /, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


def primitive(work: Callable[Concatenate[Open, P], T]) -> Primitive[P, T]:
    """Let a function of an open Connection or Session be called with any place."""

    @wraps(work)
    def call(at: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return run(at, lambda place: work(place, *args, **kwargs))

    return cast("Primitive[P, T]", call)


def run(at: Place, work: Callable[[Open], T]) -> T | Awaitable[T]:
    """Do the work at a place: in a transaction of its own, or in the one that is open there."""
    if isinstance(at, (Connection, Session)):
        return work(at)
    if is_async(at):
        return run_async(cast("AsyncPlace", at), work)
    with opened(cast(SyncPlace, at)) as place:
        return work(place)


async def run_async(at: AsyncPlace, work: Callable[[Open], T]) -> T:
    async with opened_async(at) as place:
        return await place.run_sync(work)


@contextmanager
def opened(at: SyncPlace) -> Iterator[Open]:
    """A place with a transaction: its own, which ends here, or one that goes on."""
    if isinstance(at, (Connection, Session)):
        yield at
    elif isinstance(at, scoped_session):
        yield at()
    elif isinstance(at, (Engine, sessionmaker)):
        with at.begin() as own:
            yield own
    else:
        raise _no_place(at)


@asynccontextmanager
async def opened_async(at: AsyncPlace) -> AsyncIterator[AsyncConnection | AsyncSession]:
    """The same for async places."""
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
        AsyncSession,
        async_scoped_session,
        async_sessionmaker,
    )

    if isinstance(at, (AsyncConnection, AsyncSession)):
        yield at
    elif isinstance(at, async_scoped_session):
        yield at()
    elif isinstance(at, (AsyncEngine, async_sessionmaker)):
        async with at.begin() as own:
            yield own
    else:
        raise _no_place(at)


def is_async(at: object) -> bool:
    # Looked up, not imported: it needs greenlet, and whoever has an async engine has imported it.
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    if module is None:
        return False
    names = ("AsyncEngine", "AsyncConnection", "AsyncSession", "async_sessionmaker", "async_scoped_session")
    return isinstance(at, tuple(getattr(module, name) for name in names))


def makes_transactions(at: object) -> bool:
    """Is this a place from which any number of transactions can be had, side by side?"""
    if isinstance(at, (Engine, sessionmaker)):
        return True
    return is_async(at) and hasattr(at, "begin") and not hasattr(at, "in_transaction") and not hasattr(at, "registry")


def connection_of(place: Open, mapping: TableMapping | None = None) -> Connection:
    """The connection on which statements about this table run."""
    if isinstance(place, Connection):
        return unprepared(place)
    if mapping is None:
        return unprepared(place.connection())
    bound = {"mapper": mapping.mapper} if mapping.mapper is not None else {"clause": mapping.table}
    return unprepared(place.connection(bind_arguments=cast(Any, bound)))


def check_user_code(place: Open) -> None:
    """Raise UsageError if user code left this transaction so that nothing of it can be committed: PostgreSQL answers COMMIT
    with a rollback then, and no error."""
    try:
        connection = place if isinstance(place, Connection) else place.connection()
    except UnboundExecutionError:
        return  # a session with an engine for each table, which does not say where it was used
    if connection.dialect.name != "postgresql":
        return
    info = getattr(connection.connection.driver_connection, "info", None)
    try:
        if info is None:
            connection.exec_driver_sql("SELECT 1")  # asyncpg does not say
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
    """The engine, as it is inside, that reaches this table; used to know the dialect before connecting."""
    if isinstance(at, Engine):
        return at
    if isinstance(at, sessionmaker):
        with at() as session:
            return engine_of(session, mapping)
    sync = getattr(at, "sync_engine", None)
    if isinstance(sync, Engine):
        return sync
    if makes_transactions(at):  # an async sessionmaker
        return engine_of(cast(Any, at)().sync_session, mapping)
    raise _no_place(at)


def engine_of(session: Session, mapping: TableMapping) -> Engine:
    """The engine that a session reaches this table with."""
    bound = session.get_bind(
        **({"mapper": mapping.mapper} if mapping.mapper is not None else {"clause": mapping.table})
    )
    if not isinstance(bound, Engine):
        raise UsageError("the sessions are bound to one Connection, which cannot serve several at once; bind an Engine")
    return bound


def _no_place(at: object) -> UsageError:
    return UsageError(
        f"{type(at).__name__} is nothing to run statements on; "
        "give an Engine, a Connection, a Session, a sessionmaker, or an async one of these"
    )
