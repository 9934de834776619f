"""Selects rows, updates those that still meet the condition, and returns them, in the way each database allows.

    locked and returned   PostgreSQL: SKIP LOCKED inside one UPDATE … RETURNING
    returned              SQLite: one UPDATE … RETURNING, under the write lock
    locked                MySQL 8, MariaDB 10.6: SELECT … SKIP LOCKED, then UPDATE
    guarded               anything else: SELECT, then one UPDATE per row if the row is unchanged; a row count of one has won

An UPDATE sets only the columns it names. It uses a bare copy of the table, without the `onupdate` functions of the user's
model, so that concurrent edits of other columns survive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Dialect, Row, TableClause, Update

from holdfast.adopt.table.mapping import TableMapping

Values = Mapping[str, Any]
KeyColumns = tuple[Any, ...]


@dataclass(frozen=True)
class Choice:
    """Which rows to change: those in a status that meet the conditions, in an order, up to a limit."""

    status: str
    where: Sequence[ColumnElement[bool]]
    #: A number, or a bind parameter.
    limit: Any
    #: None orders by the key.
    order_by: Sequence[ColumnElement[Any]] | None = None

    def select(self, mapping: TableMapping, *more: ColumnElement[Any]) -> sa.Select[Any]:
        in_status = mapping.columns["status"] == mapping.word(self.status)
        own = mapping.own_rows
        found = sa.select(*mapping.key, *more).where(in_status, *self.where, *([] if own is None else [own]))
        return found.order_by(*(self.order_by or mapping.key)).limit(self.limit)


def way_of(dialect: Dialect) -> str:
    """How rows are changed on this database; see the list above."""
    version = dialect.server_version_info or (99,)
    if dialect.name == "postgresql":
        return "locked and returned"
    if dialect.name == "sqlite":
        return "returned" if dialect.update_returning else "guarded"
    if dialect.name in ("mysql", "mariadb"):
        return "locked" if version >= ((10, 6) if getattr(dialect, "is_mariadb", False) else (8, 0, 1)) else "guarded"
    return "guarded"


def move(
    connection: Connection,
    mapping: TableMapping,
    choice: Choice,
    values: Values,
    returning: Sequence[ColumnElement[Any]],
) -> list[Row[Any]]:
    """Change the chosen rows. Return the changed ones in the order of the choice, with these (labelled) columns of the bare
    table."""
    own = [bare(mapping).c[column.name].label(f"hf_key{at}") for at, column in enumerate(mapping.key)]
    columns = [*own, *returning]
    way = way_of(connection.dialect)
    if way.endswith("returned"):
        build = locked_and_returned if way.startswith("locked") else returned
        return sorted_rows(
            connection, mapping, choice, connection.execute(build(mapping, choice, values, columns)).all()
        )
    if way == "locked":
        keys = [tuple(row) for row in connection.execute(choice.select(mapping).with_for_update(skip_locked=True))]
        if keys:
            connection.execute(changing(mapping, choice.status, values).where(key_in(mapping, keys)))
    else:
        keys = _one_by_one(connection, mapping, choice, values)
    if not keys:
        return []
    places = {key: place for place, key in enumerate(keys)}
    rows = connection.execute(sa.select(*columns).where(key_in(mapping, keys))).all()
    return sorted(rows, key=lambda row: places[key_of(mapping, row)])


@lru_cache(maxsize=1000)
def bare(mapping: TableMapping) -> TableClause:
    """The table without the model's defaults and `onupdate` functions, for UPDATE statements."""
    columns = [sa.column(column.name, column.type) for column in mapping.table.columns]
    return sa.table(mapping.table.name, *columns, schema=mapping.table.schema)


def changing(mapping: TableMapping, status: str, values: Values) -> Update:
    """An UPDATE of all rows in this status; the caller adds the keys."""
    target = bare(mapping)
    in_status = target.c[mapping.columns["status"].name] == mapping.word(status)
    return target.update().where(in_status).values(dict(values))


