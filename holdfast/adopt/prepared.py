"""The statement that finishes one row, built once for each mapping and way of finishing.

Most of what a loop sends is this statement. Building it anew costs more than many databases take to carry it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, DateTime, Dialect, Update

from holdfast.adopt.holding import Held
from holdfast.adopt.instants import asks_database, now, plain, stored, time_type
from holdfast.adopt.mapping import TableMapping
from holdfast.adopt.move import bare, changing


class Ready:
    """A statement with named places, compiled once: only values are left to be given."""

    def __init__(self, statement: Update, dialect: Dialect) -> None:
        self._statement = statement
        compiled = statement.compile(dialect=dialect)
        self._text = str(compiled)
        self._order = getattr(compiled, "positiontup", None)
        binds: list[tuple[str, Any]] = [(name, bind) for bind, name in cast(Any, compiled).bind_names.items()]
        self._fixed = {name: bind.value for name, bind in binds if not bind.required}
        self._processors = {
            name: found for name, bind in binds if (found := bind.type.dialect_impl(dialect).bind_processor(dialect))
        }

    def run(self, connection: Connection, values: dict[str, Any]) -> int:
        """How many rows were changed."""
        if "schema_translate_map" in connection.get_execution_options():
            return connection.execute(self._statement, values).rowcount
        whole = {**self._fixed, **values}
        for name, process in self._processors.items():
            whole[name] = process(whole[name])
        given: Any = whole if self._order is None else tuple(whole[name] for name in self._order)
        return connection.exec_driver_sql(self._text, given).rowcount


@lru_cache(maxsize=2000)
def finishing(mapping: TableMapping, dialect: Dialect, status: str, roles: frozenset[str]) -> Ready:
    """An UPDATE of one row that is still held; `finishing_values` has its values."""
    target = bare(mapping)
    setting: dict[str, Any] = {mapping.columns["status"].name: mapping.words[status]}
    for role, column in mapping.columns.items():
        kind = time_type(column)
        if role == "version":
            setting[column.name] = sa.func.coalesce(target.c[column.name], 0) + 1
        elif role == "updated" and kind is not None:
            setting[column.name] = _moment(dialect, kind, "hf_updated", ahead=False)
        elif role not in roles:
            continue
        elif role == "next_attempt" and kind is not None:
            setting[column.name] = _moment(dialect, kind, "hf_next_attempt", ahead=True)
        elif role == "attempts":
            setting[column.name] = target.c[column.name] + sa.bindparam("hf_attempts", type_=sa.Integer())
        else:
            setting[column.name] = sa.bindparam(f"hf_{role}", type_=column.type)
    keys = [target.c[one.name] == sa.bindparam(f"hf_key{at}", type_=one.type) for at, one in enumerate(mapping.key)]
    fence = [_fence(mapping, dialect, role) for role in mapping.fence]
    return Ready(changing(mapping, "processing", setting).where(*keys, *fence), dialect)


def finishing_values(mapping: TableMapping, dialect: Dialect, held: Held, roles: Mapping[str, Any]) -> dict[str, Any]:
    """The values for one row; times are those of the host's clock where the database's is not asked."""
    found = {f"hf_key{at}": value for at, value in enumerate(held.key_values)}
    for role, value in zip(mapping.fence, held.fence, strict=True):
        kind = time_type(mapping.columns[role])
        found[f"hf_fence_{role}"] = value if kind is None or value is None else stored(value, dialect, kind)
    for role, value in roles.items():
        column = mapping.columns.get(role)
        if column is None:
            continue
        kind = time_type(column)
        found[f"hf_{role}"] = value if kind is None else _moment_value(dialect, kind, value)
    column = mapping.columns.get("updated")
    kind = None if column is None else time_type(column)
    if kind is not None and not asks_database(dialect):
        found["hf_updated"] = _moment_value(dialect, kind, 0.0)
    return found


def _fence(mapping: TableMapping, dialect: Dialect, role: str) -> ColumnElement[bool]:
    column = mapping.columns[role]
    # A holder is compared in its own type, which may be a UUID; numbers and times in plain ones.
    kind = column.type if role == "holder" else plain(column.type)
    if isinstance(kind, DateTime):
        kind = DateTime(timezone=kind.timezone and dialect.name == "postgresql")
    target: ColumnElement[Any] = sa.type_coerce(bare(mapping).c[column.name], kind)
    same: ColumnElement[bool] = target == sa.bindparam(f"hf_fence_{role}", type_=kind)
    return same


def _moment(dialect: Dialect, kind: DateTime, name: str, *, ahead: bool) -> ColumnElement[Any]:
    if not asks_database(dialect):
        return sa.bindparam(name, type_=DateTime())
    if not ahead:
        return now(dialect, kind)
    if dialect.name == "postgresql":
        moment = now(dialect, DateTime(timezone=True)) + sa.bindparam(name, type_=sa.Interval())
        return moment if kind.timezone else sa.func.timezone("UTC", moment, type_=DateTime())
    return sa.func.timestampadd(
        sa.literal_column("MICROSECOND"),
        sa.bindparam(name, type_=sa.BigInteger()),
        now(dialect, kind),
        type_=DateTime(),
    )


def _moment_value(dialect: Dialect, kind: DateTime, ahead_seconds: float) -> Any:
    if dialect.name == "postgresql":
        return timedelta(seconds=ahead_seconds)
    if asks_database(dialect):
        return round(ahead_seconds * 1e6)
    return stored(datetime.now().astimezone() + timedelta(seconds=ahead_seconds), dialect, kind)
