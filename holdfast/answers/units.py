"""The store's units on their way out and in: microseconds become datetimes and timedeltas, millionths become Decimals."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import overload

from holdfast.errors import UsageError
from holdfast.model.money import decimal

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@overload
def instant(micros: int) -> datetime: ...


@overload
def instant(micros: int | None) -> datetime | None: ...


def instant(micros: int | None) -> datetime | None:
    """Microseconds since 1970 as a datetime in UTC; the first or the last that Python knows for what is beyond them."""
    if micros is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return _FIRST if micros < 0 else _LAST


def micros_since_1970(at: datetime, *, what: str) -> int:
    """The other way round, for a datetime that a caller gives."""
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise UsageError(f"{what} {at!r}: give a datetime with its time zone, like datetime.now(UTC)")
    return (at - _EPOCH) // timedelta(microseconds=1)


@overload
def length(micros: float) -> timedelta: ...


@overload
def length(micros: float | None) -> timedelta | None: ...


def length(micros: float | None) -> timedelta | None:
    """A number of microseconds as a timedelta."""
    return None if micros is None else timedelta(microseconds=micros)


@overload
def amount(millionths: int) -> Decimal: ...


@overload
def amount(millionths: int | None) -> Decimal | None: ...


def amount(millionths: int | None) -> Decimal | None:
    """A number of millionths as an exact amount."""
    return None if millionths is None else decimal(millionths)


def day(number: int) -> date:
    """The number of a day, from 1970, as a date; the first or the last that Python knows for what is beyond them."""
    try:
        return _EPOCH.date() + timedelta(days=number)
    except OverflowError:
        return date.min if number < 0 else date.max
