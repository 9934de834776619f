"""Money, exactly: whole millionths of whatever unit the user counts in. Floats are read as they are written."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from holdfast.errors import UsageError

Amount = int | float | str | Decimal

MICROS = 1_000_000
_MOST = 2**62


def micros(amount: object, *, what: str = "an amount of money") -> int:
    """Read an amount; `0.4` is four tenths, not the nearest binary fraction. Finer parts are rounded up."""
    if isinstance(amount, bool) or not isinstance(amount, (int, float, str, Decimal)):
        raise UsageError(f"{what}: {amount!r} is not an amount; give a number")
    try:
        exact = Decimal(str(amount)) * MICROS
        value = int(exact.to_integral_value(rounding="ROUND_CEILING"))
    except (InvalidOperation, ValueError, OverflowError):
        raise UsageError(f"{what}: {amount!r} is not an amount; give a number") from None
    if value < 0:
        raise UsageError(f"{what}: {amount!r} is negative; money that is spent is zero or more")
    if value > _MOST:
        raise UsageError(f"{what}: {amount!r} is too large to be counted")
    return value


def decimal(value: int) -> Decimal:
    """The amount as an exact decimal number."""
    return Decimal(value) / MICROS


def spoken(value: int) -> str:
    """For people: two digits, more only where there is something to see."""
    exact = decimal(value).normalize()
    return f"{exact:,.2f}" if exact == exact.quantize(Decimal("0.01")) else f"{exact:,f}"
