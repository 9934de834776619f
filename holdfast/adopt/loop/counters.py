"""Counters: what a loop has done so far, its most frequent errors, and which rows a drain left."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

#: How many distinct errors are counted, how many are shown, and the length of each.
MOST_ERRORS, SHOWN_ERRORS, ERROR_CHARACTERS = 100, 5, 200


@dataclass(frozen=True, slots=True)
class Left:
    """Rows that a drain did not wait for, by reason; false if there are none."""

    #: Held by others that may be dead: no time column, no time in it, or `stale_after=None`.
    held: int = 0
    #: Queued, but not due within the next minute.
    later: int = 0
    #: The database refused to change them.
    refused: int = 0

    @property
    def rows(self) -> int:
        return self.held + self.later + self.refused

    def __bool__(self) -> bool:
        return self.rows > 0

    def __str__(self) -> str:
        reasons = {"held by others": self.held, "due later": self.later, "refused by the database": self.refused}
        return ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count) or "none"


@dataclass(repr=False)
class Counters:
    """Totals of rows, how far the loop lags behind, and what the last drain left."""

    #: Rows claimed.
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    #: Attempts that failed, or asked to be retried, and are queued again.
    retried: int = 0
    #: Handed back unfinished when the loop was stopped.
    released: int = 0
    #: Stale rows that this loop recovered, and rows that it failed because they had no attempts left.
    recovered: int = 0
    exhausted: int = 0
    #: Rows that somebody took over, changed, re-keyed or removed before this loop could finish them.
    lost: int = 0
    #: Rows that the database refused to change at all.
    refused: int = 0
    #: Rows that others had already claimed, and that a guarded claim would have skipped.
    would_have_been_taken_twice: int = 0
    #: At the last report: rows that could be claimed, and how long the oldest had waited; None if unknown.
    waiting: int | None = None
    lag_seconds: float | None = None
    #: What a drain left when it ended; None if the last run was not a drain, or was stopped early.
    left: Left | None = None
    _errors: Counter[str] = field(default_factory=Counter, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False)

    def add(self, **numbers: int) -> None:
        with self._lock:
            for name, number in numbers.items():
                setattr(self, name, getattr(self, name) + number)

    def add_error(self, text: str) -> None:
        """Count an error by the first line of its text. When there are too many distinct ones, drop the rarest."""
        text = text.strip().partition("\n")[0][:ERROR_CHARACTERS]
        with self._lock:
            if text not in self._errors and len(self._errors) >= MOST_ERRORS:
                del self._errors[min(self._errors, key=self._errors.__getitem__)]
            self._errors[text] += 1

    @property
    def errors(self) -> dict[str, int]:
        """The most frequent errors, with the count of each."""
        with self._lock:
            return dict(self._errors.most_common(SHOWN_ERRORS))

    @property
    def troubles(self) -> int:
        """How many times something went wrong with a row."""
        return self.failed + self.retried + self.exhausted + self.lost + self.refused

    def as_dict(self) -> dict[str, Any]:
        numbers = {one.name: getattr(self, one.name) for one in fields(self) if not one.name.startswith("_")}
        return {**numbers, "left": None if self.left is None else asdict(self.left), "errors": self.errors}

    def __str__(self) -> str:
        return ", ".join(self._words()) or "nothing yet"

    def __repr__(self) -> str:
        return f"<Counters: {self}>"

    def _words(self) -> Iterator[str]:
        for name, value in self.as_dict().items():
            if isinstance(value, (int, float)) and value:
                shown = f"{value:.1f}" if isinstance(value, float) else value
                yield f"{name.replace('_', ' ')} {shown}"
        if self.left:
            yield f"left {self.left.rows} ({self.left})"
        if errors := self.errors:
            yield "errors: " + "; ".join(f"{count} × {text}" for text, count in errors.items())
