"""A file that every process of a measurement maps: which items began and ended, how often, and when.

It is outside of any database and works for threads, processes and whatever a library forks. Standard library only: the
scripts of the peers, which run in environments of their own, use it too.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

#: The same clock in every process of the machine.
now = time.perf_counter

_FLAG = 8


class Board:
    """Three cells per item: how often it began, how often it ended, when it last began; and one flag for all."""

    def __init__(self, path: str | Path) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        cells = memoryview(self._map)
        self.items = (len(cells) - _FLAG) // 24
        part = 8 * self.items
        self._flag = cells[:_FLAG].cast("q")
        self.starts = cells[_FLAG : _FLAG + part].cast("q")
        self.ends = cells[_FLAG + part : _FLAG + 2 * part].cast("q")
        self.began = cells[_FLAG + 2 * part : _FLAG + 3 * part].cast("d")
        self._seen = 0

    @classmethod
    def make(cls, path: Path, items: int) -> Board:
        """A new file with every cell at zero."""
        with path.open("wb") as file:
            os.truncate(file.fileno(), _FLAG + 24 * items)
        return cls(path)

    def start(self, number: int) -> None:
        """An item's handler has begun. Numbers beyond the last cell begin again at the first."""
        cell = number % self.items
        self.began[cell] = now()
        self.starts[cell] += 1

    def end(self, number: int) -> None:
        self.ends[number % self.items] += 1

    @property
    def released(self) -> bool:
        """Whether handlers that hold their items may end."""
        return bool(self._flag[0])

    def release(self) -> None:
        self._flag[0] = 1

    def all_started(self, times: int = 1) -> bool:
        """Whether every item has begun so often. Cheap: it looks only at those it has not yet seen begun."""
        if times == 1:
            while self._seen < self.items and self.starts[self._seen]:
                self._seen += 1
            return self._seen == self.items
        return all(count >= times for count in self.starts)


def wait_until(fact: Callable[[], bool], seconds: float, every: float = 0.002) -> bool:
    """Look until it holds, or the time is over; return whether it held."""
    until = now() + seconds
    while not fact():
        if now() > until:
            return False
        time.sleep(every)
    return True
