"""Clock changes: due times are wall-clock times, and the clock may be set. Who reads or writes one checks first."""

from __future__ import annotations

from holdfast.clock import SECOND
from holdfast.store import Transaction

#: Smaller differences come from a clock that is being adjusted gradually.
JUMP_US = 2 * SECOND


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
    if known and abs(ahead - known[0][0]) <= JUMP_US:
        return
    if known:
        for statement in ("shift_delayed", "shift_gates", "shift_buckets", "shift_pauses", "shift_stage_pauses"):
            tx.run(statement, by=ahead - known[0][0])
        tx.record("clock_set", by_seconds=(ahead - known[0][0]) / SECOND)
    tx.run("forget_clocks", name=name)
    tx.run("set_clock", name=name, ahead=ahead)
