"""Connections behind a transaction pooler: the driver is told to prepare no statements there.

psycopg numbers what it prepares: `_pg3_0`, `_pg3_1`. In a session that is handed round, such a name may be missing, be
there already, or be a statement of another client, which then runs in the place of ours.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

_ASKED = "holdfast.pooler"


def unprepared(connection: Connection) -> Connection:
    """This connection; behind a pooler its driver prepares nothing any more. Asks the server once for each connection."""
    if connection.dialect.driver == "psycopg" and _ASKED not in connection.info:
        raw: Any = connection.connection.driver_connection
        threshold, raw.prepare_threshold = raw.prepare_threshold, None
        backend = None if threshold is None else connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        if backend == raw.info.backend_pid:  # a pooler makes up one of its own
            raw.prepare_threshold = threshold
        connection.info[_ASKED] = True
    return connection
