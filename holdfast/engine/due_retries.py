"""Promote: delayed work that is due may be claimed."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from holdfast.engine.clock_jumps import follow_the_clock
from holdfast.engine.stray_rows import without_strays
from holdfast.model.states import State
from holdfast.store import Transaction

CHUNK = 500


class Promoted(NamedTuple):
    moved: int
    #: When the next one is due, if any is delayed.
    next_due_at: int | None


def promote(tx: Transaction, most: int = CHUNK) -> Promoted:
    """Move due work to waiting."""
    follow_the_clock(tx)
    taken = tx.run("take_due", now=tx.now, most=most)
    tx.rows = len(taken)
    rows = without_strays(tx, "delayed", taken, ("item", "stage", "attempts", "alone", "rerun")) if taken else []
    tx.run_rows("enter_waiting", rows, since=tx.now)
    for stage, n in Counter(row[1] for row in rows).items():
        tx.count(stage, State.RETRY_LATER, -n)
        tx.count(stage, State.PENDING, n)
    if rows:
        tx.tell_idle_workers(*{row[1] for row in rows})
    [(next_due_at,)] = tx.run("next_due")
    return Promoted(len(taken), next_due_at)
