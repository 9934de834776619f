"""Calls left open: a worker of the version before ends a lease and does not know the ledger, so that a paid call of a newer one
stays `intended` in it. Where there is a budget, that worker has counted the money as spent, and left an event that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.engine import ledger
from holdfast.engine.layout import layout
from holdfast.engine.resource_state import lock_resources
from holdfast.model import codec
from holdfast.model.budget_day import day_of
from holdfast.model.paid_call import Paid, PaidCall
from holdfast.store import Transaction

REASON = "a worker of an earlier version ended the attempt"


def doubt_calls_left_open(tx: Transaction, most: int = ledger.CHUNK) -> int:
    """Put them in doubt; return how many were found."""
    known = layout(tx)
    rows = [row for row in tx.run("calls_left_open", most=most) if row[1] in known.stages]
    if not rows:
        return 0
    lock_resources(tx, {stage for _, stage, _ in rows})
    counted: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
    for event in tx.run("old_doubts", items=sorted({item for _, _, item in rows})):
        counted.setdefault(event[2:4], []).append(event)
    doubts: list[PaidCall] = []
    events: list[tuple[Any, ...]] = []

    def decide(call: PaidCall) -> PaidCall | None:
        if call.state != Paid.INTENDED:
            return None  # another worker was quicker
        told = counted.get((call.stage, call.item), [])[-1:]
        if told:
            events.append(counted[call.stage, call.item].pop())
        amount = call.amount or sum(_counted(event) for event in told)
        doubts.append(call._replace(state=str(Paid.DOUBTFUL), amount=amount, reason=REASON))
        return doubts[-1]

    ledger.settle(tx, [number for number, _, _ in rows], decide)
    ledger.record_doubts(tx, doubts, REASON)
    _uncount(tx, events)
    return len(rows)


def _uncount(tx: Transaction, events: Sequence[tuple[Any, ...]]) -> None:
    """Take back what was counted with these events: it is counted with the ledger now."""
    known = layout(tx)
    spent: Counter[tuple[int, int]] = Counter()
    for event in events:
        _, at, stage, *_ = event
        for number in known.resources_of(stage):
            spent[number, day_of(at, known.resources[number].spec.zone)] -= _counted(event)
    tx.run_rows("add_spent", [(*key, n, 0) for key, n in sorted(spent.items())])
    if events:
        tx.run("forget_events", events=[event[0] for event in events])


def _counted(event: tuple[Any, ...]) -> int:
    return int(codec.stored(event[4], {}).get("counted", 0))
