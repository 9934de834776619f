"""Reaching a PostgreSQL server: the connection, and what its errors mean."""

from __future__ import annotations

import re
from typing import NoReturn

import psycopg

from holdfast.errors import StoreBroken, StoreConflict, StoreError, StoreUnavailable, UsageError
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

#: Refusals at the door come without a code; these do not pass by themselves.
_WRONG_FOR_GOOD = re.compile(
    'database ".*" does not exist|role ".*" does not exist|authentication failed|no password supplied|'
    "unrecognized configuration parameter|unsupported startup parameter|invalid value for parameter|no pg_hba.conf entry"
)

#: Also what a statement that is kept runs into where a pooler hands sessions round: it is missing, or there already.
_LOST_RACE = ("40001", "40P01", "26000", "42P05")
_BROKEN = ("28", "XX001", "XX002", "42501", "42P01", "3F000", "3D000")
#: Trouble of the server or the line, which waiting may end.
_PASSES = ("08", "53", "57", "58", "55", "XX", "25006", "25P03", "25P02")


def connect(conninfo: str, where: str) -> psycopg.Connection[Row]:
    try:
        conn = psycopg.connect(conninfo, autocommit=True, **_CONNECT)  # type: ignore[arg-type]
    except psycopg.ProgrammingError:
        raise UsageError(UNREADABLE) from None  # the driver's own words would show the password
    except psycopg.Error as error:
        if _WRONG_FOR_GOOD.search(str(error)):
            raise StoreBroken(f"{where}: {str(error).strip().splitlines()[-1]}") from error
        raise_as_ours(error, where)
    if conn.info.server_version < OLDEST_SERVER:
        conn.close()
        raise StoreBroken(f"{where} is PostgreSQL {conn.info.server_version // 10000}; 14 or newer is needed")
    # psycopg drops all statements that the server keeps, ours too, when user code undoes something.
    conn.prepare_threshold = None
    return conn


def raise_as_ours(error: psycopg.Error, where: str) -> NoReturn:
    told = translated(error, where)
    if told is None:
        raise error
    raise told from error


def translated(error: psycopg.Error, where: str) -> StoreError | None:
    """The same in holdfast's words; None for an error that is not the database's condition."""
    said = str(error).strip().splitlines()
    text = f"{where}: {said[0] if said else type(error).__name__}"
    state = error.sqlstate
    if state is None:
        # A crash leaves no code at all.
        passes = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        return StoreUnavailable(text) if passes else None
    for states, kind in ((_LOST_RACE, StoreConflict), (_BROKEN, StoreBroken), (_PASSES, StoreUnavailable)):
        if state.startswith(states):
            return kind(text)
    return None
