"""A file that is there as a whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import UsageError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that gets its name when everything is in it and on the disk. If the block raises, or the process is
    killed, a file of that name stays as it was; a process that is killed leaves `.NAME.….part` behind. A link is followed, and
    what is not an ordinary file, such as a pipe, is written to as it is."""
    path = Path(os.path.realpath(path))
    try:
        mode = path.stat().st_mode if path.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            with open(path, "wb") as special:
                yield special
            return
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        # With the rights that any new file of this user gets, or those of the file that it replaces.
        out = beside.open("xb")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        with out:
            if mode is not None:
                os.fchmod(out.fileno(), stat.S_IMODE(mode))
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
