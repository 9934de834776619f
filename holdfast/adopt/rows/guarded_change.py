"""Guarded changes: an UPDATE changes a processing row only if its claim is still valid.

Shared by `finish` and `heartbeat`: the condition, the values, and which rows were changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, DateTime, Dialect
from sqlalchemy.types import TypeEngine

from holdfast.adopt.rows.dialects import changing, key_in, one_more, support_of
from holdfast.adopt.rows.prepared import Prepared
from holdfast.adopt.table.held_row import Held
from holdfast.adopt.table.mapping import TableMapping
from holdfast.adopt.table.times import delay_value, later, now, plain, plain_time, stored, time_type

#: Rows per statement.
CHUNK = 500

#: What to write besides the status, by role: the error's text, seconds until the next attempt, a change of the attempts.
Roles = Mapping[str, Any]


def by_claim(rows: Sequence[Held]) -> Iterable[tuple[TableMapping, Sequence[Held]]]:
    """Groups of rows that one statement can change: mostly the rows of one claim."""
    return [(rows[0].mapping, rows)] if len(rows) == 1 else _grouped(rows)


def _grouped(rows: Sequence[Held]) -> Iterator[tuple[TableMapping, Sequence[Held]]]:
    found: dict[tuple[Any, ...], list[Held]] = {}
    for one in rows:
        found.setdefault((one.mapping, *one.fence), []).append(one)
    for same in found.values():
        for start in range(0, len(same), CHUNK):
            yield same[0].mapping, same[start : start + CHUNK]


# The condition --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1000)
def _fence_types(mapping: TableMapping, dialect: Dialect) -> tuple[TypeEngine[Any], ...]:
    """A holder is compared in its own type, which may be a UUID; numbers and times in their plain types."""
    columns = [(role, mapping.columns[role]) for role in mapping.fence]
    kinds = [column.type if role == "holder" else plain(column.type) for role, column in columns]
    return tuple(plain_time(dialect, kind) if isinstance(kind, DateTime) else kind for kind in kinds)


def fence_values(held: Held, dialect: Dialect, *, changed: bool = False) -> list[Any]:
    """What the row has while the claim is valid; or after the same claim has changed it: its version is one higher then."""
    if changed and held.mapping.fence == ("version",) and held.version is not None:
        return [held.version + 1]
    return [
        stored(value, dialect, kind) if isinstance(kind, DateTime) and value is not None else value
        for value, kind in zip(held.fence, _fence_types(held.mapping, dialect), strict=True)
    ]


def fenced(mapping: TableMapping, dialect: Dialect, values: Sequence[Any]) -> list[ColumnElement[bool]]:
    """The condition for a valid claim, besides key and status."""
    kinds = zip(mapping.fence, _fence_types(mapping, dialect), values, strict=True)
    return [sa.type_coerce(mapping.target(role), kind) == value for role, kind, value in kinds]


def is_there(connection: Connection, held: Held, status: str, *, changed: bool) -> bool:
    """Whether the row is in this status, and still under the same claim."""
    mapping, dialect = held.mapping, connection.dialect
    asked = sa.select(sa.literal(1)).where(
        key_in(mapping.bare_key, [held.key_values]),
        mapping.target("status") == mapping.word(status),
        *fenced(mapping, dialect, fence_values(held, dialect, changed=changed)),
    )
    return connection.execute(asked).first() is not None


def was_done(connection: Connection, held: Held, status: str) -> bool:
    """Whether this same claim has already moved the row to this status: the first reply was lost."""
    if held.mapping.fence in ((), ("heartbeat",)) or status == "queued":
        return False
    return is_there(connection, held, status, changed=True)


# The values -----------------------------------------------------------------------------------------------------------


def fitting_roles(mapping: TableMapping, roles: Roles) -> dict[str, Any]:
    """The roles that the table has columns for, with values that fit."""
    found = {role: value for role, value in roles.items() if role in mapping.columns}
    if "error" in found:
        column = mapping.columns["error"]
        length = getattr(plain(column.type), "length", None)
        text = "" if found["error"] is None and not column.nullable else found["error"]
        found["error"] = text if text is None else text[:length]
    return found


def changes(
    mapping: TableMapping, dialect: Dialect, status: str, roles: Roles, at_time: datetime | None = None
) -> dict[str, Any]:
    """The values to write when a row changes its status. A role's value may be an expression."""
    found: dict[str, Any] = {mapping.columns["status"].name: mapping.words[status]}
    for role, column in mapping.columns.items():
        value = roles.get(role)
        kind = time_type(column)
        if role == "version":
            found[column.name] = one_more(mapping, role)
        elif role == "updated" and kind is not None:
            found[column.name] = now(dialect, kind, at=at_time)
        elif role not in roles:
            continue
        elif role == "next_attempt" and kind is not None and isinstance(value, (int, float)):
            found[column.name] = now(dialect, kind, at=at_time, ahead=value)
        else:
            found[column.name] = mapping.target(role) + value if role == "attempts" else value
    return found


