"""Threads that serve one queue, started when there is work for them, as many as wanted or as the system allows."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.model.logs import logger

log = logger("holdfast.runtime")


class ThreadGroup:
    """Up to `width` threads of one kind. The caller sees to it that no two threads change it at the same time."""

    def __init__(self, name: str, width: int, serve: Callable[[], None]) -> None:
        self._name = name
        self._serve = serve
        #: How many there can be: as many as are wanted, until the system refuses one.
        self._room = width
        self.count = 0

    @property
    def impossible(self) -> bool:
        """Not one thread can be had."""
        return self._room == 0

    def grow(self, wanted: int) -> None:
        """Start so many more, as far as there is room."""
        for _ in range(min(self._room - self.count, wanted)):
            try:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            except (RuntimeError, MemoryError) as error:
                self._room = self.count
                log.warning("no more than %d threads %r can be had: %s", self._room, self._name, error)
                return
            self.count += 1
