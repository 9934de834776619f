"""Counters: what a loop has done since it began."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class Counters:
    """Numbers that only grow, and how far the loop lags."""

    #: Rows taken.
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    #: Attempts that failed, or asked for another time, and are queued again.
    retried: int = 0
    #: Handed back unfinished when the loop was stopped.
    released: int = 0
    #: Stale rows of others that this loop brought back, and how many of those had no attempt left.
    recovered: int = 0
    exhausted: int = 0
    #: Rows that were taken over, changed, re-keyed or removed before this loop could finish them.
    lost: int = 0
    #: Rows that the database would not let be changed at all.
    refused: int = 0
    #: Rows that others had taken already, and that the guarded claim would have left to them.
    would_have_been_taken_twice: int = 0
    #: Rows that could be claimed, and for how long the oldest has waited, when last looked at; None: not known.
    waiting: int | None = None
    lag_seconds: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **numbers: int) -> None:
        with self._lock:
            for name, number in numbers.items():
                setattr(self, name, getattr(self, name) + number)

    def as_dict(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self) if not one.name.startswith("_")}

    def __str__(self) -> str:
        shown = {name: value for name, value in self.as_dict().items() if value}
        return ", ".join(
            f"{name.replace('_', ' ')} {value:.1f}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
            for name, value in shown.items()
        ) or "nothing yet"  # fmt: skip
