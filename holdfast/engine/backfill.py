"""Back-fill: a stage that was added later begins for the items that existed before it, or is put on hold for them if nobody
has accepted its price yet."""

from __future__ import annotations

from holdfast.engine.fan_in import begin_if_ready
from holdfast.engine.layout import layout
from holdfast.engine.on_hold import hold
from holdfast.store import Transaction

CHUNK = 1000


def backfill(tx: Transaction, most: int = CHUNK) -> int:
    """Back-fill the next items of one stage; return how many were looked at, 0 when all is done."""
    for [stage] in tx.run("stages_to_backfill"):
        rows = tx.run("take_backfill", stage=stage)
        if rows and stage in layout(tx).stages:
            first, last, pipeline = rows[0]
            items = _items(tx, pipeline, first, last, most)
            begin_if_ready(tx, stage, items)
            tx.run("move_backfill", stage=stage, next=items[-1] + 1 if len(items) == most else None)
            return len(items) or 1
    for [stage] in tx.run("stages_to_hold"):
        rows = tx.run("take_hold_walk", stage=stage)
        if rows and stage in layout(tx).stages:
            first, last, pipeline, reason = rows[0]
            items = _items(tx, pipeline, first, last, most)
            begun = begin_if_ready(tx, stage, items)
            # Items without any outcome are not new work: they are on their way through the pipeline anyway.
            worked_on = [item for (item,) in tx.run("items_with_outcomes", items=begun)] if begun else []
            hold(tx, stage, worked_on, "price", reason)
            tx.run("move_hold_walk", stage=stage, next=items[-1] + 1 if len(items) == most else None)
            return len(items) or 1
    return 0


def _items(tx: Transaction, pipeline: int, first: int, last: int, most: int) -> list[int]:
    return [row[0] for row in tx.run("items_from", pipeline=pipeline, first=first, last=last, most=most)]
