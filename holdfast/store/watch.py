"""One thread per process that looks after calls into the database that take too long.

SQLite: says who holds the writer lock that everyone waits for. PostgreSQL: cuts a connection that neither answers nor
closes, so that the call fails and the worker can act.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import Protocol

log = logging.getLogger("holdfast.store")

INTERVAL_SECONDS = 0.5


class Watched(Protocol):
    def look(self, now: float) -> None:
        """Called now and then, from the watching thread, with the monotonic time."""
        ...


_watched: weakref.WeakSet[Watched] = weakref.WeakSet()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def _anew() -> None:
    """A forked child has no watching thread, and the lock may have been held when it was forked."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None


os.register_at_fork(after_in_child=_anew)


def watch(one: Watched) -> None:
    """Look after this connection for as long as it exists."""
    global _thread
    with _lock:
        _watched.add(one)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="holdfast-watch", daemon=True)
            _thread.start()


def _run() -> None:
    while True:
        time.sleep(INTERVAL_SECONDS)
        with _lock:
            all_of_them = list(_watched)
        now = time.monotonic()
        for one in all_of_them:
            try:
                one.look(now)
            except Exception:
                log.exception("a connection could not be looked after")
