"""Connect to a PostgreSQL server, and turn its errors into ours."""

from __future__ import annotations

from typing import NoReturn

import psycopg

from holdfast.errors import StoreBroken, StoreError, UsageError
from holdfast.store.database_errors import AS_OURS, ErrorKind, kind_of
from holdfast.store.driver import Row
from holdfast.store.postgres_address import UNREADABLE

OLDEST_SERVER = 140000

_CONNECT = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
    "application_name": "holdfast",
    "client_encoding": "utf8",
}


def connect(conninfo: str, where: str) -> psycopg.Connection[Row]:
    try:
        conn = psycopg.connect(conninfo, autocommit=True, **_CONNECT)  # type: ignore[arg-type]
    except psycopg.ProgrammingError:
        raise UsageError(UNREADABLE) from None  # the driver's message would show the password
    except psycopg.Error as error:
        if kind_of(error) is ErrorKind.BROKEN:
            raise StoreBroken(f"{where}: {str(error).strip().splitlines()[-1]}") from error
        raise_as_ours(error, where)
    if conn.info.server_version < OLDEST_SERVER:
        conn.close()
        raise StoreBroken(f"{where} is PostgreSQL {conn.info.server_version // 10000}; 14 or newer is needed")
    # psycopg would drop all prepared statements, ours included, when user code rolls back.
    conn.prepare_threshold = None
    return conn


def raise_as_ours(error: psycopg.Error, where: str) -> NoReturn:
    told = translated(error, where)
    if told is None:
        raise error
    raise told from error


def translated(error: psycopg.Error, where: str) -> StoreError | None:
    """The StoreError for this error; None if it is not about the state of the database."""
    said = str(error).strip().splitlines()
    ours = AS_OURS.get(kind_of(error))
    return ours(f"{where}: {said[0] if said else type(error).__name__}") if ours else None
