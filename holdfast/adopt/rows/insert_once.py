"""Insert once: inserts a row unless it exists, even if several processes insert it at the same time.

One statement does nothing on a conflict on the named columns; a second one then reads the existing row. A violation of
any other constraint is raised. Inside the caller's transaction, a conflict does not undo earlier work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy import Column, Connection, Table, UniqueConstraint
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapper, Session

from holdfast.adopt.connections import Open, bound_by, primitive
from holdfast.adopt.rows.database_differences import show_pending
from holdfast.adopt.table.mapping import Name, column_of, mapper_and_table
from holdfast.errors import DefinitionError, UsageError

#: How often to retry the insert if the conflicting row is gone by the time it is read.
MOST_AGAIN = 10


class Inserted(NamedTuple):
    """The row, and whether this call created it."""

    row: Any
    created: bool


@primitive
def insert_once(at: Open, model: Any, values: Mapping[str, Any], *, unique_on: Name | Sequence[Name]) -> Inserted:
    """Insert a row unless one with the same `unique_on` exists; return the row, and whether it is new.

    `unique_on` names the columns of a unique constraint, or the constraint or unique index itself. With a Session and a
    model, the row is an object of the Session; otherwise it is a Row. Raises IntegrityError for other constraints only.
    """
    target = _Target(at, model)
    columns = _unique_columns(target.mapper, target.table, unique_on)
    given = {column_of(target.mapper, target.table, name, "values"): value for name, value in values.items()}
    given |= {column: _value(target.table, column, given) for column in columns}
    same = sa.and_(*(column == given[column] for column in columns))
    show_pending(at)
    for _ in range(MOST_AGAIN):
        new = target.insert(given, columns, same)
        if new is not None:
            return Inserted(new, True)
        there = target.read(same)
        if there is not None:
            return Inserted(there, False)
    raise UsageError(
        f"table {target.table.fullname!r}: the conflicting row is inserted and deleted again and again; nothing was inserted"
    )


_ON_CONFLICT: Mapping[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
#: Where a plain SELECT does not see what others have committed since the transaction first read.
_SNAPSHOTS = ("mysql", "mariadb")


class _Target:
    """Where to insert: the table, and the Session if the row has a model."""

    def __init__(self, at: Open, model: Any) -> None:
        self.mapper, self.table = mapper_and_table(model)
        self._session = at if isinstance(at, Session) and self.mapper is not None else None
        #: What is inserted into and read: the model gives objects of the Session, the table rows.
        self._entity = self.table if self._session is None else model
        bound = bound_by(self.mapper, self.table)
        self._connection = at if isinstance(at, Connection) else at.connection(bind_arguments=bound)

    def insert(self, values: Mapping[Column[Any], Any], columns: Sequence[Column[Any]], same: Any) -> Any:
        """The new row, or None on a conflict."""
        insert = _ON_CONFLICT.get(self._connection.dialect.name)
        if insert is None:
            return self._insert_plainly(values, same)
        adding = insert(self._entity).values({self._called(column): value for column, value in values.items()})
        adding = adding.on_conflict_do_nothing(index_elements=list(columns)).returning(self._entity)
        try:
            with _savepoint(self._connection):
                return self._first(adding)
        except sa.exc.DBAPIError as error:
            if "ON CONFLICT" not in str(error.orig):
                raise
            shown = ", ".join(column.name for column in columns)
            raise DefinitionError(
                f"table {self.table.fullname!r} has no unique constraint on exactly ({shown}) in this database"
            ) from error

    def read(self, same: Any) -> Any:
        found = sa.select(self._entity).where(same)
        if self._connection.dialect.name in _SNAPSHOTS:
            # The row in the way may be newer than the snapshot; a locking read sees it, and the conflict has locked it already.
            found = found.with_for_update(read=True)
        return self._first(found)

    def _first(self, statement: Any) -> Any:
        if self._session is None:
            return self._connection.execute(statement).first()
        return self._session.scalars(statement, execution_options={"populate_existing": True}).first()

    def _insert_plainly(self, values: Mapping[Column[Any], Any], same: Any) -> Any:
        """For databases without ON CONFLICT: after an IntegrityError, check whether it came from these columns."""
        adding = sa.insert(self.table).values({one.key: value for one, value in values.items()})
        try:
            with _savepoint(self._connection):
                self._connection.execute(adding)
        except sa.exc.IntegrityError:
            if self.read(same) is None:
                raise
            return None
        return self.read(same)

    def _called(self, column: Column[Any]) -> str:
        if self._session is None or self.mapper is None:
            return column.key
        return self.mapper.get_property_by_column(column).key


def _savepoint(connection: Connection) -> AbstractContextManager[Any]:
    # On SQLite, MySQL and MariaDB a failed statement undoes only itself; elsewhere it may abort the whole transaction.
    # On the latter two a savepoint would do harm: a deadlock removes it, and the missing savepoint would hide the deadlock.
    undoes_itself = connection.dialect.name in ("sqlite", *_SNAPSHOTS)
    return nullcontext() if undoes_itself else connection.begin_nested()


def _unique_columns(mapper: Mapper[Any] | None, table: Table, given: Name | Sequence[Name]) -> list[Column[Any]]:
    named: dict[Any, Any] = {cast(Any, one).name: one for one in (*table.constraints, *table.indexes)}
    if isinstance(given, str) and given in named:
        found = named[given]
        if not (isinstance(found, (UniqueConstraint, sa.PrimaryKeyConstraint)) or getattr(found, "unique", False)):
            raise UsageError(f"table {table.fullname!r}: {given!r} is not unique")
        return list(found.columns)
    several = list(given) if isinstance(given, (list, tuple)) else [given]
    if not several:
        raise UsageError("insert_once: unique_on names no column")
    return [column_of(mapper, table, cast(Name, one), "unique_on") for one in several]


def _value(table: Table, column: Column[Any], given: Mapping[Column[Any], Any]) -> Any:
    value = given.get(column)
    if value is None and column not in given and column.default is not None and column.default.is_scalar:
        value = cast(Any, column.default).arg
    if value is None:
        raise UsageError(
            f"insert_once into {table.fullname!r}: give a value for {column.name!r}; "
            "one that is not known beforehand, or NULL, never conflicts"
        )
    return value
