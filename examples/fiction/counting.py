"""Counters: what a process has done since it began; it logs them, prints them when it ends, and `keeping` adds them up."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, fields


@dataclass
class Counters:
    """Numbers that only grow."""

    #: Items that this scheduler saw waiting and got; and saw, but another one got them first.
    won: int = 0
    lost: int = 0
    #: Tasks made for items that had none.
    enqueued: int = 0
    #: With the guard off: items taken although somebody else had taken them.
    taken_twice: int = 0
    #: Items that had been silent for too long and are Pending again; and those among them that had no attempt left.
    resumed: int = 0
    exhausted: int = 0
    #: Pieces: finished; failed and to be tried again; failed for good; handed back in a stop; taken over meanwhile.
    woven: int = 0
    retried: int = 0
    failed: int = 0
    handed_back: int = 0
    taken_over: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **numbers: int) -> None:
        with self._lock:
            for name, number in numbers.items():
                setattr(self, name, getattr(self, name) + number)

    def as_dict(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self) if not one.name.startswith("_")}

    def __str__(self) -> str:
        shown = {name: number for name, number in self.as_dict().items() if number}
        return ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in shown.items()) or "nothing yet"
