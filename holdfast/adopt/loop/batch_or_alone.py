"""Decides what a loop claims next: a batch, or one row alone.

When a row kills its process, all rows that the process held lose an attempt. So that innocent rows do not use up their
attempts with it, a row on its last attempt runs while its loop holds no other: then only the culprit can fail. Rows with
a single attempt have no earlier one to learn from, and run in batches.
"""

from __future__ import annotations

BATCH, ALONE = "batch", "alone"


class ClaimChoice:
    """Decides what to claim, from the rows that the loop holds and the results of earlier claims."""

    def __init__(self, concurrency: int, *, has_last_attempts: bool, once: bool = False) -> None:
        self._once = once
        self._is_over = False
        self._concurrency = concurrency
        self._bounded = has_last_attempts
        #: Whether the loop holds a row that must run alone, and whether such rows are waiting.
        self._is_alone = False
        self._wants_alone = False
        self._batch_was_empty = False
        self._alone_was_empty = False

    def want_alone(self) -> None:
        """Rows on their last attempt are waiting: claim nothing else until one of them can run."""
        self._wants_alone = True

    def next(self, waiting: int, running: int) -> str | None:
        """What to claim now; None if there is no room."""
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
        """Whether there is nothing to claim for now: the last claims of both kinds returned nothing, or no more are wanted."""
        is_empty = self._batch_was_empty and (not self._bounded or self._alone_was_empty or running > 0)
        return self._is_over or is_empty
