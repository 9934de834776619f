"""Selects rows, updates those that still meet the condition, and returns them, with what each database supports.

    SKIP LOCKED and RETURNING   PostgreSQL: SKIP LOCKED inside one UPDATE … RETURNING
    RETURNING                   SQLite: one UPDATE … RETURNING, under the write lock
    SKIP LOCKED                 MySQL 8, MariaDB 10.6: SELECT … SKIP LOCKED, then UPDATE
    neither                     SELECT, then one UPDATE per row if the row is unchanged; a row count of one has won

An UPDATE sets only the columns it names. It uses a bare copy of the table, without the `onupdate` functions of the user's
model, so that concurrent edits of other columns survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Row, Update
from sqlalchemy.orm import Session

from holdfast.adopt.connections import Open, connection_of
from holdfast.adopt.rows.sql import Key, TableSql, key_in
from holdfast.adopt.table.mapping import TableMapping

Values = Mapping[str, Any]
Columns = Sequence[ColumnElement[Any]]


@dataclass(frozen=True)
class Choice:
    """Which rows to change: those in a status that meet the conditions, in an order, up to a limit."""

    status: str
    where: Sequence[ColumnElement[bool]]
    #: A number, or a bind parameter.
    limit: Any
    #: None orders by the key.
    order_by: Columns | None = None

    def select(self, mapping: TableMapping, *more: ColumnElement[Any]) -> sa.Select[Any]:
        found = sa.select(*mapping.key, *more).where(mapping.in_status(self.status), *self.where, *mapping.own_rows)
        return found.order_by(*(self.order_by or mapping.key)).limit(self.limit)


def changing(mapping: TableMapping, status: str, values: Values) -> Update:
    """An UPDATE of all rows in this status; the caller adds the keys."""
    in_status = mapping.target("status") == mapping.word(status)
    return mapping.bare.update().where(in_status).values(dict(values))


def moving(sql: TableSql, choice: Choice, values: Values, returning: Columns) -> Update:
    """One statement that changes the chosen rows and returns them; with SKIP LOCKED, the last column is the order."""
    mapping = sql.mapping
    columns = [*_labelled_key(mapping), *returning]
    if not sql.support.skip_locked:
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


def _labelled_key(mapping: TableMapping) -> list[ColumnElement[Any]]:
    return [column.label(f"hf_key{at}") for at, column in enumerate(mapping.bare_key)]


class Rows(TableSql):
    """The rows of a table at an open place, and how to change some of them."""

    def __init__(self, at: Open, mapping: TableMapping, at_time: datetime | None = None) -> None:
        self.connection = connection_of(at, mapping)
        super().__init__(mapping, self.connection.dialect, at_time)
        self._at = at

    def forget(self, keys: Iterable[Key], roles: Iterable[str], others: Iterable[str] = ()) -> None:
        """Expire these columns on the objects that a Session has loaded for these rows.

        A Core statement does not update them. They would show the old values, or write them back. Other unsaved changes
        of an object survive.
        """
        if not isinstance(self._at, Session):
            return
        mapping = self.mapping
        columns = [mapping.columns[role] for role in roles if role in mapping.columns]
        columns += [mapping.find(name) for name in others]
        for loaded in _loaded(self._at, mapping, list(keys)):
            attributes = sa.inspect(loaded).mapper.column_attrs
            known = [found.key for found in attributes if any(mine is one for mine in found.columns for one in columns)]
            if known:
                self._at.expire(loaded, known)

    def key_of(self, row: Row[Any]) -> Key:
        """The key of a row that `move` returned."""
        return tuple(row[: len(self.mapping.key)])

    def keys(self, choice: Choice) -> list[Key]:
        """The keys of the chosen rows, read without locks."""
        return [tuple(row) for row in self.connection.execute(choice.select(self.mapping))]

    def move(self, choice: Choice, values: Values, returning: Columns = ()) -> list[Row[Any]]:
        """Change the chosen rows. Return the changed ones in the order of the choice: the key, and these (labelled)
        columns of the bare table."""
        mapping, connection = self.mapping, self.connection
        if self.support.returning:
            return self.sorted(choice, connection.execute(moving(self, choice, values, returning)).all())
        if self.support.skip_locked:
            keys = [tuple(row) for row in connection.execute(choice.select(mapping).with_for_update(skip_locked=True))]
            if keys:
                connection.execute(changing(mapping, choice.status, values).where(key_in(mapping.bare_key, keys)))
        else:
            keys = self._move_one_by_one(choice, values)
        return self.read(keys, returning)

    def read(self, keys: Sequence[Key], columns: Columns, *more: ColumnElement[bool]) -> list[Row[Any]]:
        """The rows with these keys, in their order, in the form that `move` returns."""
        if not keys:
            return []
        asked = sa.select(*_labelled_key(self.mapping), *columns).where(key_in(self.mapping.bare_key, keys), *more)
        return self._in_order(self.connection.execute(asked).all(), keys)

    def sorted(self, choice: Choice, rows: Sequence[Row[Any]]) -> list[Row[Any]]:
        """Restore the order, which RETURNING does not keep: by the returned position, by the key, or with one more
        query."""
        if len(rows) < 2:
            return list(rows)
        if "hf_place" in rows[0]._mapping:
            return sorted(rows, key=lambda row: int(row[-1]))
        if choice.order_by is None:
            try:
                return sorted(rows, key=self.key_of)
            except TypeError:
                return list(rows)
        own = key_in(self.mapping.key, [self.key_of(row) for row in rows])
        again = self.connection.execute(sa.select(*self.mapping.key).where(own).order_by(*choice.order_by))
        return self._in_order(rows, [tuple(row) for row in again])

    def _in_order(self, rows: Sequence[Row[Any]], keys: Sequence[Key]) -> list[Row[Any]]:
        places = {key: place for place, key in enumerate(keys)}
        return sorted(rows, key=lambda row: places.get(self.key_of(row), len(places)))

    def _move_one_by_one(self, choice: Choice, values: Values) -> list[Key]:
        mapping = self.mapping
        roles = [role for role in ("holder", "version", "attempts", "heartbeat", "started") if role in mapping.columns]
        seen = [mapping.columns[role] for role in roles]
        won = []
        for row in self.connection.execute(choice.select(mapping, *seen)).all():
            key, facts = self.key_of(row), row[len(mapping.key) :]
            unchanged = [
                mapping.target(role).is_not_distinct_from(fact) for role, fact in zip(roles, facts, strict=True)
            ]
            one = changing(mapping, choice.status, values).where(key_in(mapping.bare_key, [key]), *unchanged)
            if self.connection.execute(one).rowcount == 1:
                won.append(key)
        return won


def show_pending(at: Open) -> None:
    """Flush the Session's pending changes, if it autoflushes before its own queries."""
    if isinstance(at, Session) and at.autoflush:
        at.flush()


def _loaded(session: Session, mapping: TableMapping, keys: Sequence[Key]) -> Iterable[Any]:
    if mapping.mapper is None:
        for one in list(session.identity_map.values()):
            state = sa.inspect(one)
            if mapping.table in state.mapper.tables and tuple(state.identity or ()) in keys:
                yield one
        return
    names = [column.name for column in mapping.key]
    order = [names.index(column.name) for column in mapping.mapper.primary_key if column.name in names]
    for key in keys:
        identity = tuple(key[at] for at in order) if len(order) == len(key) else key
        found = session.identity_map.get(mapping.mapper.identity_key_from_primary_key(identity))
        if found is not None:
            yield found
