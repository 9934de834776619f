"""Finish: complete, fail, release. A held row leaves processing if its claim is still valid.

Each is one guarded statement per table: it names the key, the status, and what the claim wrote (`mapping.fence`). A row
that somebody took over, changed, re-keyed or removed is left alone and reported: raised as `LeaseLost`, in which case
the other rows are not saved either, or returned in `Finished.lost`.

The columns decide how strong the guard is. With `holder` or `version`, a late worker is always fenced. With `started` or
`attempts`, it is fenced unless somebody reset both. With `heartbeat` alone, it is fenced as long as every heartbeat is
written through `heartbeat`. With a status column alone, a late worker can finish a row that another one has since claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Dialect
from sqlalchemy.engine.interfaces import DBAPICursor

from holdfast.adopt.connections import Open, connection_of, primitive
from holdfast.adopt.rows.claim import is_due, written
from holdfast.adopt.rows.dialects import Choice, move
from holdfast.adopt.rows.guarded_change import (
    Roles,
    by_fence,
    by_mapping,
    change,
    change_one,
    changes,
    completing,
    is_there,
    stands,
    stood,
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
    return _finish(at, rows_of(rows), "completed", {"error": None}, values, report, now)


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
    return _finish(at, held, "queued" if again else "failed", roles, values, report, now)


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
    return _finish(at, rows_of(rows), "queued", roles, None, report, now)


@primitive
def where_is(at: Open, row: Held) -> str | None:
    """The word of the row's status while the row still has what this claim wrote; None if somebody else has changed it.

    If no column distinguishes claims, it is the row's status in any case."""
    connection = connection_of(at, row.mapping)
    mapping, dialect = row.mapping, connection.dialect
    # If the handler has set the status itself, a model with a version counter has incremented it.
    kinds = [stands(mapping, dialect, row), *([stood(mapping, dialect, row)] if mapping.fence == ("version",) else [])]
    return next((word for word in WORDS if any(is_there(connection, row, word, facts) for facts in kinds)), None)


def postpone(at: Open, row: Held, after_seconds: float) -> None:
    """Delay a row that is queued and due. Does nothing without a next_attempt column."""
    mapping, connection = row.mapping, connection_of(at, row.mapping)
    column = mapping.column("next_attempt")
    kind = None if column is None else time_type(column)
    if column is None or kind is None:
        return
    later = {column.name: the_time(connection.dialect, kind, ahead=after_seconds)}
    own = [mine == value for mine, value in zip(mapping.key, row.key_values, strict=True)]
    due = is_due(mapping, partial(the_time, connection.dialect))
    move(connection, mapping, Choice("queued", [*own, *due], 1), later, [])


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


def finish_one(at: Open, held: Held, status: str, roles: Roles) -> str:
    """Finish one row, outside any Session: `won`, `again` (already done under the same claim) or `lost`."""
    connection = connection_of(at, held.mapping)
    if change_one(connection, held, status, roles):
        return "won"
    return "again" if was_done(connection, held, status) else "lost"


def complete_directly(dialect: Dialect, held: Held) -> Direct | None:
    """A completion for SQLite's driver. It answers True if it changed the row, and UNUSUAL otherwise."""
    ready, roles = completing(held.mapping, dialect)
    if not ready.is_whole:
        return None
    return Direct(ready.text, ready.given(ready.values(held, roles)), _has_won)


def _has_won(cursor: DBAPICursor) -> Any:
    return True if cursor.rowcount == 1 else UNUSUAL


def rows_of(rows: HeldRows) -> list[Held]:
    found = [rows] if isinstance(rows, Held) else list(rows)
    wrong = [one for one in found if not isinstance(one, Held)]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is not a held row; give what claim returned")
    return found


def _finish(
    at: Open,
    rows: list[Held],
    status: str,
    roles: Roles,
    values: Mapping[str, Any] | None,
    report: bool,
    at_time: datetime | None,
) -> Finished:
    show_pending(at)
    won: list[Held] = []
    again: list[Held] = []
    gone: list[Held] = []
    for mapping, group in by_mapping(rows).items():
        connection = connection_of(at, mapping)
        own = _own_values(mapping, values)
        setting = changes(mapping, connection.dialect, status, roles, at_time) | own
        for same in by_fence(group):
            changed = change(connection, mapping, same, setting)
            before = {id(one) for one in same if id(one) not in changed and was_done(connection, one, status)}
            won += [one for one in same if id(one) in changed | before]
            again += [one for one in same if id(one) in before]
            gone += [one for one in same if id(one) not in changed | before]
        columns = written(mapping, "status", "error", "holder", "version", "attempts", "next_attempt", "updated")
        forget(at, mapping, [one.key for one in group], [*columns, *map(mapping.find, own)])
    if gone and not report:
        raise lost(gone, "nothing was saved")
    return Finished(tuple(won), tuple(gone), tuple(again))


def _own_values(mapping: TableMapping, values: Mapping[str, Any] | None) -> dict[str, Any]:
    found = {}
    for name, value in (values or {}).items():
        column = mapping.find(name)
        role = next((role for role, one in mapping.columns.items() if one is column), None)
        if role is not None or any(column is one for one in mapping.key):
            raise UsageError(f"{mapping}: column {column.name!r} is not to be set here; it is the {role or 'key'}")
        found[column.name] = value
    return found
