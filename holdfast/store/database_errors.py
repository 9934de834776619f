"""What an error of a database means. These tables are the only place that decides it.

conflict  another transaction was chosen over this one: run it again at once
moved     a pooler gave this transaction another session, with other prepared statements: run it again until it works
passing   the server, the connection, a lock or the disk: wait and try again
refused   the values of one row: a constraint, a trigger, a number out of range
broken    the database itself: missing rights, missing tables, a damaged file; a person must look at it
wrong     the statement itself
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from holdfast.errors import StoreBroken, StoreConflict, StoreError, StoreUnavailable


class ErrorKind(StrEnum):
    CONFLICT = "conflict"
    MOVED = "moved"
    PASSING = "passing"
    REFUSED = "refused"
    BROKEN = "broken"
    WRONG = "wrong"


#: By SQLSTATE or its first characters; the longest match decides.
SQLSTATES: Mapping[str, ErrorKind] = {
    "08": ErrorKind.PASSING,  # the connection
    "09": ErrorKind.REFUSED,  # a trigger
    "22": ErrorKind.REFUSED,  # a value
    "23": ErrorKind.REFUSED,  # a constraint
    "25006": ErrorKind.PASSING,  # the server is read-only for now
    "25P03": ErrorKind.PASSING,  # idle in a transaction for too long
    "25P04": ErrorKind.PASSING,  # a transaction that took too long
    "26000": ErrorKind.MOVED,  # a statement that was prepared in another session
    "27": ErrorKind.REFUSED,  # a trigger that changes the row
    "28": ErrorKind.BROKEN,  # a role or its password
    "3D000": ErrorKind.BROKEN,  # no such database
    "3F000": ErrorKind.BROKEN,  # no such schema
    "40": ErrorKind.CONFLICT,  # deadlocks and serialisation failures
    "40002": ErrorKind.REFUSED,  # a constraint that was checked at the end
    "42501": ErrorKind.BROKEN,  # missing rights
    "42P01": ErrorKind.BROKEN,  # no such table
    "42P05": ErrorKind.MOVED,  # a statement that another client has prepared in this session
    "44": ErrorKind.REFUSED,  # the check of a view
    "53": ErrorKind.PASSING,  # memory, disk, connections
    "54000": ErrorKind.REFUSED,  # a value that is too long for its index
    "55": ErrorKind.PASSING,  # a lock that was not available in time
    "57": ErrorKind.PASSING,  # an operator intervened: a shutdown, a cancelled statement
    "57P04": ErrorKind.BROKEN,  # the database was dropped
    "58": ErrorKind.PASSING,  # the system below the server
    "72": ErrorKind.PASSING,  # a snapshot that is too old
    "P0": ErrorKind.REFUSED,  # raised by a function or a trigger
    "XX": ErrorKind.PASSING,  # an internal error; "tuple concurrently updated" is one
    "XX001": ErrorKind.BROKEN,  # damaged data
    "XX002": ErrorKind.BROKEN,  # a damaged index
}

#: By SQLite's primary result codes.
SQLITE_CODES: Mapping[int, ErrorKind] = {
    3: ErrorKind.BROKEN,  # PERM
    5: ErrorKind.PASSING,  # BUSY
    6: ErrorKind.PASSING,  # LOCKED
    7: ErrorKind.PASSING,  # NOMEM
    8: ErrorKind.BROKEN,  # READONLY
    9: ErrorKind.PASSING,  # INTERRUPT: a statement that was ended for taking too long
    10: ErrorKind.BROKEN,  # IOERR
    11: ErrorKind.BROKEN,  # CORRUPT
    13: ErrorKind.PASSING,  # FULL
    14: ErrorKind.BROKEN,  # CANTOPEN
    15: ErrorKind.PASSING,  # PROTOCOL
    17: ErrorKind.CONFLICT,  # SCHEMA: the tables were changed under the statement
    18: ErrorKind.REFUSED,  # TOOBIG
    19: ErrorKind.REFUSED,  # CONSTRAINT, also what a trigger raises
    20: ErrorKind.REFUSED,  # MISMATCH
    23: ErrorKind.BROKEN,  # AUTH
    26: ErrorKind.BROKEN,  # NOTADB
}

#: By the error numbers of MySQL and MariaDB, where users' own tables may be.
MYSQL_NUMBERS: Mapping[int, ErrorKind] = {
    1020: ErrorKind.CONFLICT,  # the row has changed since the snapshot (innodb_snapshot_isolation)
    1205: ErrorKind.CONFLICT,  # a lock that was not to be had in time
    1213: ErrorKind.CONFLICT,  # a deadlock
    # Memory, disk, connections, the network, a shutdown, a server that only reads, a node that is not ready yet.
    **dict.fromkeys((1021, 1040, 1047, 1053, 1114, 1129, 1158, 1159, 1160, 1161, 1184, 1203), ErrorKind.PASSING),
    **dict.fromkeys((1206, 1226, 1290, 1792, 1836, 1927, 2002, 2003, 2006, 2013, 2055, 4031), ErrorKind.PASSING),
    # A statement that was ended by KILL QUERY or for taking too long; NOWAIT.
    **dict.fromkeys((1317, 1969, 3024, 3572), ErrorKind.PASSING),
    # Values that drivers do not call DataError: dates, columns without a default, division by zero, numbers out of range.
    **dict.fromkeys((1292, 1364, 1365, 1690), ErrorKind.REFUSED),
    # SIGNAL in a trigger or function; the CHECK of MySQL and that of MariaDB.
    **dict.fromkeys((1644, 3819, 4025), ErrorKind.REFUSED),
    # Missing rights, databases and tables.
    **dict.fromkeys((1044, 1045, 1049, 1130, 1142, 1143, 1146, 1227, 1370, 1698), ErrorKind.BROKEN),
}

#: The errors that the store raises for them; others are raised as they are.
AS_OURS: Mapping[ErrorKind, type[StoreError]] = {
    ErrorKind.CONFLICT: StoreConflict,
    ErrorKind.MOVED: StoreConflict,
    ErrorKind.PASSING: StoreUnavailable,
    ErrorKind.BROKEN: StoreBroken,
}

#: Errors that no statement can cause by itself: user code that gets one is not to blame.
INNOCENT_SQLSTATES = ("40001", "40P01", "53100", "53300", "57P")
INNOCENT_SQLITE_CODES = frozenset({5, 13})

#: A server that refuses a connection gives no code; these refusals are permanent.
_REFUSED_FOR_GOOD = re.compile(
    'database ".*" does not exist|role ".*" does not exist|authentication failed|no password supplied|'
    "unrecognized configuration parameter|unsupported startup parameter|invalid value for parameter|no pg_hba.conf entry"
)


def kind_of(error: BaseException) -> ErrorKind:
    """What this error means, whichever driver raised it; SQLAlchemy may have wrapped it."""
    wrapper, error = error, getattr(error, "orig", None) or error
    number = error.args[0] if error.args and isinstance(error.args[0], int) else None
    if number is not None and number in MYSQL_NUMBERS:
        # Before the SQLSTATE, which newer drivers give as well: a lock that was not to be had and a full disk share one.
        return MYSQL_NUMBERS[number]
    state = sqlstate_of(error)
    if state is not None:
        longest = max((known for known in SQLSTATES if state.startswith(known)), key=len, default="")
        if longest or number is None:
            return SQLSTATES.get(longest, ErrorKind.WRONG)
    code = sqlite_code_of(error)
    if code is not None:
        return SQLITE_CODES.get(code, ErrorKind.WRONG)
    families = {family.__name__ for family in (*type(wrapper).__mro__, *type(error).__mro__)}
    if families & {"IntegrityError", "DataError"}:
        return ErrorKind.REFUSED
    if number is not None or not families & {"OperationalError", "InterfaceError"}:
        return ErrorKind.WRONG
    if type(error).__module__ == "sqlite3":
        # From the driver, not from SQLite: text that is not UTF-8, a value that it cannot store.
        return ErrorKind.REFUSED
    # A crashing server, and a driver that complains about its connection, give no code.
    return ErrorKind.BROKEN if _REFUSED_FOR_GOOD.search(str(error)) else ErrorKind.PASSING


def is_innocent(error: BaseException) -> bool:
    """Whether no statement can have caused this by itself."""
    return (sqlstate_of(error) or "").startswith(INNOCENT_SQLSTATES) or sqlite_code_of(error) in INNOCENT_SQLITE_CODES


def sqlstate_of(error: BaseException) -> str | None:
    # psycopg and asyncpg have the one, psycopg2 the other.
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state if isinstance(state, str) else None


def sqlite_code_of(error: BaseException) -> int | None:
    """SQLite's primary result code."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None
