"""Where tests keep their files: in memory if there is room, since a disk is slow in making and removing thousands of them.

What a killed process has written is as safe in memory as on a disk. `make testall` uses the disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.effort import effort

MEMORY, DISK = "/dev/shm", "/var/tmp"
VARIABLE = "TMPDIR"
#: A run of all tests leaves more than half of it free.
ROOM_BYTES = 3 << 30


def keep_in_memory() -> None:
    """For this process and all that it starts; not if somebody has said where files are to be."""
    if VARIABLE not in os.environ and effort(1, 0) and _room() >= ROOM_BYTES:
        os.environ[VARIABLE] = tempfile.tempdir = MEMORY


@contextmanager
def on_disk() -> Iterator[Path]:
    """A folder that is not in memory, for what a kernel does there alone."""
    with tempfile.TemporaryDirectory(dir=DISK, prefix="hf-disk-") as folder:
        yield Path(folder)


def _room() -> int:
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return 0
    return min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available)
