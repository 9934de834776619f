"""Turns off psycopg's prepared statements behind a transaction pooler.

psycopg numbers its prepared statements: `_pg3_0`, `_pg3_1`. In a server session that clients share, such a name may be
missing, may already exist, or may be another client's statement, which then runs instead of ours.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

_ASKED = "holdfast.pooler"


def unprepared(connection: Connection) -> Connection:
    """Return the connection, with prepared statements off if it is behind a pooler. Asks the server once per connection."""
    if connection.dialect.driver == "psycopg" and _ASKED not in connection.info:
        raw: Any = connection.connection.driver_connection
        threshold, raw.prepare_threshold = raw.prepare_threshold, None
        backend = None if threshold is None else connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        if backend == raw.info.backend_pid:  # a pooler reports a made-up one
            raw.prepare_threshold = threshold
        connection.info[_ASKED] = True
    return connection
