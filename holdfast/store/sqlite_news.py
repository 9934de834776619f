"""News of a SQLite file: that somebody else has committed something.

SQLite's own change counter tells it, to whoever asks. When to ask is told by the kernel where it can (Linux): whoever has
committed touches the file of the writers' queue. Those who write without queueing, inside a transaction of the user's,
do not, and other systems tell nothing: so it is asked now and then anyway.
"""

from __future__ import annotations

import ctypes
import os
import select
import sqlite3
import time
from collections.abc import Collection
from pathlib import Path

from holdfast.errors import StoreUnavailable
from holdfast.store.sqlite_files import connect

_IN_ATTRIB = 0x4


class FileNews:
    """News from other connections."""

    #: How often to ask, where the kernel tells and where it does not.
    SELDOM_SECONDS = 0.005
    OFTEN_SECONDS = 0.002

    def __init__(self, path: Path) -> None:
        self._conn = connect(path, "mode=rw")
        self._touches = Touches.of(Path(f"{path}-writer"))
        try:
            self._seen = self._read()
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_seconds: float) -> Collection[int] | None:
        give_up_at = time.monotonic() + timeout_seconds
        while True:
            version = self._read()
            if version != self._seen:
                self._seen = version
                return ()
            left = give_up_at - time.monotonic()
            if left <= 0:
                return None
            if self._touches is None:
                time.sleep(min(self.OFTEN_SECONDS, left))
            else:
                self._touches.wait(min(self.SELDOM_SECONDS, left))

    def close(self) -> None:
        self._conn.close()
        if self._touches is not None:
            self._touches.close()
            self._touches = None

    def _read(self) -> int:
        try:
            return int(self._conn.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error as error:
            raise StoreUnavailable(str(error)) from error


class Touches:
    """Tells that somebody has touched a file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def of(cls, file: Path) -> Touches | None:
        """None where the kernel does not tell, or has too many to tell already."""
        try:
            libc = ctypes.CDLL(None)
            begin, add = libc.inotify_init1, libc.inotify_add_watch
        except (AttributeError, OSError):
            return None
        descriptor = begin(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            return None
        if add(descriptor, os.fsencode(file), _IN_ATTRIB) < 0:
            os.close(descriptor)
            return None
        return cls(descriptor)

    def wait(self, seconds: float) -> None:
        """Wait until it was touched since the last time, but not for longer."""
        if select.select([self._descriptor], [], [], seconds)[0]:
            os.read(self._descriptor, 65536)

    def close(self) -> None:
        os.close(self._descriptor)
