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
    bindparam,
    func,
    literal,
    literal_column,
    type_coerce,
)
from sqlalchemy.types import TypeEngine

#: The roles of columns that hold times.
TIMES = ("next_attempt", "heartbeat", "started", "updated", "created")


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
    """The current time, plus `ahead` seconds (minus, if negative), as a column of this type stores it.

    The host's clock is read when the statement runs, so that a statement can be built once.
    """
    if at is not None:
        return literal(stored(at + timedelta(seconds=ahead), dialect, kind), plain_time(dialect, kind))
    if not asks_database(dialect):
        return bindparam(None, callable_=lambda: delay_value(dialect, kind, ahead), type_=plain_time(dialect, kind))
    return later(dialect, kind, literal(delay_value(dialect, kind, ahead)) if ahead else None)


def later(dialect: Dialect, kind: DateTime, delay: BindParameter[Any] | None) -> ColumnElement[Any]:
    """The current time after a delay, whose value `delay_value` computes."""
    if delay is not None and not asks_database(dialect):
        return type_coerce(delay, plain_time(dialect, kind))
    if dialect.name == "postgresql":
        # The statement's time, not the transaction's: the user's transaction may have begun long ago.
        moment: ColumnElement[Any] = func.statement_timestamp(type_=DateTime(timezone=True))
        moment = moment if delay is None else moment + type_coerce(delay, Interval())
        return moment if kind.timezone else func.timezone("UTC", moment, type_=DateTime())
    moment = func.utc_timestamp(literal_column("6"), type_=DateTime())
    if delay is not None:
        moment = func.timestampadd(literal_column("MICROSECOND"), delay, moment, type_=DateTime())
    return moment


def delay_value(dialect: Dialect, kind: DateTime, seconds: float) -> Any:
    """A delay in the form that the database adds to its clock; the time itself where the host's clock is used."""
    if dialect.name == "postgresql":
        return timedelta(seconds=seconds)
    if asks_database(dialect):
        return round(seconds * 1e6)
    return stored(datetime.now(UTC) + timedelta(seconds=seconds), dialect, kind)


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


def stored(moment: datetime, dialect: Dialect, kind: DateTime) -> datetime:
    """An instant as the driver expects it for a column of this type."""
    moment = utc(moment)
    return moment if kind.timezone and dialect.name == "postgresql" else moment.replace(tzinfo=None)


def plain_time(dialect: Dialect, kind: DateTime) -> DateTime:
    """The type in which times are passed: only PostgreSQL keeps time zones."""
    return DateTime(timezone=kind.timezone and dialect.name == "postgresql")
