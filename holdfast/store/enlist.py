"""A SQLAlchemy Connection that takes part in a transaction of ours.

It runs on the store's own driver connection, through a dialect that neither commits nor rolls back: only savepoints.
SQLAlchemy is loaded when the first effect runs; it takes a while, and most processes never need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


def engine_over(raw: Any, dialect: str) -> Engine:
    """An engine whose only connection is this one, and which never ends its transaction."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    url = {"sqlite": "sqlite://", "postgres": "postgresql+psycopg://"}[dialect]
    engine = create_engine(url, creator=lambda: raw, poolclass=StaticPool, pool_reset_on_return=None)
    for method in ("do_commit", "do_rollback", "do_close", "do_terminate"):
        setattr(engine.dialect, method, _leave_alone)
    return engine


def _leave_alone(connection: Any) -> None:
    """The transaction is the store's to end."""


@contextmanager
def savepoint(engine: Engine) -> Iterator[Connection]:
    """A Connection inside a savepoint: kept if the block ends well, undone if it raises."""
    with engine.connect() as connection:
        connection.begin()
        inner = connection.begin_nested()
        try:
            yield connection
        except BaseException:
            if inner.is_active:
                inner.rollback()
            raise
        if not inner.is_active or connection.get_nested_transaction() is not inner:
            raise UsageError(
                "an effect may not commit or roll back: it is part of the transaction that completes the stage; "
                "raise an exception to undo it"
            )
        inner.commit()
