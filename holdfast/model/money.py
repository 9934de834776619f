"""Exact money: whole millionths of the user's currency. Floats are read as they are written."""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, Context, Decimal

from holdfast.errors import UsageError

Amount = int | float | str | Decimal

MICROS = 1_000_000
_MOST = 2**62
#: Our own context: the user may have changed precision, rounding and traps of the thread's context.
_EXACT = Context(prec=60, rounding=ROUND_CEILING, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])


def micros(amount: object, *, what: str = "an amount of money") -> int:
    """Read an amount; `0.4` is four tenths, not the nearest binary fraction. Finer parts are rounded up."""
    if isinstance(amount, bool) or not isinstance(amount, (int, float, str, Decimal)):
        raise UsageError(f"{what}: {_shown(amount)} is not an amount; give a number")
    exact = Decimal(float.__repr__(amount) if isinstance(amount, float) else amount, _EXACT)
    if not exact.is_finite():
        raise UsageError(f"{what}: {_shown(amount)} is not an amount; give a number")
    if exact < 0:
        raise UsageError(f"{what}: {_shown(amount)} is negative; money that is spent is zero or more")
    if exact > _MOST // MICROS:
        raise UsageError(f"{what}: {_shown(amount)} is too large to be counted")
    return int(_EXACT.multiply(exact, Decimal(MICROS)).to_integral_value(rounding=ROUND_CEILING))


def shares(whole: int, n: int) -> list[int]:
    """A whole number in `n` parts that add up to it and differ by at most one; the larger ones first."""
    each, rest = divmod(whole, n)
    return [each + (place < rest) for place in range(n)]


def decimal(value: int) -> Decimal:
    """The amount as an exact decimal number."""
    return _EXACT.divide(Decimal(value), Decimal(MICROS))


def spoken(value: int | Decimal) -> str:
    """For people, from millionths or an amount: two decimals, more only if they are not zero."""
    exact = (value if isinstance(value, Decimal) else decimal(value)).normalize(_EXACT)
    return f"{exact:,.2f}" if exact == exact.quantize(Decimal("0.01"), context=_EXACT) else f"{exact:,f}"


def _shown(amount: object) -> str:
    try:
        text = repr(amount)
    except Exception:  # an integer with more digits than Python converts, or an object whose repr fails
        text = f"this {type(amount).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
