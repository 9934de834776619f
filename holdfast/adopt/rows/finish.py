"""Finish: complete, fail, release. A held row leaves processing if its claim is still valid.

Each is one guarded statement per table: it names the key, the status, and what the claim wrote (`mapping.fence`). A row
that somebody took over, changed, re-keyed or removed is left alone and reported: raised as `LeaseLost`, in which case
the other rows are not saved either, or returned in `Finished.lost`.

The columns decide how strong the guard is. With `holder` or `version`, a late worker is always fenced. With `started` or
`attempts`, it is fenced unless somebody reset both. With `heartbeat` alone, it is fenced as long as every heartbeat is
written through `heartbeat`. With a status column alone, a late worker can finish a row that another one has since claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Dialect
from sqlalchemy.engine.interfaces import DBAPICursor

from holdfast.adopt.connections import Open, connection_of, primitive
from holdfast.adopt.rows.claim import is_due
from holdfast.adopt.rows.dialects import Choice, key_in, move
from holdfast.adopt.rows.guarded_change import (
    Finishing,
    Roles,
    by_claim,
    change,
    finishing,
    fitting_roles,
    is_there,
    was_done,
)
from holdfast.adopt.rows.sessions import forget, show_pending
from holdfast.adopt.rows.sqlite_direct import UNUSUAL, Direct
from holdfast.adopt.table.held_row import Finished, Held, lost
from holdfast.adopt.table.mapping import WORDS, TableMapping
from holdfast.adopt.table.times import now as the_time
from holdfast.adopt.table.times import time_type
from holdfast.errors import UsageError
from holdfast.model.durations import Duration, seconds
from holdfast.model.faults import describe, storable

HeldRows = Held | Iterable[Held]


@primitive
def complete(
    at: Open,
    rows: HeldRows,
    *,
    values: Mapping[str, Any] | None = None,
    report: bool = False,
    now: datetime | None = None,
) -> Finished:
    """The work is done: rows become completed. `values` are additional columns of the user's to write.

    If a column distinguishes claims, completing a row again under the same claim succeeds. So a caller can repeat it when
    the reply to a COMMIT was lost. With `report=True`, lost rows are returned instead of raised.
    """
    return finish(at, rows_of(rows), "completed", {"error": None}, values, report, now)


@primitive
def fail(
    at: Open,
    rows: HeldRows,
    error: BaseException | str,
    *,
    retry_after: Duration | None = None,
    values: Mapping[str, Any] | None = None,
    report: bool = False,
    now: datetime | None = None,
) -> Finished:
    """The attempt failed: rows become failed, or queued again `retry_after` from now while they have attempts left.

    All rows share one outcome: if one is out of attempts, all of them fail. The error's text goes into the error column,
    if there is one. Without a next_attempt column, a retry may begin at once.
    """
    held = rows_of(rows)
    again = retry_after is not None and not any(is_spent(one) for one in held)
    roles: dict[str, Any] = {"error": error_text(error)}
    if again:
        roles |= {"holder": None, "next_attempt": seconds(retry_after or 0, what="retry_after")}
    return finish(at, held, "queued" if again else "failed", roles, values, report, now)


@primitive
def release(
    at: Open,
    rows: HeldRows,
    *,
    after: Duration | None = None,
    refund: bool = True,
    report: bool = False,
    now: datetime | None = None,
) -> Finished:
    """Hand rows back unfinished: they become queued, and the attempt does not count (unless `refund=False`)."""
    roles: dict[str, Any] = {"holder": None}
    if refund:
        roles["attempts"] = -1
    if after is not None:
        roles["next_attempt"] = seconds(after, what="after")
    return finish(at, rows_of(rows), "queued", roles, None, report, now)


@primitive
def where_is(at: Open, row: Held) -> str | None:
    """The word of the row's status while the row still has what this claim wrote; None if somebody else has changed it.

    If no column distinguishes claims, it is the row's status in any case."""
    connection = connection_of(at, row.mapping)
    # If the handler has set the status itself, a model with a version counter has incremented it.
    kinds = [False, True] if row.mapping.fence == ("version",) else [False]
    return next((word for word in WORDS if any(is_there(connection, row, word, changed=one) for one in kinds)), None)


