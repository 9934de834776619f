"""Daytime: due times are times of day, and somebody may set the clock. Whoever reads or writes one looks first."""

from __future__ import annotations

from holdfast.clock import SECOND
from holdfast.store import Transaction

#: Smaller differences are a clock that is being adjusted gently.
JUMP_US = 2 * SECOND


#: By so much the clocks of two processes may differ without a word.
SKEW_US = 60 * SECOND


def clock_behind(tx: Transaction) -> int:
    """By how much the clock of this process lags behind what others have written, in microseconds; 0 if that is not much. Only
    where the time of day is the process's own."""
    if tx.elapsed is None:
        return 0
    [(newest,)] = tx.run("newest_time")
    return newest - tx.now if newest - tx.now > SKEW_US else 0


def follow_the_clock(tx: Transaction) -> None:
    """If the machine's clock was set, due times move along: a retry in a minute stays a minute away."""
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
