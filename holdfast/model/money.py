"""Money, exactly: whole millionths of whatever unit the user counts in. Floats are read as they are written."""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, Context, Decimal

from holdfast.errors import UsageError

Amount = int | float | str | Decimal

MICROS = 1_000_000
_MOST = 2**62
#: Of our own: the user may have set the precision, the rounding and the traps of the thread's as he likes.
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
    """A whole number in `n` parts that add up to it, none of which is more than one above another; the larger ones first."""
    each, rest = divmod(whole, n)
    return [each + (place < rest) for place in range(n)]


def decimal(value: int) -> Decimal:
    """The amount as an exact decimal number."""
    return _EXACT.divide(Decimal(value), Decimal(MICROS))


def spoken(value: int) -> str:
    """For people: two digits, more only where there is something to see."""
    exact = decimal(value).normalize(_EXACT)
    return f"{exact:,.2f}" if exact == exact.quantize(Decimal("0.01"), context=_EXACT) else f"{exact:,f}"


def _shown(amount: object) -> str:
    try:
        text = repr(amount)
    except Exception:  # an integer of more digits than Python writes, or an object that cannot tell what it is
        text = f"this {type(amount).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
