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

from sqlalchemy import Dialect, Engine

from holdfast.adopt.connections import Open, primitive
from holdfast.adopt.rows.dialects import Choice, Rows
from holdfast.adopt.rows.guarded_change import Finishing, by_claim, change, finishing, fitting_roles, is_there, was_done
from holdfast.adopt.rows.outcome import COMPLETED, Outcome, is_spent
from holdfast.adopt.rows.sessions import show_pending
from holdfast.adopt.rows.sql import Roles, key_in
from holdfast.adopt.rows.sqlite_direct import DirectLine
from holdfast.adopt.table.held_row import Finished, Held, lost
from holdfast.adopt.table.mapping import WORDS, TableMapping
from holdfast.adopt.table.times import time_type
from holdfast.errors import UsageError
from holdfast.model.durations import Duration, seconds

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
    return finish(at, rows_of(rows), COMPLETED, values, report, now)


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
    after = seconds(retry_after or 0, what="retry_after")
    outcome = Outcome("retried", error, after) if again else Outcome("failed", error)
    return finish(at, held, outcome, values, report, now)


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
    outcome = Outcome("released", after_seconds=None if after is None else seconds(after, what="after"), refund=refund)
    return finish(at, rows_of(rows), outcome, None, report, now)


@primitive
def where_is(at: Open, row: Held) -> str | None:
    """The word of the row's status while the row still has what this claim wrote; None if somebody else has changed it.

    If no column distinguishes claims, it is the row's status in any case."""
    rows = Rows(at, row.mapping)
    # If the handler has set the status itself, a model with a version counter has incremented it.
    kinds = [False, True] if row.mapping.fence == ("version",) else [False]
    return next((word for word in WORDS if any(is_there(rows, row, word, changed=one) for one in kinds)), None)


def postpone(at: Open, row: Held, after_seconds: float) -> None:
    """Delay a row that is queued and due. Does nothing without a next_attempt column."""
    mapping, rows = row.mapping, Rows(at, row.mapping)
    column = mapping.column("next_attempt")
    if column is not None and (kind := time_type(column)) is not None:
        due = [key_in(mapping.key, [row.key_values]), *rows.is_due()]
        rows.move(Choice("queued", due, 1), {column.name: rows.now(kind, after_seconds)})


# The parts ------------------------------------------------------------------------------------------------------------


def complete_directly(line: DirectLine, engine: Engine, held: Held) -> bool:
    """Complete a row on SQLite's driver. False if nothing was done, because the row is lost or it takes SQLAlchemy."""
    prepared, roles = _completing(held.mapping, engine.dialect)
    answer = line.transact(engine, prepared, prepared.values(held, roles))
    return answer is not None and answer.changed == 1


@lru_cache(maxsize=500)
def _completing(mapping: TableMapping, dialect: Dialect) -> tuple[Finishing, Roles]:
    fit = fitting_roles(mapping, {"error": None})
    return finishing(mapping, dialect, "completed", frozenset(fit)), fit


def rows_of(rows: HeldRows) -> list[Held]:
    found = [rows] if isinstance(rows, Held) else list(rows)
    wrong = [one for one in found if not isinstance(one, Held)]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is not a held row; give what claim returned")
    return found


def finish(
    at: Open,
    held: Sequence[Held],
    outcome: Outcome,
    values: Mapping[str, Any] | None = None,
    report: bool = True,
    now: datetime | None = None,
) -> Finished:
    """Save the outcome of those rows that are still held. Lost ones are returned, or raised with `report=False`."""
    show_pending(at)
    status, roles = outcome.changes()
    won: list[Held] = []
    again: list[Held] = []
    gone: list[Held] = []
    for mapping, same in by_claim(held):
        rows = Rows(at, mapping, now)
        own = _own_values(mapping, values) if values else {}
        changed = change(rows, same, status, roles, own)
        for one in same:
            if id(one) not in changed:
                if not was_done(rows, one, status):
                    gone.append(one)
                    continue
                again.append(one)
            won.append(one)
        written = ("status", "error", "holder", "version", "attempts", "next_attempt", "updated")
        rows.forget((one.key_values for one in same), written, own)
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
