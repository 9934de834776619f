"""Guarded changes: an UPDATE changes a processing row only if its claim is still valid.

Shared by `finish` and `heartbeat`: the condition, the values, and which rows were changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Dialect

from holdfast.adopt.rows.dialects import Rows, changing
from holdfast.adopt.rows.prepared import Prepared
from holdfast.adopt.rows.sql import Roles, TableSql, key_in
from holdfast.adopt.table.held_row import Held
from holdfast.adopt.table.mapping import TableMapping
from holdfast.adopt.table.times import delay_value, later, plain, time_type

#: Rows per statement.
CHUNK = 500


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

    def __init__(self, sql: TableSql, status: str, roles: Iterable[str]) -> None:
        self._sql = sql
        mapping, dialect = sql.mapping, sql.dialect
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


@lru_cache(maxsize=2000)
def finishing(mapping: TableMapping, dialect: Dialect, status: str, roles: frozenset[str]) -> Finishing:
    return Finishing(TableSql(mapping, dialect), status, roles)


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
