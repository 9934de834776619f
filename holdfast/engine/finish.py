"""What a worker says of an attempt, and the first step of saying it: ending the lease.

Finishing means deleting the lease, or moving it on; it names the lease and the stage, so that a repeated completion of
the stage before cannot finish the next one. No row, no right: the attempt was lost, and nothing of it is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.engine.claim import Lease
from holdfast.engine.register import layout
from holdfast.model.states import State
from holdfast.store import Transaction


@dataclass(slots=True)
class Finished:
    """An attempt that came to an end: DONE, SKIPPED, FAILED, or one of the ways back."""

    lease: Lease
    #: PENDING hands the work back untouched.
    state: State
    version: str = ""
    result: str | None = None
    output_hash: str | None = None
    error: str | None = None
    traceback: str | None = None
    #: Until the next attempt, for RETRY_LATER; a snooze was asked for by the handler and spends no attempt.
    delay_us: int = 0
    snooze: bool = False
    #: How long the handler ran, and how long after the lease was granted it started.
    took_us: int = 0
    waited_us: int = 0
    #: How many items shared the call.
    company: int = 1
    #: Set when the lease no longer stood: nothing of this attempt was saved.
    lost: bool = False

    @property
    def started_at(self) -> int:
        return self.lease.since + self.waited_us


def end_leases(tx: Transaction, stage: int, finished: Sequence[Finished]) -> list[Finished]:
    """Delete the leases and return the attempts whose lease still stood."""
    rows = tx.run("take_leases", stage=stage, leases=[one.lease.id for one in finished])
    if rows:
        tx.count(stage, State.IN_PROGRESS, -len(rows))
    if len(rows) == len(finished):
        return list(finished)
    stood = {row[0] for row in rows}
    return _without_lost(tx, stage, finished, stood)


def move_leases(tx: Transaction, stage: int, onward: int, finished: Sequence[Finished]) -> list[Finished]:
    """Move the leases on to the next stage and return the attempts whose lease still stood."""
    rows = tx.run("move_leases", stage=stage, next=onward, leases=[one.lease.id for one in finished], now=tx.now)
    if rows:
        tx.count(stage, State.IN_PROGRESS, -len(rows))
        tx.count(onward, State.IN_PROGRESS, len(rows))
    if len(rows) == len(finished):
        return list(finished)
    return _without_lost(tx, stage, finished, {row[0] for row in rows})


def save_outcomes(tx: Transaction, stage: int, finished: Sequence[Finished], *, timed: bool = True) -> None:
    """Write outcomes of attempts whose leases were ended in this transaction; `timed` if it is known how long they took."""
    fresh: list[tuple[Any, ...]] = []
    again: list[tuple[Any, ...]] = []
    for one in finished:
        lease = one.lease
        row = (
            lease.item, stage, one.state, lease.attempt, lease.id, one.started_at, one.started_at + one.took_us,
            one.version, one.output_hash, one.error, one.result,
        )  # fmt: skip
        (again if lease.rerun else fresh).append(row)
        if timed:
            tx.count(stage, one.state, 1, bucket=bucket(one.took_us), took_us=one.took_us, most_us=one.took_us)
        else:
            tx.count(stage, one.state, 1)
    tx.run_rows("insert_outcomes", fresh)
    tx.run_rows("replace_outcomes", again)


def bucket(took_us: int) -> int:
    """Durations are counted in buckets, four to each doubling."""
    return int(math.log2(took_us) * 4) if took_us > 1 else 0


def bucket_middle_us(number: int) -> float:
    """A duration in the middle of a bucket."""
    return float(2 ** ((number + 0.5) / 4))


def _without_lost(tx: Transaction, stage: int, finished: Sequence[Finished], stood: set[int]) -> list[Finished]:
    row = layout(tx).stages[stage]
    for one in finished:
        one.lost = one.lease.id not in stood
        if one.lost:
            tx.record(
                "lease_lost", pipeline=row.pipeline, item=one.lease.item, stage=stage,
                lease=one.lease.id, attempt=one.lease.attempt, refused=str(one.state),
            )  # fmt: skip
    return [one for one in finished if not one.lost]
