"""Guarded changes: an UPDATE changes a processing row only if its claim is still valid.

Shared by `finish` and `heartbeat`: the condition, the values, and which rows were changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Dialect

from holdfast.adopt.rows.claim import one_more
from holdfast.adopt.rows.dialects import bare, changing, key_in, way_of
from holdfast.adopt.rows.prepared_finish import Finishing, finishing
from holdfast.adopt.table.held_row import Held
from holdfast.adopt.table.mapping import TableMapping
from holdfast.adopt.table.times import given, now, plain, time_type

#: Rows per statement.
CHUNK = 500

#: What to write besides the status, by role: the error's text, seconds until the next attempt, a change of the attempts.
Roles = Mapping[str, Any]


def by_mapping(rows: Iterable[Held]) -> dict[TableMapping, list[Held]]:
    found: dict[TableMapping, list[Held]] = {}
    for one in rows:
        found.setdefault(one.mapping, []).append(one)
    return found


def by_fence(rows: list[Held]) -> Iterable[list[Held]]:
    """Groups of rows that one statement can change: mostly the rows of one claim."""
    found: dict[tuple[Any, ...], list[Held]] = {}
    for one in rows:
        found.setdefault(one.fence, []).append(one)
    for same in found.values():
        for start in range(0, len(same), CHUNK):
            yield same[start : start + CHUNK]


def stands(mapping: TableMapping, dialect: Dialect, held: Held) -> list[ColumnElement[bool]]:
    """The condition for a valid claim, besides key and status."""
    return [_equals(mapping, dialect, role, value) for role, value in zip(mapping.fence, held.fence, strict=True)]


def change_one(connection: Connection, held: Held, status: str, roles: Roles) -> bool:
    """Change one row if its claim is still valid, with a statement that is built once."""
    fit = fitting_roles(held.mapping, roles)
    ready = finishing(held.mapping, connection.dialect, status, frozenset(fit))
    return ready.run(connection, ready.values(held, fit)) == 1


@lru_cache(maxsize=500)
def completing(mapping: TableMapping, dialect: Dialect) -> tuple[Finishing, Roles]:
    """The statement that completes one row if its claim is still valid, and the roles it writes."""
    fit = fitting_roles(mapping, {"error": None})
    return finishing(mapping, dialect, "completed", frozenset(fit)), fit


def fitting_roles(mapping: TableMapping, roles: Roles) -> Roles:
    """The roles that the table has columns for, with values that fit."""
    return {
        role: fitting(mapping.columns[role], value) if role == "error" else value
        for role, value in roles.items()
        if role in mapping.columns
    }


def change(connection: Connection, mapping: TableMapping, same: list[Held], setting: dict[str, Any]) -> set[int]:
    """Change those of one claim's rows that it still holds; return the ids of their `Held` objects."""
    if len(same) > 1 and not way_of(connection.dialect).endswith("returned"):
        # Without RETURNING, a row count does not say which rows were changed.
        return {found for one in same for found in change(connection, mapping, [one], setting)}
    by_key = {one.key_values: id(one) for one in same}
    statement = changing(mapping, "processing", setting).where(
        key_in(mapping, list(by_key)), *stands(mapping, connection.dialect, same[0])
    )
    if len(same) == 1:
        return set(by_key.values()) if connection.execute(statement).rowcount == 1 else set()
    own = [bare(mapping).c[column.name] for column in mapping.key]
    return {by_key[tuple(row)] for row in connection.execute(statement.returning(*own))}


def changes(
    mapping: TableMapping, dialect: Dialect, status: str, roles: Roles, at_time: datetime | None
) -> dict[str, Any]:
    """The values to write when a row leaves processing."""
    found: dict[str, Any] = {mapping.columns["status"].name: mapping.words[status]}
    for role, column in mapping.columns.items():
        kind = time_type(column)
        if role == "version":
            found[column.name] = one_more(mapping, role)
        elif role == "updated" and kind is not None:
            found[column.name] = now(dialect, kind, at=at_time)
        elif role not in roles:
            continue
        elif role == "next_attempt" and kind is not None:
            found[column.name] = now(dialect, kind, at=at_time, ahead=roles[role])
        elif role == "attempts":
            found[column.name] = bare(mapping).c[column.name] + roles[role]
        elif role == "error":
            found[column.name] = fitting(column, roles[role])
        else:
            found[column.name] = roles[role]
    return found


def was_done(connection: Connection, held: Held, status: str) -> bool:
    """Whether this same claim has already moved the row to this status: the first reply was lost."""
    mapping = held.mapping
    if not mapping.fence or mapping.fence == ("heartbeat",) or status == "queued":
        return False
    return is_there(connection, held, status, stood(mapping, connection.dialect, held))


def stood(mapping: TableMapping, dialect: Dialect, held: Held) -> list[ColumnElement[bool]]:
    """Like `stands`, for a row that this claim has already changed: its version is one higher."""
    after = [held.version + 1] if mapping.fence == ("version",) and held.version is not None else held.fence
    return [_equals(mapping, dialect, role, value) for role, value in zip(mapping.fence, after, strict=True)]


def is_there(connection: Connection, held: Held, status: str, facts: Iterable[ColumnElement[bool]]) -> bool:
    mapping, target = held.mapping, bare(held.mapping)
    in_status = target.c[mapping.columns["status"].name] == mapping.word(status)
    own = key_in(mapping, [held.key_values])
    asked = sa.select(sa.literal(1)).select_from(target).where(own, in_status, *facts)
    return connection.execute(asked).first() is not None


def fitting(column: sa.Column[Any], text: str | None) -> str | None:
    """The text, cut to the column's length. None becomes an empty text if the column is NOT NULL."""
    if text is None:
        return None if column.nullable else ""
    kind = plain(column.type)
    length = kind.length if isinstance(kind, sa.String) else None
    return text if length is None else text[:length]


def _equals(mapping: TableMapping, dialect: Dialect, role: str, value: Any) -> ColumnElement[bool]:
    column = mapping.columns[role]
    target: ColumnElement[Any] = bare(mapping).c[column.name]
    kind = time_type(column)
    if kind is not None:
        target = sa.type_coerce(target, kind)
        value = sa.null() if value is None else given(value, dialect, kind)
    elif role != "holder":
        target = sa.type_coerce(target, plain(column.type))
    same: ColumnElement[bool] = target == value
    return same
