"""What a loop claims next, a batch or one row alone.

A row that kills its process takes the rows beside it along, and each time all of them lose an attempt. So that they do
not use up their attempts together, a row on its last attempt runs while its loop holds nothing else: the killer is then
the only one that can fail. Where rows have a single attempt there is no earlier one to learn from, and they go in batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.adopt.rows.claim import has_last_attempts

if TYPE_CHECKING:
    from holdfast.adopt.loop.loop import Loop

BATCH, ALONE = "batch", "alone"


class ClaimChoice:
    """Told how much is in hand and what claims brought, it says what to claim."""

    def __init__(self, loop: Loop, *, once: bool = False) -> None:
        self._once = once
        self._is_over = False
        self._concurrency = loop.concurrency
        self._bounded = has_last_attempts(loop.mapping)
        #: A row that must run alone is in hand, or waits for one.
        self._is_alone = False
        self._wants_alone = False
        self._batch_was_empty = False
        self._alone_was_empty = False

    def want_alone(self) -> None:
        """There are rows on their last attempt: claim nothing more until one of them can be run."""
        self._wants_alone = True

    def next(self, waiting: int, running: int) -> str | None:
        """What to claim now; None while there is no room."""
        if self._is_over or waiting or running >= self._concurrency or (self._is_alone and running):
            return None
        self._is_alone = False
        if not self._bounded:
            return BATCH
        if running == 0 and (self._wants_alone or (self._batch_was_empty and not self._alone_was_empty)):
            return ALONE
        return None if self._wants_alone else BATCH

    def took(self, kind: str, count: int) -> None:
        if kind == BATCH:
            self._batch_was_empty = count == 0
            self._alone_was_empty = False
        else:
            self._is_alone = count > 0
            self._wants_alone = False
            self._alone_was_empty = count == 0
            self._batch_was_empty &= count == 0
        self._is_over = self._once and (count > 0 or self.is_exhausted(0))

    def is_exhausted(self, running: int) -> bool:
        """The last claims brought nothing, of either kind, or no more are wanted: there is nothing to do but wait."""
        is_empty = self._batch_was_empty and (not self._bounded or self._alone_was_empty or running > 0)
        return self._is_over or is_empty
