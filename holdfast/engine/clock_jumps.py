"""Clock changes: due times are wall-clock times, and the clock may be set. Who reads or writes one checks first."""

from __future__ import annotations

from holdfast.clock import SECOND
from holdfast.model.plausible import LAST
from holdfast.store import Transaction

#: Smaller differences come from a clock that is being adjusted gradually.
JUMP_US = 2 * SECOND
#: Nobody sets a clock by more, which is 142 years: something other than holdfast has written what it is compared with. Times
#: can be shifted by that much without leaving their columns, also where they are kept in nanoseconds.
FARTHEST_JUMP_US = 2**52
#: The statements that shift times, and the last time that can be true; those of buckets are in nanoseconds.
SHIFTED = {
    "shift_delayed": LAST,
    "shift_gates": LAST,
    "shift_buckets": 2**62,
    "shift_pauses": LAST,
    "shift_stage_pauses": LAST,
}

#: The clocks of two processes may differ by this much without a warning.
SKEW_US = 60 * SECOND


def clock_behind(tx: Transaction) -> int:
    """How far the clock of this process is behind what others have written, in microseconds; 0 if that is not much. Only
    where each process uses its own wall clock."""
    if tx.elapsed is None:
        return 0
    [(newest,)] = tx.run("newest_time")
    return newest - tx.now if newest - tx.now > SKEW_US else 0


def follow_the_clock(tx: Transaction) -> None:
    """If the machine's clock was set, shift due times with it: a retry in a minute stays a minute away."""
    if tx.elapsed is None:
        return
    name, ahead = tx.store.driver.clock_name, tx.now - tx.elapsed
    known = tx.run("read_clock", name=name)
    by = ahead - known[0][0] if known else 0
    if known and abs(by) <= JUMP_US:
        return
    if known and abs(by) <= FARTHEST_JUMP_US:
        for statement, last in SHIFTED.items():
            tx.run(statement, by=by, last=last)
        tx.record("clock_set", by_seconds=by / SECOND)
    tx.run("forget_clocks", name=name)
    tx.run("set_clock", name=name, ahead=ahead)
