"""Hold: waiting work is set apart until what it waits for is there: a person's word, a price that somebody accepts, or a
worker with the right version of its code. No claim sees it; `retry` lets it run, `cancel` sets it aside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from holdfast.engine.register import layout
from holdfast.model.states import State
from holdfast.store import Transaction

#: What releases it.
Kind = Literal["person", "price", "version"]


def hold(tx: Transaction, stage: int, items: Sequence[int], kind: Kind, reason: str) -> int:
    """Put those of the items that wait at a stage on hold; return how many."""
    taken = tx.run("take_waiting", stage=stage, items=list(items))
    rows = [(stage, item, kind, reason, attempts, alone, rerun, tx.now) for item, attempts, alone, rerun in taken]
    tx.run_rows("enter_held", rows)
    tx.count(stage, State.PENDING, -len(rows))
    tx.count(stage, State.ON_HOLD, len(rows))
    pipeline = layout(tx).stages[stage].pipeline
    for item, *_ in taken:
        tx.record("held", pipeline=pipeline, item=item, stage=stage, kind=kind, reason=reason)
    return len(rows)