# The statement --------------------------------------------------------------------------------------------------------


class Finishing(Prepared):
    """An UPDATE that moves one held row to a status and writes the columns of these roles.

    A loop sends it more often than any other statement.
    """

    def __init__(self, mapping: TableMapping, dialect: Dialect, status: str, roles: Iterable[str]) -> None:
        self._dialect = dialect
        self._names = [
            *(f"hf_key{at}" for at in range(len(mapping.key))),
            *(f"hf_fence_{role}" for role in mapping.fence),
        ]
        self._roles = [(role, f"hf_{role}", time_type(mapping.columns[role])) for role in roles]
        setting: dict[str, Any] = {role: sa.bindparam(name) for role, name, _ in self._roles}
        for role, _, kind in self._roles:
            if kind is not None:
                setting[role] = later(dialect, kind, setting[role])
        places: list[Any] = [sa.bindparam(name) for name in self._names]
        key, fence = places[: len(mapping.key)], places[len(mapping.key) :]
        statement = changing(mapping, "processing", changes(mapping, dialect, status, setting))
        guarded = statement.where(key_in(mapping.bare_key, [key]), *fenced(mapping, dialect, fence))
        super().__init__(guarded, dialect)

    def values(self, held: Held, roles: Roles) -> dict[str, Any]:
        """The values for one row."""
        places = (*held.key_values, *fence_values(held, self._dialect))
        found = dict(zip(self._names, places, strict=True))
        for role, name, kind in self._roles:
            found[name] = roles[role] if kind is None else delay_value(self._dialect, kind, roles[role])
        return found


@lru_cache(maxsize=2000)
def finishing(mapping: TableMapping, dialect: Dialect, status: str, roles: frozenset[str]) -> Finishing:
    return Finishing(mapping, dialect, status, roles)


def change(
    connection: Connection,
    mapping: TableMapping,
    same: Sequence[Held],
    status: str,
    roles: Roles,
    own: Mapping[str, Any],
    at_time: datetime | None,
) -> set[int]:
    """Change those of one claim's rows that it still holds; return the ids of their `Held` objects."""
    dialect, fit = connection.dialect, fitting_roles(mapping, roles)
    if len(same) > 1 and not support_of(dialect).returning:
        # Without RETURNING, a row count does not say which rows were changed.
        each = (change(connection, mapping, [one], status, roles, own, at_time) for one in same)
        return set().union(*each)
    if len(same) == 1 and not own and at_time is None:
        prepared = finishing(mapping, dialect, status, frozenset(fit))
        count = prepared.run(connection, prepared.values(same[0], fit))
    else:
        by_key = {one.key_values: id(one) for one in same}
        guard = fenced(mapping, dialect, fence_values(same[0], dialect))
        setting = changes(mapping, dialect, status, fit, at_time) | dict(own)
        statement = changing(mapping, "processing", setting).where(key_in(mapping.bare_key, list(by_key)), *guard)
        if len(same) > 1:
            return {by_key[tuple(row)] for row in connection.execute(statement.returning(*mapping.bare_key))}
        count = connection.execute(statement).rowcount
    return {id(one) for one in same} if count == 1 else set()
