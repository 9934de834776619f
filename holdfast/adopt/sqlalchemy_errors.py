"""Classifies SQLAlchemy's errors with the tables of `store.database_errors`."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import exc

from holdfast.model.log_lines import logger
from holdfast.store import database_errors
from holdfast.store.database_errors import ErrorKind

log = logger("holdfast.adopt")

#: How often one attempt reruns a transaction that lost a race inside the database.
MOST_AGAIN = 3


def kind_of(error: BaseException) -> ErrorKind | None:
    """The kind of a database error; None if the error is not from a database."""
    if isinstance(error, exc.TimeoutError):
        return ErrorKind.PASSING  # no connection was free
    if not isinstance(error, exc.DBAPIError):
        return None
    kind = database_errors.kind_of(error)
    # A lost connection is replaced, whatever error code the driver reported.
    return ErrorKind.PASSING if kind is ErrorKind.WRONG and error.connection_invalidated else kind


def passes(error: BaseException) -> bool:
    """Whether a retry may succeed."""
    return kind_of(error) in (ErrorKind.PASSING, ErrorKind.CONFLICT, ErrorKind.MOVED)


class Complaints:
    """Logs at most one warning per minute."""

    def __init__(self) -> None:
        self._next = 0.0

    def warn(self, text: str, *values: Any) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 60.0
            log.warning(text, *values)
