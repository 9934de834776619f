"""Promote: what is due leaves the waiting room for retries and may be claimed."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from holdfast.clock import SECOND
from holdfast.model.states import State
from holdfast.store import Transaction

CHUNK = 500


#: Smaller differences are a clock that is being adjusted gently.
JUMP_US = 2 * SECOND


class Promoted(NamedTuple):
    moved: int
    #: When the next one is due, if any is delayed.
    next_due_at: int | None


def promote(tx: Transaction, most: int = CHUNK) -> Promoted:
    """Move due work to waiting."""
    _follow_the_clock(tx)
    rows = tx.run("take_due", now=tx.now, most=most)
    tx.run_rows("enter_waiting", rows)
    for stage, n in Counter(row[1] for row in rows).items():
        tx.count(stage, State.RETRY_LATER, -n)
        tx.count(stage, State.PENDING, n)
    if rows:
        tx.tell_idle_workers()
    [(next_due_at,)] = tx.run("next_due")
    return Promoted(len(rows), next_due_at)


def _follow_the_clock(tx: Transaction) -> None:
    """If somebody set the machine's clock, due times move along: a retry in a minute stays a minute away."""
    if tx.elapsed is None:
        return
    name, ahead = tx.store.driver.clock_name, tx.now - tx.elapsed
    known = tx.run("read_clock", name=name)
    if known and abs(ahead - known[0][0]) <= JUMP_US:
        return
    if known:
        tx.run("shift_delayed", by=ahead - known[0][0])
        tx.record("clock_set", by_seconds=(ahead - known[0][0]) / SECOND)
    tx.run("forget_clocks")
    tx.run("set_clock", name=name, ahead=ahead)
