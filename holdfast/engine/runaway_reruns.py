"""Runaway reruns: a stage whose items rerun each other too often, without new data, is paused."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.describe_chain import describe_chain
from holdfast.engine.pause import pause
from holdfast.engine.selection import Who
from holdfast.model.layout import StageRow
from holdfast.store import Transaction

HOUR_US = 3_600_000_000


def pause_runaway(tx: Transaction, stage: StageRow, n: int, last: Sequence[int]) -> None:
    """Count reruns without new data, and pause the stage if there are too many."""
    # Counting starts over when a person resumes the stage.
    after = max(tx.now - HOUR_US, stage.paused_at or 0)
    [(times,)] = tx.run("count_reruns", stage=stage.id, n=n, after=after, now=tx.now)
    if times > stage.max_reruns_per_hour and not stage.paused:
        why = (
            f"its items rerun each other: {times:,} times within an hour, without new data, "
            f"the last time {describe_chain(tx, last)}; "
            f"to look again later, a handler returns RetryLater; to allow for more, set max_reruns_per_hour"
        )
        pause(tx, stage.label, Who("too many reruns", why))
