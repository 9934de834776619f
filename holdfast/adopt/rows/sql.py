"""What the statements about a table are made of, in the dialect of a database: conditions, and values to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy import ColumnElement, DateTime, Dialect
from sqlalchemy.types import TypeEngine

from holdfast.adopt.table.held_row import Held
from holdfast.adopt.table.mapping import COUNTS, TableMapping
from holdfast.adopt.table.times import aware, comparable, now, plain, plain_time, stored, time_type
from holdfast.errors import UsageError

Key = tuple[Any, ...]
#: Conditions on the user's rows: one, or several that must all hold.
Where: TypeAlias = "ColumnElement[bool] | Sequence[ColumnElement[bool]] | None"
#: What to write besides the status, by role: a text, the seconds from now until a time, a number to add to a count.
Roles = Mapping[str, Any]


class Support(NamedTuple):
    """What a database supports; see the list in `database_differences.py`."""

    skip_locked: bool
    returning: bool


def support_of(dialect: Dialect) -> Support:
    if dialect.name == "postgresql":
        return Support(skip_locked=True, returning=True)
    if dialect.name in ("mysql", "mariadb"):
        first = (10, 6) if getattr(dialect, "is_mariadb", False) else (8, 0, 1)
        return Support(skip_locked=(dialect.server_version_info or (99,)) >= first, returning=False)
    return Support(skip_locked=False, returning=dialect.name == "sqlite" and dialect.update_returning)


class TableSql:
    """Conditions and values for one table and one dialect. `at_time` replaces the database's clock."""

    def __init__(self, mapping: TableMapping, dialect: Dialect, at_time: datetime | None = None) -> None:
        self.mapping = mapping
        self.dialect = dialect
        self.support = support_of(dialect)
        self.at_time = at_time

    # Times ------------------------------------------------------------------------------------------------------------

    def now(self, kind: DateTime, ahead: float = 0.0) -> ColumnElement[Any]:
        return now(self.dialect, kind, at=self.at_time, ahead=ahead)

    def moment(self, ahead: float = 0.0) -> ColumnElement[Any]:
        """The current time, to be compared with any time of a row, or read."""
        return sa.type_coerce(self.now(aware(self.dialect), ahead), aware(self.dialect))

    def first_time(self, *roles: str) -> ColumnElement[Any] | None:
        """The first of these times that a row has; None if the table has none of the columns."""
        columns = self.mapping.columns
        times = [comparable(self.dialect, columns[role]) for role in roles if role in columns]
        return sa.func.coalesce(*times) if len(times) > 1 else times[0] if times else None

    def last_sign(self) -> ColumnElement[Any]:
        """A row's last sign of life."""
        since = self.first_time("heartbeat", "started", "updated")
        if since is None:
            raise UsageError(f"{self.mapping}: to know how old a row is, map a heartbeat, started or updated column")
        return sa.type_coerce(since, aware(self.dialect))

    # Conditions -------------------------------------------------------------------------------------------------------

    def is_stale(self, limit_seconds: float) -> ColumnElement[bool]:
        """The condition for rows whose last sign of life is older than this."""
        return self.last_sign() < self.moment(-limit_seconds)

    def is_due(self, ahead: float = 0.0) -> list[ColumnElement[bool]]:
        column = self.mapping.column("next_attempt")
        if column is None or (kind := time_type(column)) is None:
            return []
        return [sa.or_(column.is_(None), sa.type_coerce(column, kind) <= self.now(kind, ahead))]

    def claimable(self, where: Where = None) -> list[ColumnElement[bool]]:
        """The conditions under which a queued row may be claimed now."""
        return [*self.is_due(), *has_attempts(self.mapping), *conditions_of(where)]

    @cached_property
    def _fence_types(self) -> list[TypeEngine[Any]]:
        """A holder is compared in its own type, which may be a UUID; numbers and times in their plain types."""
        columns = [(role, self.mapping.columns[role]) for role in self.mapping.fence]
        kinds = [column.type if role == "holder" else plain(column.type) for role, column in columns]
        return [plain_time(self.dialect, kind) if isinstance(kind, DateTime) else kind for kind in kinds]

    def fence_values(self, held: Held, *, changed: bool = False) -> list[Any]:
        """What the row has while the claim is valid; or after the same claim has changed it: its version is one higher
        then."""
        if changed and self.mapping.fence == ("version",) and held.version is not None:
            return [held.version + 1]
        return [
            stored(value, self.dialect, kind) if isinstance(kind, DateTime) and value is not None else value
            for value, kind in zip(held.fence, self._fence_types, strict=True)
        ]

    def fenced(self, values: Sequence[Any], *, bare: bool = True) -> list[ColumnElement[bool]]:
        """The condition for a valid claim, besides key and status; on the bare table, or on the model's."""
        column = self.mapping.target if bare else self.mapping.columns.__getitem__
        kinds = zip(self.mapping.fence, self._fence_types, values, strict=True)
        return [sa.type_coerce(column(role), kind) == value for role, kind, value in kinds]

    # Values -----------------------------------------------------------------------------------------------------------

    def marks(self, token: Any) -> dict[str, Any]:
        """What a claim writes."""
        return self.changes("processing", {"holder": token, "attempts": 1, "started": 0.0, "heartbeat": 0.0})

    def changes(self, status: str, roles: Roles) -> dict[str, Any]:
        """What a row's change of status writes. A role's value may be an expression."""
        columns, target = self.mapping.columns, self.mapping.target
        found: dict[str, Any] = {columns["status"].name: self.mapping.words[status]}
        for role, value in {**roles, "version": 1, "updated": 0.0}.items():
            if role not in columns:
                continue
            kind = time_type(columns[role])
            if role in COUNTS:
                value = sa.func.coalesce(target(role), 0) + value
            elif kind is not None and isinstance(value, (int, float)):
                value = self.now(kind, ahead=value)
            found[columns[role].name] = value
        return found


def conditions_of(where: Where) -> list[ColumnElement[bool]]:
    if where is None:
        return []
    return list(where) if isinstance(where, (list, tuple)) else [where]  # type: ignore[list-item]


def has_attempts(mapping: TableMapping) -> list[ColumnElement[bool]]:
    if mapping.limit is None:
        return []
    return [sa.func.coalesce(mapping.columns["attempts"], 0) < mapping.limit]


def has_last_attempts(mapping: TableMapping) -> bool:
    """Whether rows have a last attempt that is not also their first."""
    return mapping.limit is not None and not (isinstance(mapping.limit, int) and mapping.limit == 1)


def is_last_attempt(mapping: TableMapping) -> ColumnElement[bool]:
    """The condition for rows that have failed before and have one attempt left."""
    limit: Any = mapping.limit
    return sa.and_(sa.func.coalesce(mapping.columns["attempts"], 0) + 1 >= limit, limit > sa.literal(1))


def key_in(columns: Sequence[ColumnElement[Any]], keys: Any) -> ColumnElement[bool]:
    """Whether these key columns have one of the keys: tuples of values, or a select of the key columns."""
    if isinstance(keys, sa.Select):
        return (columns[0] if len(columns) == 1 else sa.tuple_(*columns)).in_(keys)
    if len(keys) == 1:
        return sa.and_(*(column == value for column, value in zip(columns, keys[0], strict=True)))
    if len(columns) == 1:
        return columns[0].in_([key[0] for key in keys])
    return sa.tuple_(*columns).in_(list(keys))
