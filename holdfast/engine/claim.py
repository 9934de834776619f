"""Claim: turn waiting rows into leases. Whoever deletes the row has it."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.engine.register import layout
from holdfast.model.states import State
from holdfast.store import Transaction

#: Results longer than this are read when a handler asks for them, not with the claim.
EAGER_RESULT = 16_384


@dataclass(slots=True)
class Lease:
    """The right to run one attempt, and what the handler will want to know. The id is the token."""

    id: int
    item: int
    stage: int
    attempt: int
    alone: int
    rerun: int
    key: str
    data: str
    #: When it was granted or moved on, on the clock of the store.
    since: int
    #: Results of earlier stages, as far as they have been read.
    results: dict[int, str] = field(default_factory=dict)


def claim(tx: Transaction, worker: int, stage: int, most: int) -> list[Lease]:
    """Take up to `most` waiting items of a stage, best first. The attempt counts from here, whatever happens."""
    rows = tx.run("claim", stage=stage, worker=worker, most=most, now=tx.now)
    if not rows:
        return []
    tx.count(stage, State.PENDING, -len(rows))
    tx.count(stage, State.IN_PROGRESS, len(rows))
    leases = [
        Lease(id_, item, stage, attempt, alone, rerun, key, data, tx.now)
        for id_, item, attempt, alone, rerun, key, data in rows
    ]
    before = layout(tx).parents(stage)
    if before:
        by_item = {lease.item: lease for lease in leases}
        for item, parent, result in tx.run("read_results", items=list(by_item), stages=list(before), most=EAGER_RESULT):
            if result is not None:
                by_item[item].results[parent] = result
    return leases
