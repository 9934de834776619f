"""What went wrong in the database, in the four ways that matter here.

passing    it will pass: the connection, a lock, a full disk, a server that starts; wait, and do the same again
conflict   somebody else's transaction was chosen over this one: do the same again at once
refused    the database says no to these values of this row: a trigger, a constraint
broken     the statement cannot work at all: a column that is gone, missing rights
"""

from __future__ import annotations

from sqlalchemy import exc

#: How often a transaction that lost a race inside the database is run again within one attempt.
MOST_AGAIN = 3

_CONFLICTS = {"40001", "40P01", "55P03"}
#: Classes of SQLSTATE: connection, resources, an operator's intervention, system error; a read-only transaction; and a
#: statement that the driver has prepared in another session than the one a pooler gave it now.
_PASSING = ("08", "53", "57", "58", "25006", "26000", "42P05")
#: Data, constraints, views with a check, triggers that raise.
_REFUSED = ("22", "23", "44", "P0", "09", "27")
_MYSQL_CONFLICTS = {1205, 1213}
_MYSQL_PASSING = {1021, 1040, 1053, 1114, 1203, 1290, 1836, 2002, 2003, 2006, 2013, 3572}
_MYSQL_REFUSED = {1644, 3819, 4025}
#: BUSY, LOCKED, NOMEM, READONLY, IOERR, FULL, CANTOPEN. A busy file is waited for; it is no deadlock.
_SQLITE_PASSING = {5, 6, 7, 8, 10, 13, 14}
#: TOOBIG, CONSTRAINT (also what a trigger raises), MISMATCH.
_SQLITE_REFUSED = {18, 19, 20}


def kind_of(error: BaseException) -> str | None:
    """Which of the four this error is; None if it is not the database's."""
    if isinstance(error, exc.TimeoutError):
        return "passing"  # no connection was free
    if not isinstance(error, exc.DBAPIError):
        return None
    orig = error.orig
    state = getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None)
    if isinstance(state, str):
        return _of_state(state)
    code = getattr(orig, "sqlite_errorcode", None)
    if isinstance(code, int):
        code &= 0xFF
        return "passing" if code in _SQLITE_PASSING else "refused" if code in _SQLITE_REFUSED else "broken"
    said = orig.args[0] if isinstance(orig, Exception) and orig.args else None
    number = said if isinstance(said, int) else None
    if number in _MYSQL_CONFLICTS:
        return "conflict"
    if number in _MYSQL_PASSING or error.connection_invalidated:
        return "passing"
    if number in _MYSQL_REFUSED or isinstance(error, (exc.IntegrityError, exc.DataError)):
        return "refused"
    # A driver's own complaint about its connection carries no code.
    return "passing" if isinstance(error, (exc.OperationalError, exc.InterfaceError)) and number is None else "broken"


def passes(error: BaseException) -> bool:
    """Is it worth doing the same again?"""
    return kind_of(error) in ("passing", "conflict")


def _of_state(state: str) -> str:
    if state in _CONFLICTS:
        return "conflict"
    return "passing" if state.startswith(_PASSING) else "refused" if state.startswith(_REFUSED) else "broken"
