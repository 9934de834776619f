"""What went wrong in the database, by the tables of `store.database_errors`, for errors as SQLAlchemy raises them."""

from __future__ import annotations

from sqlalchemy import exc

from holdfast.store import database_errors
from holdfast.store.database_errors import ErrorKind

#: How often a transaction that lost a race inside the database is run again within one attempt.
MOST_AGAIN = 3


def kind_of(error: BaseException) -> ErrorKind | None:
    """What it means; None if it is not the database's."""
    if isinstance(error, exc.TimeoutError):
        return ErrorKind.PASSING  # no connection was free
    if not isinstance(error, exc.DBAPIError):
        return None
    kind = database_errors.kind_of(error)
    # A connection that was lost is made anew, whatever the driver called it.
    return ErrorKind.PASSING if kind is ErrorKind.WRONG and error.connection_invalidated else kind


def passes(error: BaseException) -> bool:
    """Is it worth doing the same again?"""
    return kind_of(error) in (ErrorKind.PASSING, ErrorKind.CONFLICT, ErrorKind.MOVED)
