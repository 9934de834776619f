"""A file system of a size of its own, in memory, which a test can fill and enlarge."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


class SmallDisk:
    """A small file system in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def mount(self, options: str) -> str:
        """Mount it, or change how it is mounted; a text says why that was refused."""
        program = shutil.which("mount")
        if program is None:
            return "there is no mount program"
        done = subprocess.run(
            [program, "-t", "tmpfs", "-o", options, "tmpfs", self.folder], capture_output=True, text=True, check=False
        )
        return done.stderr.strip() if done.returncode else ""

    def fill(self) -> None:
        """Leave no room at all."""
        with suppress(OSError), (self.folder / "filler").open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    @property
    def free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[SmallDisk]:
    """One that is mounted with these options, as in `size=8m`; the test is skipped where that is not allowed."""
    disk = SmallDisk(folder)
    folder.mkdir()
    refused = disk.mount(options)
    if refused:
        pytest.skip(f"a file system of a size of its own needs the right to mount one: {refused}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
