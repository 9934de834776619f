"""What was spent: sums over the cost events, exact, by whatever one asks for.

Every payment since then is read, in stretches of time, so that memory stays that of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.engine.events import EVER, LAST
from holdfast.engine.register import layout
from holdfast.errors import UsageError
from holdfast.store import Transaction

#: What sums may be taken by.
BY = ("pipeline", "stage", "item", "resource", "day")
#: How many payments are added up by one statement.
CHUNK = 50_000


def costs(tx: Transaction, by: tuple[str, ...], *, pipeline: str | None, since: int | None) -> list[dict[str, Any]]:
    """Sums of money in millionths, with the number of payments, largest first."""
    unknown = [name for name in by if name not in BY]
    if unknown or not by:
        raise UsageError(f"costs by {', '.join(unknown) or 'nothing'}: they are summed by {', '.join(BY)}")
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in _sums(tx, by, pipeline, EVER if since is None else since):
        group = tuple(row[name] for name in by)
        entry = sums.setdefault(group, [0, 0])
        entry[0] += row["amount"]
        entry[1] += row["payments"]
    told = [{**dict(zip(by, group, strict=True)), "amount": a, "payments": n} for group, (a, n) in sums.items()]
    return sorted(told, key=lambda one: (-one["amount"], str(one)))


def _sums(tx: Transaction, by: tuple[str, ...], pipeline: str | None, since: int) -> Iterator[dict[str, Any]]:
    """Sums of one stretch of time after another, with names in place of numbers."""
    known = layout(tx)
    if pipeline is not None and pipeline not in known.pipelines:
        return
    names = {row.id: row.name for row in known.pipelines.values()}
    asked = {f"{name}s": int(name in by) for name in ("item", "resource", "day")}
    number = None if pipeline is None else known.pipelines[pipeline].id
    until: int | None = since
    while until is not None:
        since = until
        until = _end_of_stretch(tx, since)
        rows = tx.records("sum_costs", since=since, until=LAST if until is None else until, pipeline=number, **asked)
        items = sorted({row["item"] for row in rows if row["item"] is not None})
        keys = {row["id"]: row["key"] for row in tx.records("read_items", items=items)} if items else {}
        for row in rows:
            stage = known.stages.get(row["stage"])
            yield {
                **row,
                "pipeline": names.get(row["pipeline"]),
                "stage": stage.name if stage else None,
                "item": keys.get(row["item"]),
            }


def _end_of_stretch(tx: Transaction, since: int) -> int | None:
    """When the next stretch begins; None if this is the last. A stretch has all that was paid at one instant."""
    found = tx.run("costs_until", since=since, most=CHUNK)
    return max(found[0][0], since + 1) if found else None
