"""The statement that finishes one row, built once per mapping, status and set of roles.

A loop sends this statement more often than any other, and building it takes longer than many databases take to run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, DateTime, Dialect, Update

from holdfast.adopt.rows.dialects import bare, changing
from holdfast.adopt.table.held_row import Held
from holdfast.adopt.table.mapping import TableMapping
from holdfast.adopt.table.times import asks_database, now, plain, stored, time_type


class Ready:
    """A statement with named parameters, compiled once."""

    def __init__(self, statement: Update, dialect: Dialect) -> None:
        self._statement = statement
        compiled: Any = statement.compile(dialect=dialect)
        self.text = str(compiled)
        self._order = getattr(compiled, "positiontup", None)
        binds: list[tuple[str, Any]] = [(name, bind) for bind, name in compiled.bind_names.items()]
        self._fixed = {name: bind.value for name, bind in binds if not bind.required}
        #: The parameters that the caller has to pass.
        self.places = {name for name, bind in binds if bind.required}
        self._processors = {
            name: found for name, bind in binds if (found := bind.type.dialect_impl(dialect).bind_processor(dialect))
        }
        #: The text can be sent as it is: no list to expand, no value to compute per execution.
        self.is_whole = not (
            compiled.post_compile_params
            or compiled.literal_execute_params
            or any(bind.callable is not None for _, bind in binds)
        )

    def given(self, values: dict[str, Any]) -> Any:
        """All values as the driver expects them: by name, or by position."""
        whole = {**self._fixed, **values}
        for name, process in self._processors.items():
            whole[name] = process(whole[name])
        return whole if self._order is None else tuple(map(whole.__getitem__, self._order))

    def run(self, connection: Connection, values: dict[str, Any]) -> int:
        """Run the statement; return how many rows it changed."""
        if "schema_translate_map" in connection.get_execution_options():
            return connection.execute(self._statement, values).rowcount
        return connection.exec_driver_sql(self.text, self.given(values)).rowcount


class Finishing(Ready):
    """An UPDATE of one row that is still held."""

    def __init__(self, mapping: TableMapping, dialect: Dialect, status: str, roles: frozenset[str]) -> None:
        super().__init__(_finishing(mapping, dialect, status, roles), dialect)
        self._dialect = dialect
        self._keys = [f"hf_key{at}" for at in range(len(mapping.key))]
        self._fence = [(f"hf_fence_{role}", time_type(mapping.columns[role])) for role in mapping.fence]
        self._roles = [(role, f"hf_{role}", time_type(mapping.columns[role])) for role in roles]
        updated = mapping.columns.get("updated")
        self._updated = None if updated is None or asks_database(dialect) else time_type(updated)

    def values(self, held: Held, roles: Mapping[str, Any]) -> dict[str, Any]:
        """The values for one row; times come from the host's clock unless the database's is used."""
        found = dict(zip(self._keys, held.key_values, strict=True))
        for (name, kind), value in zip(self._fence, held.fence, strict=True):
            found[name] = value if kind is None or value is None else stored(value, self._dialect, kind)
        for role, name, kind in self._roles:
            found[name] = roles[role] if kind is None else _moment_value(self._dialect, kind, roles[role])
        if self._updated is not None:
            found["hf_updated"] = _moment_value(self._dialect, self._updated, 0.0)
        return found


@lru_cache(maxsize=2000)
def finishing(mapping: TableMapping, dialect: Dialect, status: str, roles: frozenset[str]) -> Finishing:
    """The statement that moves a row to a status and writes the columns of these roles."""
    return Finishing(mapping, dialect, status, roles)


def _finishing(mapping: TableMapping, dialect: Dialect, status: str, roles: frozenset[str]) -> Update:
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
    return changing(mapping, "processing", setting).where(*keys, *fence)


def _fence(mapping: TableMapping, dialect: Dialect, role: str) -> ColumnElement[bool]:
    column = mapping.columns[role]
    # A holder is compared in its own type, which may be a UUID; numbers and times in their plain types.
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
