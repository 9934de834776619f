"""Read local files line by line: only regular ones, so that nothing blocks."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, AnyStr

from holdfast.sources.contract import SourceFailed

#: Bytes or characters.
MAX_LINE = 16 * 1024 * 1024
#: No file system has coarser time stamps.
SETTLED_NS = 2_000_000_000


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading; SourceFailed for anything else."""
    try:
        # Non-blocking: opening a FIFO without a writer would wait forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise SourceFailed(f"{path} is not a regular file") from None
        raise SourceFailed(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceFailed(f"{path} is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def notes_of(file: IO[bytes]) -> dict[str, Any]:
    """What differs after a change of a file, found without reading it. To be taken before it is read."""
    facts = os.fstat(file.fileno())
    return {"size": facts.st_size, "modified_ns": facts.st_mtime_ns, "number": facts.st_ino}


def is_settled(notes: dict[str, Any]) -> bool:
    """Whether any later change would show in these notes: two changes within one tick of the clock look the same."""
    return time.time_ns() - int(notes["modified_ns"]) > SETTLED_NS


def lines(
    file: IO[AnyStr], end: AnyStr, too_long: Callable[[int], None], most: int = MAX_LINE
) -> Iterator[tuple[int, AnyStr]]:
    """Numbered lines with their line ends. One that is too long is reported by its number and skipped."""
    number = 0
    while line := file.readline(most):
        number += 1
        if len(line) < most or line.endswith(end):
            yield number, line
            continue
        too_long(number)
        while line and not line.endswith(end):
            line = file.readline(most)
