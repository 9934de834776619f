"""Remember: what a named sub-step inside a stage returned, so that it is called once however often the stage is tried.

A memo is written under the lease of its attempt; if the lease no longer stands, nothing is written. A paid call leaves
its intent first: an intent without a result means that the process died somewhere around the call, and nobody knows
whether it was made. Memos go when their stage has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.engine.claim import Lease
from holdfast.engine.gates import hold_resources
from holdfast.engine.register import layout
from holdfast.engine.spend import spend
from holdfast.model import codec
from holdfast.store import Transaction


@dataclass(slots=True)
class MemoWrite:
    """A memo to be written, or replaced, under a lease."""

    lease: Lease
    name: str
    #: `intended` before the call, `done` after it.
    state: str
    version: str
    idempotency_key: str
    estimate: int | None = None
    cost: int | None = None
    value: str | None = None
    resource: str | None = None
    #: An intent of an earlier attempt was found, and this says what was decided.
    doubt: str | None = None
    #: Set when the lease no longer stood: nothing was written.
    lost: bool = False


def remember(tx: Transaction, memos: Sequence[MemoWrite]) -> None:
    """Write memos whose lease still stands, with the money they cost; mark the others as lost."""
    # Two who pay for several resources take them in the same order.
    hold_resources(tx, {memo.lease.stage for memo in memos if memo.cost})
    stood: dict[int, int] = dict(tx.run("hold_leases", leases=sorted({memo.lease.id for memo in memos})))
    rows: dict[tuple[int, int, str], tuple[object, ...]] = {}
    for memo in memos:
        lease = memo.lease
        memo.lost = stood.get(lease.id) != lease.stage
        if memo.lost:
            continue
        rows[lease.stage, lease.item, memo.name] = (
            lease.stage, lease.item, memo.name, memo.state, memo.version, memo.idempotency_key, lease.id,
            memo.estimate, memo.cost, memo.value, tx.now,
        )  # fmt: skip
        pipeline = layout(tx).stages[lease.stage].pipeline
        if memo.doubt is not None:
            tx.record(
                "in_doubt", pipeline=pipeline, item=lease.item, stage=lease.stage,
                memo=memo.name, decided=memo.doubt, idempotency_key=memo.idempotency_key,
            )  # fmt: skip
        if memo.cost:
            spend(tx, lease.stage, [(lease.id, memo.cost, memo.resource)])
            tx.record(
                "cost", pipeline=pipeline, item=lease.item, stage=lease.stage,
                amount=memo.cost, resource=memo.resource, memo=memo.name,
            )  # fmt: skip
    tx.run_rows("save_memos", list(rows.values()))


def idempotency_key(lease: Lease, name: str, version: str) -> str:
    """The same for every attempt of one life of a stage; another one when the stage is run anew, its code is another, or
    the stages before it put out something else: a provider would answer with what it said before."""
    inputs = " ".join(output for _, output in sorted(lease.inputs.items()))
    text = f"{lease.item} {lease.stage} {lease.life} {version} {inputs} {lease.key} {name}"
    return codec.digest_of(text.encode())
