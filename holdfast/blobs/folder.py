"""Blobs in a local folder: `<folder>/<first two digits>/<hash>`.

Content is written under a temporary name, made durable, and renamed. A lock decides between those who keep content that is
there already and those who collect it. Paths are made of hashes only, and no link below the folder is followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from holdfast import points
from holdfast.blobs.blobs import RENEW_SECONDS, Blobs, Digest, copy
from holdfast.errors import BlobMissing, StoreBroken, StoreUnavailable

_HASH = re.compile("[0-9a-f]{64}")
_PART = ".part"
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _SAFE
_FULL = (errno.ENOSPC, errno.EDQUOT)


class BlobFolder(Blobs):
    """Blobs in a folder, which is made when it is first needed."""

    def __init__(self, folder: Path, mode: int, like: os.stat_result | None = None) -> None:
        """`mode` is that of new files, and `like` is a file whose owner and group they get as well."""
        super().__init__(str(folder))
        self._root = folder
        self._mode = mode
        self._like = like

    # Keeping ------------------------------------------------------------------------------------------------------

    def write(self, file: BinaryIO, known: Digest | None = None) -> Digest:
        try:
            return self._write(file, known)
        except OSError as error:
            if error.errno in _FULL:
                raise StoreUnavailable(f"{self._root}: the disk is full") from error
            raise

    def _write(self, file: BinaryIO, known: Digest | None) -> Digest:
        self._make(self._root)
        part = self._root / f"{secrets.token_hex(16)}{_PART}"
        number = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE, 0o600)
        try:
            with os.fdopen(number, "wb") as new:
                self._own(number, self._mode)
                sha256, size = copy(file, new, known)
                new.flush()
                os.fsync(number)
                points.reach("keep.written")
                self._give_name(part, sha256, number)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return sha256, size

    def _give_name(self, part: Path, sha256: str, number: int) -> None:
        self._make(self._root / sha256[:2])
        with self._shard(sha256) as folder:
            with self._locked(fcntl.LOCK_SH):
                os.utime(number)
                os.rename(part, sha256, dst_dir_fd=folder)
            points.reach("keep.named")
            os.fsync(folder)

    def renew(self, sha256: str, size: int | None = None) -> bool:
        try:
            with self._shard(sha256) as folder, self._locked(fcntl.LOCK_SH):
                found = os.stat(sha256, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode) or size not in (None, found.st_size):
                    return False
                if time.time() - found.st_mtime > RENEW_SECONDS:
                    os.utime(sha256, dir_fd=folder, follow_symlinks=False)
                # Its writer may not have done so yet.
                os.fsync(folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    # Reading ------------------------------------------------------------------------------------------------------

    def open(self, sha256: str, size: int) -> BinaryIO:
        try:
            with self._shard(sha256) as folder:
                number = os.open(sha256, os.O_RDONLY | os.O_NONBLOCK | _SAFE, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise self._missing(sha256) from None
            raise
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            os.close(number)
            raise BlobMissing(
                f"the content of sha256:{sha256} in {self._root} does not have the {size:,} bytes that were kept"
            )
        return os.fdopen(number, "rb")

    def path(self, sha256: str) -> Path:
        if not self.is_there(sha256):
            raise self._missing(sha256)
        return self._root / sha256[:2] / sha256

    @property
    def is_used(self) -> bool:
        return self._root.is_dir()

    def is_there(self, sha256: str) -> bool:
        try:
            with self._shard(sha256) as folder:
                return stat.S_ISREG(os.stat(sha256, dir_fd=folder, follow_symlinks=False).st_mode)
        except PermissionError:
            raise StoreBroken(f"{self._root} cannot be read: you need the right to enter it") from None
        except OSError:
            return False

    def _missing(self, sha256: str) -> BlobMissing:
        return BlobMissing(f"the content of sha256:{sha256} is not in {self._root}")

    # Collecting ---------------------------------------------------------------------------------------------------

    def older_than(self, before: float) -> Iterator[str]:
        for folder in sorted(self._entries(self._root), key=lambda one: one.name):
            if re.fullmatch("[0-9a-f]{2}", folder.name) and folder.is_dir(follow_symlinks=False):
                for one in self._entries(Path(folder.path)):
                    if _HASH.fullmatch(one.name) and one.name.startswith(folder.name) and _age(one) < before:
                        yield one.name

    def remove(self, sha256: str, before: float, *, dry_run: bool = False) -> bool:
        try:
            with self._shard(sha256) as folder, self._locked(fcntl.LOCK_EX):
                if os.stat(sha256, dir_fd=folder, follow_symlinks=False).st_mtime >= before:
                    return False
                if not dry_run:
                    os.unlink(sha256, dir_fd=folder)
        except FileNotFoundError:
            return False
        return True

    def remove_leftovers(self, before: float) -> None:
        for one in self._entries(self._root):
            if one.name.endswith(_PART) and _age(one) < before:
                Path(one.path).unlink(missing_ok=True)

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as found:
                return list(found)
        except FileNotFoundError:
            return []

    # Folders ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _shard(self, sha256: str) -> Iterator[int]:
        """The folder that has, or would have, this content."""
        if not _HASH.fullmatch(sha256):
            raise BlobMissing(f"{sha256[:100]!r} is not a SHA-256")
        number = os.open(self._root / sha256[:2], _FOLDER)
        try:
            yield number
        finally:
            os.close(number)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """Only those who may write to the content may take the lock: the right to read is enough to hold one."""
        number = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | _SAFE, 0o600)
        try:
            if os.fstat(number).st_uid == os.geteuid():
                writers = self._mode & 0o222
                self._own(number, writers | writers << 1)
            fcntl.flock(number, how)
            yield
        finally:
            os.close(number)

    def _make(self, folder: Path) -> None:
        """Make a folder, and the one above it, durably; who may read a file may enter it."""
        if folder.is_dir():
            return
        if folder != self._root:
            self._make(self._root)
        elif not folder.parent.is_dir():
            self._make_one(folder.parent)
        self._make_one(folder)

    def _make_one(self, folder: Path) -> None:
        try:
            folder.mkdir(0o700)
        except FileExistsError:
            return
        number = os.open(folder, _FOLDER)
        try:
            self._own(number, self._mode | (self._mode & 0o444) >> 2)
        finally:
            os.close(number)
        above = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(above)
        finally:
            os.close(above)

    def _own(self, number: int, mode: int) -> None:
        """Give a new file its owner, group and mode, whatever the umask is."""
        found = os.fstat(number)
        if self._like is not None:
            if os.geteuid() == 0 and found.st_uid != self._like.st_uid:
                os.fchown(number, self._like.st_uid, self._like.st_gid)
            elif found.st_gid != self._like.st_gid and self._like.st_gid in (os.getegid(), *os.getgroups()):
                os.fchown(number, -1, self._like.st_gid)
        if stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(number, mode)


def _age(entry: os.DirEntry[str]) -> float:
    """When it was last changed; the end of time if it is gone."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return float("inf")