def postpone(at: Open, row: Held, after_seconds: float) -> None:
    """Delay a row that is queued and due. Does nothing without a next_attempt column."""
    mapping, connection = row.mapping, connection_of(at, row.mapping)
    column = mapping.column("next_attempt")
    if column is None or (kind := time_type(column)) is None:
        return
    later = {column.name: the_time(connection.dialect, kind, ahead=after_seconds)}
    due = [key_in(mapping.key, [row.key_values]), *is_due(mapping, connection.dialect)]
    move(connection, mapping, Choice("queued", due, 1), later)


def is_spent(held: Held) -> bool:
    """Whether this was the last attempt."""
    limit = held.mapping.limit
    if isinstance(limit, sa.Column):
        found = held.row.get(held.mapping.attribute(limit))
        return isinstance(found, int) and held.attempt >= found
    return limit is not None and held.attempt >= limit


def error_text(error: BaseException | str) -> str:
    """The text to store for an error. For a database error: the driver's message, without the statement and its values."""
    if isinstance(error, str):
        return storable(error)
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        error = error.orig
    return describe(error)[0]


# The parts ------------------------------------------------------------------------------------------------------------


def complete_directly(dialect: Dialect, held: Held) -> Direct | None:
    """A completion for SQLite's driver. It answers True if it changed the row, and UNUSUAL otherwise."""
    prepared, roles = _completing(held.mapping, dialect)
    if not prepared.is_whole:
        return None
    return Direct(prepared.text, prepared.given(prepared.values(held, roles)), _has_won)


@lru_cache(maxsize=500)
def _completing(mapping: TableMapping, dialect: Dialect) -> tuple[Finishing, Roles]:
    fit = fitting_roles(mapping, {"error": None})
    return finishing(mapping, dialect, "completed", frozenset(fit)), fit


def _has_won(cursor: DBAPICursor) -> Any:
    return True if cursor.rowcount == 1 else UNUSUAL


def rows_of(rows: HeldRows) -> list[Held]:
    found = [rows] if isinstance(rows, Held) else list(rows)
    wrong = [one for one in found if not isinstance(one, Held)]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is not a held row; give what claim returned")
    return found


def finish(
    at: Open,
    rows: Sequence[Held],
    status: str,
    roles: Roles,
    values: Mapping[str, Any] | None = None,
    report: bool = False,
    at_time: datetime | None = None,
) -> Finished:
    """Move those rows that are still held to a status."""
    show_pending(at)
    won: list[Held] = []
    again: list[Held] = []
    gone: list[Held] = []
    for mapping, same in by_claim(rows):
        connection = connection_of(at, mapping)
        own = _own_values(mapping, values) if values else {}
        changed = change(connection, mapping, same, status, roles, own, at_time)
        for one in same:
            if id(one) not in changed:
                if not was_done(connection, one, status):
                    gone.append(one)
                    continue
                again.append(one)
            won.append(one)
        written = ("status", "error", "holder", "version", "attempts", "next_attempt", "updated")
        forget(at, mapping, (one.key_values for one in same), written, own)
    if gone and not report:
        raise lost(gone, "nothing was saved")
    return Finished(tuple(won), tuple(gone), tuple(again))


def _own_values(mapping: TableMapping, values: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        column = mapping.find(name)
        role = next((role for role, one in mapping.columns.items() if one is column), None)
        if role is not None or any(column is one for one in mapping.key):
            raise UsageError(f"{mapping}: column {column.name!r} is not to be set here; it is the {role or 'key'}")
        found[column.name] = value
    return found
