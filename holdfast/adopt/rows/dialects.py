"""Selects rows, updates those that still meet the condition, and returns them, with what each database supports.

    SKIP LOCKED and RETURNING   PostgreSQL: SKIP LOCKED inside one UPDATE … RETURNING
    RETURNING                   SQLite: one UPDATE … RETURNING, under the write lock
    SKIP LOCKED                 MySQL 8, MariaDB 10.6: SELECT … SKIP LOCKED, then UPDATE
    neither                     SELECT, then one UPDATE per row if the row is unchanged; a row count of one has won

An UPDATE sets only the columns it names. It uses a bare copy of the table, without the `onupdate` functions of the user's
model, so that concurrent edits of other columns survive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Dialect, Row, Update

from holdfast.adopt.table.mapping import TableMapping

Values = Mapping[str, Any]
Key = tuple[Any, ...]


class Support(NamedTuple):
    """What a database supports; see the list above."""

    skip_locked: bool
    returning: bool


def support_of(dialect: Dialect) -> Support:
    if dialect.name == "postgresql":
        return Support(skip_locked=True, returning=True)
    if dialect.name in ("mysql", "mariadb"):
        first = (10, 6) if getattr(dialect, "is_mariadb", False) else (8, 0, 1)
        return Support(skip_locked=(dialect.server_version_info or (99,)) >= first, returning=False)
    return Support(skip_locked=False, returning=dialect.name == "sqlite" and dialect.update_returning)


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
        found = sa.select(*mapping.key, *more).where(mapping.in_status(self.status), *self.where, *mapping.own_rows)
        return found.order_by(*(self.order_by or mapping.key)).limit(self.limit)


def move(
    connection: Connection,
    mapping: TableMapping,
    choice: Choice,
    values: Values,
    returning: Sequence[ColumnElement[Any]] = (),
) -> list[Row[Any]]:
    """Change the chosen rows. Return the changed ones in the order of the choice: the key, and these (labelled) columns of
    the bare table."""
    support = support_of(connection.dialect)
    if support.returning:
        statement = moving(mapping, choice, values, returning, support)
        return sorted_rows(connection, mapping, choice, connection.execute(statement).all())
    if support.skip_locked:
        keys = [tuple(row) for row in connection.execute(choice.select(mapping).with_for_update(skip_locked=True))]
        if keys:
            connection.execute(changing(mapping, choice.status, values).where(key_in(mapping.bare_key, keys)))
    else:
        keys = _one_by_one(connection, mapping, choice, values)
    return read_back(connection, mapping, keys, returning)


def moving(
    mapping: TableMapping, choice: Choice, values: Values, returning: Sequence[ColumnElement[Any]], support: Support
) -> Update:
    """One statement that changes the chosen rows and returns them; with SKIP LOCKED, the last column is the order."""
    columns = [*_labelled_key(mapping), *returning]
    if not support.skip_locked:
        chosen = key_in(mapping.bare_key, choice.select(mapping))
        return changing(mapping, choice.status, values).where(chosen).returning(*columns)
    # NO KEY UPDATE: a plain FOR UPDATE would skip rows that another transaction merely references by a foreign key.
    # MATERIALIZED: PostgreSQL may run a plain subquery more than once and claim too many rows.
    locked = choice.select(mapping).with_for_update(skip_locked=True, key_share=True, of=mapping.table)
    taken = locked.cte("hf_taken").prefix_with("MATERIALIZED")
    keys = [column.label(f"k{at}") for at, column in enumerate(taken.c)]
    numbered = sa.select(*keys, sa.func.row_number().over().label("place")).cte("hf_numbered")
    same = [mine == numbered.c[f"k{at}"] for at, mine in enumerate(mapping.bare_key)]
    changed = mapping.bare.update().where(*same).values(dict(values))
    return changed.returning(*columns, numbered.c.place.label("hf_place"))


def changing(mapping: TableMapping, status: str, values: Values) -> Update:
    """An UPDATE of all rows in this status; the caller adds the keys."""
    in_status = mapping.target("status") == mapping.word(status)
    return mapping.bare.update().where(in_status).values(dict(values))


def one_more(mapping: TableMapping, role: str) -> ColumnElement[Any]:
    """The incremented value of a counting column; NULL counts as zero."""
    return sa.func.coalesce(mapping.target(role), 0) + 1


def key_in(columns: Sequence[ColumnElement[Any]], keys: Any) -> ColumnElement[bool]:
    """Whether these key columns have one of the keys: tuples of values, or a select of the key columns."""
    if isinstance(keys, sa.Select):
        return (columns[0] if len(columns) == 1 else sa.tuple_(*columns)).in_(keys)
    if len(keys) == 1:
        return sa.and_(*(column == value for column, value in zip(columns, keys[0], strict=True)))
    if len(columns) == 1:
        return columns[0].in_([key[0] for key in keys])
    return sa.tuple_(*columns).in_(list(keys))


def _labelled_key(mapping: TableMapping) -> list[ColumnElement[Any]]:
    return [column.label(f"hf_key{at}") for at, column in enumerate(mapping.bare_key)]


def key_of(mapping: TableMapping, row: Row[Any]) -> Key:
    """The key of a row that `move` returned."""
    return tuple(row[: len(mapping.key)])


def read_back(
    connection: Connection, mapping: TableMapping, keys: Sequence[Key], columns: Sequence[ColumnElement[Any]]
) -> list[Row[Any]]:
    """The rows with these keys, in their order."""
    if not keys:
        return []
    asked = sa.select(*_labelled_key(mapping), *columns).where(key_in(mapping.bare_key, keys))
    return _in_order(mapping, connection.execute(asked).all(), keys)


def sorted_rows(
    connection: Connection, mapping: TableMapping, choice: Choice, rows: Sequence[Row[Any]]
) -> list[Row[Any]]:
    """Restore the order, which RETURNING does not keep: by the returned position, by the key, or with one more query."""
    if len(rows) < 2:
        return list(rows)
    if "hf_place" in rows[0]._mapping:
        return sorted(rows, key=lambda row: int(row[-1]))
    if choice.order_by is None:
        try:
            return sorted(rows, key=lambda row: key_of(mapping, row))
        except TypeError:
            return list(rows)
    own = key_in(mapping.key, [key_of(mapping, row) for row in rows])
    again = connection.execute(sa.select(*mapping.key).where(own).order_by(*choice.order_by))
    return _in_order(mapping, rows, [tuple(row) for row in again])


def _in_order(mapping: TableMapping, rows: Sequence[Row[Any]], keys: Sequence[Key]) -> list[Row[Any]]:
    places = {key: place for place, key in enumerate(keys)}
    return sorted(rows, key=lambda row: places.get(key_of(mapping, row), len(places)))


def _one_by_one(connection: Connection, mapping: TableMapping, choice: Choice, values: Values) -> list[Key]:
    roles = [role for role in ("holder", "version", "attempts", "heartbeat", "started") if role in mapping.columns]
    seen = [mapping.columns[role] for role in roles]
    target = mapping.bare.c
    won = []
    for row in connection.execute(choice.select(mapping, *seen)).all():
        key, facts = key_of(mapping, row), row[len(mapping.key) :]
        unchanged = [target[column.name].is_not_distinct_from(fact) for column, fact in zip(seen, facts, strict=True)]
        one = changing(mapping, choice.status, values).where(key_in(mapping.bare_key, [key]), *unchanged)
        if connection.execute(one).rowcount == 1:
            won.append(key)
    return won
