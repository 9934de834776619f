"""Notifications for a SQLite file: another connection has committed something.

SQLite's change counter shows it. On Linux the kernel says when to read the counter: each commit touches the lock file of the
writers. Writes inside a transaction of the user's do not touch it, and other systems have no such notice, so the counter is
also read at short intervals.
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
from holdfast.store.driver import quietly
from holdfast.store.sqlite_files import closed_elsewhere, connect, identity_of, lock_trouble, translated

_IN_ATTRIB = 0x4


class FileNews:
    """Waits for commits of other connections."""

    #: How often to read the counter, with and without notice from the kernel.
    SELDOM_SECONDS = 0.005
    OFTEN_SECONDS = 0.002

    def __init__(self, path: Path) -> None:
        self._path = path
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
                try:
                    self._touches.wait(min(self.SELDOM_SECONDS, left))
                except OSError as error:
                    raise lock_trouble(self._path, error) from error

    def close(self) -> None:
        self._conn.close()
        if self._touches is not None:
            self._touches.close()
            self._touches = None

    def _read(self) -> int:
        try:
            return int(self._conn.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error as error:
            if self._touches is not None and self._touches.is_gone:
                raise lock_trouble(self._path, closed_elsewhere()) from error
            raise translated(error, self._path) or StoreUnavailable(str(error)) from error


class Touches:
    """Waits until a file is touched."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # Not select, which fails for descriptors over 1,023.
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    @classmethod
    def of(cls, file: Path) -> Touches | None:
        """None where the kernel gives no notice, or has no watch left."""
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

    @property
    def is_gone(self) -> bool:
        """Whether other code has closed the descriptor."""
        return identity_of(self._descriptor) == (0, 0)

    def wait(self, seconds: float) -> None:
        """Wait for a touch, up to this long. Raises OSError if the descriptor has become unusable."""
        for _, what in self._poll.poll(1000 * seconds):
            if what != select.POLLIN:
                raise closed_elsewhere()
            os.read(self._descriptor, 65536)

    def close(self) -> None:
        with quietly(OSError):
            os.close(self._descriptor)
