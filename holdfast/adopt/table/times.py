"""Times in the user's columns: all processes use one clock, the database server's. On SQLite it is the host's.

Columns hold UTC, with or without a time zone.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    DateTime,
    Dialect,
    Interval,
    TypeDecorator,
    func,
    literal,
    literal_column,
)
from sqlalchemy.types import TypeEngine


def time_type(column: ColumnElement[Any]) -> DateTime | None:
    """The DateTime that a column's type is based on, or None if the column holds no instants."""
    found = plain(column.type)
    return found if isinstance(found, DateTime) else None


def plain(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """The SQLAlchemy type below a TypeDecorator."""
    while isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    return kind


def asks_database(dialect: Dialect) -> bool:
    """Whether to use the database's clock, and not the host's."""
    return dialect.name in ("postgresql", "mysql", "mariadb")


def now(dialect: Dialect, kind: DateTime, *, at: datetime | None = None, ahead: float = 0.0) -> ColumnElement[Any]:
    """The current time, plus `ahead` seconds (minus, if negative), as a column of this type stores it."""
    if at is not None or not asks_database(dialect):
        return given((at or datetime.now(UTC)) + timedelta(seconds=ahead), dialect, kind)
    if dialect.name == "postgresql":
        # The statement's time, not the transaction's: the user's transaction may have begun long ago.
        moment: ColumnElement[Any] = func.statement_timestamp(type_=DateTime(timezone=True))
        if ahead:
            moment = moment + literal(timedelta(seconds=ahead), Interval())
        return moment if kind.timezone else func.timezone("UTC", moment, type_=DateTime())
    moment = func.utc_timestamp(literal_column("6"), type_=DateTime())
    if ahead:
        moment = func.timestampadd(literal_column("MICROSECOND"), round(ahead * 1e6), moment, type_=DateTime())
    return moment


def comparable(dialect: Dialect, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The column as an instant that can be compared with columns with and without time zones."""
    kind = time_type(column)
    if dialect.name == "postgresql" and kind is not None and not kind.timezone:
        return func.timezone("UTC", column, type_=DateTime(timezone=True))
    return column


def aware(dialect: Dialect) -> DateTime:
    """The type that `comparable` makes of a column."""
    return DateTime(timezone=dialect.name == "postgresql")


def utc(moment: datetime) -> datetime:
    """A value read from a column, as an aware datetime in UTC."""
    return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def given(moment: datetime, dialect: Dialect, kind: DateTime) -> BindParameter[Any]:
    """An instant as a bind parameter for a column of this type."""
    return literal(stored(moment, dialect, kind), DateTime(timezone=kind.timezone and dialect.name == "postgresql"))


def stored(moment: datetime, dialect: Dialect, kind: DateTime) -> datetime:
    """An instant as the driver expects it for a column of this type."""
    moment = utc(moment)
    return moment if kind.timezone and dialect.name == "postgresql" else moment.replace(tzinfo=None)
