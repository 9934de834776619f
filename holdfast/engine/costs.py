"""What was spent: sums over the cost events, exact, by whatever one asks for."""

from __future__ import annotations

from typing import Any

from holdfast.errors import UsageError
from holdfast.store import Transaction

#: What sums may be taken by.
BY = ("pipeline", "stage", "item", "resource", "day")


def costs(tx: Transaction, by: tuple[str, ...], *, pipeline: str | None, since: int | None) -> list[dict[str, Any]]:
    """Sums of money in millionths, with the number of payments, largest first."""
    unknown = [name for name in by if name not in BY]
    if unknown or not by:
        raise UsageError(f"costs by {', '.join(unknown) or 'nothing'}: they are summed by {', '.join(BY)}")
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in tx.records("sum_costs", pipeline=pipeline, since=since):
        group = tuple(row[name] for name in by)
        entry = sums.setdefault(group, [0, 0])
        entry[0] += row["amount"]
        entry[1] += row["payments"]
    told = [{**dict(zip(by, group, strict=True)), "amount": a, "payments": n} for group, (a, n) in sums.items()]
    return sorted(told, key=lambda one: (-one["amount"], str(one)))