def key_in(mapping: TableMapping, keys: Any) -> ColumnElement[bool]:
    """The condition for rows of the bare table with these keys: tuples of values, or a select of the key columns."""
    own = [bare(mapping).c[column.name] for column in mapping.key]
    if len(own) > 1:
        return sa.tuple_(*own).in_(keys)
    if isinstance(keys, (list, tuple)):
        return own[0] == keys[0][0] if len(keys) == 1 else own[0].in_([key[0] for key in keys])
    return own[0].in_(keys)


def key_of(mapping: TableMapping, row: Row[Any]) -> KeyColumns:
    """The key of a row that `move` returned."""
    return tuple(row._mapping[f"hf_key{at}"] for at in range(len(mapping.key)))


def locked_and_returned(
    mapping: TableMapping, choice: Choice, values: Values, columns: Sequence[ColumnElement[Any]]
) -> Any:
    # NO KEY UPDATE: a plain FOR UPDATE would skip rows that another transaction merely references by a foreign key.
    # MATERIALIZED: PostgreSQL may run a plain subquery more than once and claim too many rows.
    locked = choice.select(mapping).with_for_update(skip_locked=True, key_share=True, of=mapping.table)
    taken = locked.cte("hf_taken").prefix_with("MATERIALIZED")
    keys = [column.label(f"k{at}") for at, column in enumerate(taken.c)]
    numbered = sa.select(*keys, sa.func.row_number().over().label("place")).cte("hf_numbered")
    target = bare(mapping)
    same = [target.c[column.name] == numbered.c[f"k{at}"] for at, column in enumerate(mapping.key)]
    return target.update().where(*same).values(dict(values)).returning(numbered.c.place.label("hf_place"), *columns)


def returned(mapping: TableMapping, choice: Choice, values: Values, columns: Sequence[ColumnElement[Any]]) -> Any:
    return changing(mapping, choice.status, values).where(key_in(mapping, choice.select(mapping))).returning(*columns)


def sorted_rows(
    connection: Connection, mapping: TableMapping, choice: Choice, rows: Sequence[Row[Any]]
) -> list[Row[Any]]:
    """Restore the order, which RETURNING does not keep: by the returned position, by the key, or with one more query."""
    if len(rows) < 2:
        return list(rows)
    if "hf_place" in rows[0]._mapping:
        return sorted(rows, key=lambda row: int(row._mapping["hf_place"]))
    if choice.order_by is None:
        try:
            return sorted(rows, key=lambda row: key_of(mapping, row))
        except TypeError:
            return list(rows)
    keys = [key_of(mapping, row) for row in rows]
    own = sa.tuple_(*mapping.key).in_(keys) if len(mapping.key) > 1 else mapping.key[0].in_([key[0] for key in keys])
    again = connection.execute(sa.select(*mapping.key).where(own).order_by(*choice.order_by))
    places = {tuple(row): place for place, row in enumerate(again)}
    return sorted(rows, key=lambda row: places.get(key_of(mapping, row), len(places)))


def _one_by_one(connection: Connection, mapping: TableMapping, choice: Choice, values: Values) -> list[KeyColumns]:
    roles = [role for role in ("holder", "version", "attempts", "heartbeat", "started") if role in mapping.columns]
    seen = [mapping.columns[role] for role in roles]
    target = bare(mapping)
    won = []
    for row in connection.execute(choice.select(mapping, *seen)).all():
        key, facts = tuple(row)[: len(mapping.key)], tuple(row)[len(mapping.key) :]
        unchanged = [target.c[column.name].is_not_distinct_from(fact) for column, fact in zip(seen, facts, strict=True)]
        one = changing(mapping, choice.status, values).where(key_in(mapping, [key]), *unchanged)
        if connection.execute(one).rowcount == 1:
            won.append(key)
    return won
