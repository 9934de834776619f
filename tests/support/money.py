"""What was charged, as a test compares it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast import Holdfast
from holdfast.model.money import micros


def charged(app: Holdfast, by: Sequence[str] = ("pipeline", "stage"), **which: Any) -> list[dict[str, Any]]:
    """Sums of what was charged, in millionths, with the number of payments; nothing may be in doubt or set aside."""
    told = app.costs(by, **which)
    assert [one for one in told.sums if one.in_doubt or one.set_aside or one.spent != one.costs] == []
    return [
        {**{name: getattr(one, name) for name in by}, "amount": micros(one.costs), "payments": one.payments}
        for one in told.sums
    ]
