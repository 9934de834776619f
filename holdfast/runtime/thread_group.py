"""Threads that serve one queue. They are started on demand, up to a limit or as many as the system allows."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.model.logs import logger

log = logger("holdfast.runtime")


class ThreadGroup:
    """Up to `width` threads of one kind. Not thread-safe: the caller must serialise changes."""

    def __init__(self, name: str, width: int, serve: Callable[[], None]) -> None:
        self._name = name
        self._serve = serve
        #: The limit: `width`, until the system refuses a thread.
        self._room = width
        self.count = 0

    @property
    def impossible(self) -> bool:
        """Whether the system refuses even one thread."""
        return self._room == 0

    def grow(self, wanted: int) -> None:
        """Start this many more threads, up to the limit."""
        for _ in range(min(self._room - self.count, wanted)):
            try:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            except (RuntimeError, MemoryError) as error:
                self._room = self.count
                log.warning("only %d threads %r could be started: %s", self._room, self._name, error)
                return
            self.count += 1
