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
from sqlalchemy import Dialect, Engine

from holdfast.adopt.connections import Open, primitive
from holdfast.adopt.rows.compiled_statements import DirectLine, Prepared
from holdfast.adopt.rows.database_differences import Choice, Rows, changing, show_pending
from holdfast.adopt.rows.outcome import COMPLETED, Outcome, is_spent
from holdfast.adopt.rows.sql import Roles, TableSql, key_in
from holdfast.adopt.table.held_row import Finished, Held, lost
from holdfast.adopt.table.mapping import WORDS, TableMapping
from holdfast.adopt.table.times import delay_value, later, plain, time_type
from holdfast.errors import UsageError
from holdfast.model.durations import Duration, seconds

HeldRows = Held | Iterable[Held]

#: Rows per statement.
CHUNK = 500


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


# The guarded statement -----------------------------------------------------------------------------------------------


def by_claim(rows: Sequence[Held]) -> list[tuple[TableMapping, Sequence[Held]]]:
    """Groups of rows that one statement can change: mostly the rows of one claim."""
    if len(rows) == 1:
        return [(rows[0].mapping, rows)]
    found: dict[tuple[Any, ...], list[Held]] = {}
    for one in rows:
        found.setdefault((one.mapping, *one.fence), []).append(one)
    return [
        (same[0].mapping, same[start : start + CHUNK])
        for same in found.values()
        for start in range(0, len(same), CHUNK)
    ]


def is_there(rows: Rows, held: Held, status: str, *, changed: bool) -> bool:
    """Whether the row is in this status, and still under the same claim."""
    mapping = rows.mapping
    asked = sa.select(sa.literal(1)).where(
        key_in(mapping.bare_key, [held.key_values]),
        mapping.target("status") == mapping.word(status),
        *rows.fenced(rows.fence_values(held, changed=changed)),
    )
    return rows.connection.execute(asked).first() is not None


def was_done(rows: Rows, held: Held, status: str) -> bool:
    """Whether this same claim has already moved the row to this status: the first reply was lost."""
    if held.mapping.fence in ((), ("heartbeat",)) or status == "queued":
        return False
    return is_there(rows, held, status, changed=True)


def fitting_roles(mapping: TableMapping, roles: Roles) -> dict[str, Any]:
    """The roles that the table has columns for, with values that fit."""
    found = {role: value for role, value in roles.items() if role in mapping.columns}
    if "error" in found:
        column = mapping.columns["error"]
        length = getattr(plain(column.type), "length", None)
        text = "" if found["error"] is None and not column.nullable else found["error"]
        found["error"] = text if text is None else text[:length]
    return found


class Finishing(Prepared):
    """An UPDATE that moves one held row to a status and writes the columns of these roles.

    A loop sends it more often than any other statement.
    """

    def __init__(self, mapping: TableMapping, dialect: Dialect, status: str, roles: frozenset[str]) -> None:
        self._sql = sql = TableSql(mapping, dialect)
        key_names = [f"hf_key{at}" for at in range(len(mapping.key))]
        fence_names = [f"hf_fence_{role}" for role in mapping.fence]
        self._names = [*key_names, *fence_names]
        self._roles = [(role, f"hf_{role}", time_type(mapping.columns[role])) for role in roles]
        setting: dict[str, Any] = {role: sa.bindparam(name) for role, name, _ in self._roles}
        for role, _, kind in self._roles:
            if kind is not None:
                setting[role] = later(dialect, kind, setting[role])
        statement = changing(mapping, "processing", sql.changes(status, setting))
        own_key = key_in(mapping.bare_key, [[sa.bindparam(name) for name in key_names]])
        super().__init__(statement.where(own_key, *sql.fenced([sa.bindparam(name) for name in fence_names])), dialect)

    def values(self, held: Held, roles: Roles) -> dict[str, Any]:
        """The values for one row."""
        found = dict(zip(self._names, (*held.key_values, *self._sql.fence_values(held)), strict=True))
        for role, name, kind in self._roles:
            found[name] = roles[role] if kind is None else delay_value(self._sql.dialect, kind, roles[role])
        return found


finishing = lru_cache(maxsize=2000)(Finishing)


def change(rows: Rows, same: Sequence[Held], status: str, roles: Roles, own: Mapping[str, Any]) -> set[int]:
    """Change those of one claim's rows that it still holds; return the ids of their `Held` objects."""
    mapping, connection, fit = rows.mapping, rows.connection, fitting_roles(rows.mapping, roles)
    if len(same) > 1 and not rows.support.returning:
        # Without RETURNING, a row count does not say which rows were changed.
        return set().union(*(change(rows, [one], status, roles, own) for one in same))
    if len(same) == 1 and not own and rows.at_time is None:
        prepared = finishing(mapping, rows.dialect, status, frozenset(fit))
        count = prepared.run(connection, prepared.values(same[0], fit))
    else:
        by_key = {one.key_values: id(one) for one in same}
        statement = changing(mapping, "processing", rows.changes(status, fit) | dict(own))
        guard = rows.fenced(rows.fence_values(same[0]))
        statement = statement.where(key_in(mapping.bare_key, list(by_key)), *guard)
        if len(same) > 1:
            return {by_key[tuple(row)] for row in connection.execute(statement.returning(*mapping.bare_key))}
        count = connection.execute(statement).rowcount
    return {id(one) for one in same} if count == 1 else set()
