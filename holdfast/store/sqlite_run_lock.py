"""A lock beside a SQLite file that one process at a time holds, and that ends with it, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from holdfast.store.driver import Forkable
from holdfast.store.sqlite_files import lock_trouble, open_lock_file


class FileLock(Forkable):
    """A lock on a file of its own. The file stays; the lock on it does not. A forked child does not keep it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        super().__init__()

    @classmethod
    def take(cls, path: Path, name: str) -> FileLock | None:
        descriptor = open_lock_file(path, f"run-{name}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise lock_trouble(path, error) from error
        return cls(descriptor)

    def descriptors(self) -> list[int]:
        return [] if self.closed else [self._descriptor]

    def close(self) -> None:
        if not self.closed and self.pid == os.getpid():
            self.closed = True
            os.close(self._descriptor)
