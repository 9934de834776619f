"""Release: hand work back as if it had never been claimed. The attempt is refunded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from holdfast.engine.claim import Lease
from holdfast.engine.finish_leases import HANDED_BACK, FinishedAttempt, end_leases
from holdfast.engine.layout import layout
from holdfast.engine.resource_feedback import settle
from holdfast.model.states import State
from holdfast.store import Transaction


def release(tx: Transaction, leases: Sequence[Lease], reason: str | None = None) -> int:
    """Put work whose lease is still held back to waiting; return how many. The reason goes into the event; without one, no
    handler was called, and nothing is recorded."""
    ordered = sorted(leases, key=lambda lease: (lease.stage, lease.id))
    count = 0
    for stage, same in groupby(ordered, key=lambda lease: lease.stage):
        row = layout(tx).stages[stage]
        ended = end_leases(tx, stage, [FinishedAttempt(lease, State.PENDING) for lease in same])
        settle(tx, stage, ended)
        if reason is not None:
            tx.ended.append((stage, HANDED_BACK, ended))
        stood = [one.lease for one in ended]
        tx.run_rows(
            "enter_waiting",
            [(lease.item, stage, lease.attempt - 1, lease.alone, lease.rerun) for lease in stood],
            since=tx.now,
        )
        tx.count(stage, State.PENDING, len(stood))
        for lease in stood if reason is not None else ():
            tx.record("handed_back", pipeline=row.pipeline, item=lease.item, stage=stage, reason=reason)
        count += len(stood)
    if count:
        tx.tell_idle_workers()
    return count
