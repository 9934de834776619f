"""One thread per process that watches for database calls that take too long.

SQLite: it logs which process holds the write lock. PostgreSQL: it closes a connection that neither answers nor ends, so that
the call fails and the worker can act. It also measures how long the process was running at all.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Protocol

from holdfast.model.log_lines import logger

log = logger("holdfast.store")

INTERVAL_SECONDS = 0.5
#: If the thread is later than this, the process was stopped, by a signal or with its machine. On a busy machine it is late too,
#: but by less.
MOST_SECONDS = 0.75


class WatchedConnection(Protocol):
    def look(self, now: float) -> None:
        """Called regularly by the watching thread, with the monotonic time."""
        ...


_watched: weakref.WeakSet[WatchedConnection] = weakref.WeakSet()
_lock = threading.Lock()
_thread: threading.Thread | None = None
#: How long the process had been running at the last pass of the thread, and when that was.
_awake = (0.0, time.monotonic())


def _anew() -> None:
    """A forked child has no watching thread, and the lock may have been held when it was forked."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None


os.register_at_fork(after_in_child=_anew)


def watch(one: WatchedConnection) -> None:
    """Watch this connection for as long as it exists."""
    global _thread
    with _lock:
        _watched.add(one)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="holdfast-watch", daemon=True)
            _thread.start()


def awake_seconds() -> float:
    """A clock that stops while this process is stopped, as far as the watching thread can tell."""
    seconds, at = _awake
    return seconds + min(time.monotonic() - at, MOST_SECONDS)


def _run() -> None:
    global _awake
    while True:
        time.sleep(INTERVAL_SECONDS)
        with _lock:
            all_of_them = list(_watched)
        now = time.monotonic()
        _awake = awake_seconds(), now
        for one in all_of_them:
            try:
                one.look(now)
            except Exception:
                log.exception("a connection could not be watched")
