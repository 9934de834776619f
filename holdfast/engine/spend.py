"""Spend: money leaves the budgets of the resources it was spent on, in the transaction that records it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.engine.gates import hold_resources
from holdfast.engine.register import layout
from holdfast.model.day import day_of
from holdfast.model.layout import Layout
from holdfast.store import Transaction


def spend(tx: Transaction, stage: int, payments: Sequence[tuple[int, int, str | None]]) -> None:
    """Count payments (lease, amount in millionths, name of the resource or None) of attempts at a stage against budgets.

    A payment counts for the limits of its pipeline and its stage, and for the resource that it names; one that names none
    counts for all that the stage uses.
    """
    known = layout(tx)
    used = known.resources_of(stage)
    spent: Counter[tuple[int, int]] = Counter()
    lower: Counter[tuple[int, int]] = Counter()
    for lease, amount, name in payments:
        meant = {number for number in used if name is None or known.resources[number].spec.name.startswith("@")}
        if name is not None and (named := known.resource(name)) is not None:
            meant.add(named.id)
        for number in meant:
            spent[number, day_of(tx.now, known.resources[number].spec.zone)] += amount
            lower[lease, number] += amount
    tx.run_rows("add_spent", [(number, day, amount) for (number, day), amount in sorted(spent.items())])
    tx.run_rows("lower_reservations", [(lease, number, amount) for (lease, number), amount in sorted(lower.items())])


def keep_money_in_doubt(tx: Transaction, ended: Sequence[tuple[int, int, int]]) -> None:
    """Attempts under these leases (lease, item, stage) ended without a result. What they had set aside is free again; but a
    paid call that was begun and not recorded may have been paid: its estimate counts as spent, or what was set aside for the
    attempt if it has none. A budget is never under-counted."""
    known = layout(tx)
    limited = {lease: (item, stage) for lease, item, stage in ended if _has_budget(known, stage)}
    if not limited:
        return
    hold_resources(tx, {stage for _, stage in limited.values()})
    leases = sorted(limited)
    aside: dict[int, int] = dict(tx.run("reserved_for", leases=leases))
    stages = sorted({stage for _, stage in limited.values()})
    for stage, item, lease, estimate in tx.run("intents_of", stages=stages, items=[item for item, _ in limited.values()]):
        amount = estimate if estimate is not None else aside.get(lease, 0)
        if amount and limited.get(lease) == (item, stage):
            spend(tx, stage, [(lease, amount, None)])
            tx.record("money_in_doubt", pipeline=known.stages[stage].pipeline, item=item, stage=stage, counted=amount)
    tx.run("drop_reservations", leases=leases)


def _has_budget(known: Layout, stage: int) -> bool:
    return any(known.resources[number].spec.has_budget for number in known.resources_of(stage))
