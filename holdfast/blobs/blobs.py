"""Blobs: what every place for content can do, and how content gets there."""

from __future__ import annotations

import hashlib
import io
import mimetypes
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from holdfast import points
from holdfast.blobs.reference import CHUNK, Blob, check_name, is_name, read_reference
from holdfast.errors import UsageError

#: What can be kept: bytes, the path of a file, or a file that is open for reading in binary mode.
Content = bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO

#: A hash, and the number of bytes.
Digest = tuple[str, int]

#: Content that nothing refers to is collected once it is older.
GRACE_SECONDS = 24 * 3600.0
#: The age of content that is kept again, or referred to again, is renewed if it is older: half the grace.
RENEW_SECONDS = GRACE_SECONDS / 2
#: How long this process need not look again whether content is there. With the above, less than the grace.
_SURE_SECONDS = 3600.0
_MOST_SURE = 10_000


class Blobs(ABC):
    """A place for content. Safe for threads, and usable after a fork."""

    #: How many blobs a check looks for.
    most_looks = 1_000_000

    def __init__(self, where: str) -> None:
        #: For people.
        self.where = where
        self._sure: dict[str, float] = {}

    def keep(self, content: Content, name: str | None = None, type: str | None = None) -> Blob:
        """Keep content, and return the reference once it is durable. Content that is there is not written again."""
        if name is not None:
            _check_text("name", name)
            check_name(name)
        if type is not None:
            _check_text("type", type)
        with _opened(content) as file:
            points.reach("keep.before")
            start = _position(file)
            found = None if start is None else _digest(file)
            if found is None or not self.renew(*found):
                if start is not None:
                    file.seek(start)
                # A file may change between two readings, our own copy of bytes does not.
                found = self.write(file, found if isinstance(file, io.BytesIO) and file is not content else None)
            points.reach("keep.after")
        sha256, size = found
        self._be_sure_of(sha256)
        name = name or _name_of(content)
        type = type or (mimetypes.guess_type(name)[0] if name else None)
        return Blob(f"sha256:{sha256}", size, name, type).bound(self)

    def blob(self, value: Any) -> Blob:
        """The reference that a stored value is, ready to be opened."""
        return read_reference(value).bound(self)

    def hold(self, hashes: Iterable[str]) -> list[str]:
        """Protect content that is about to be referred to from a collection at the same time; return what is missing."""
        missing = []
        for sha256 in hashes:
            if not 0 <= time.time() - self._sure.get(sha256, 0.0) < _SURE_SECONDS:
                if self.renew(sha256):
                    self._be_sure_of(sha256)
                else:
                    missing.append(sha256)
        return missing

    def _be_sure_of(self, sha256: str) -> None:
        if len(self._sure) >= _MOST_SURE:
            self._sure.clear()
        self._sure[sha256] = time.time()

    @abstractmethod
    def renew(self, sha256: str, size: int | None = None) -> bool:
        """Make content that is there as young as if it had just been kept, unless it is young; False if it is missing, or
        not of this size."""

    @abstractmethod
    def write(self, file: BinaryIO, known: Digest | None = None) -> Digest:
        """Store what a file has from here on, durably; return its hash and size, which may be known already."""

    @abstractmethod
    def open(self, sha256: str, size: int) -> BinaryIO:
        """The content as a file; BlobMissing if it is not there in this size."""

    @abstractmethod
    def path(self, sha256: str) -> Path:
        """The file with the content; UsageError if it is not in a local folder."""

    @property
    def is_used(self) -> bool:
        """Whether there may be content."""
        return True

    @abstractmethod
    def is_there(self, sha256: str) -> bool: ...

    @abstractmethod
    def older_than(self, before: float) -> Iterator[str]:
        """The hashes of content last kept before this time, in seconds since 1970."""

    @abstractmethod
    def remove(self, sha256: str, before: float, *, dry_run: bool = False) -> bool:
        """Remove content, unless it has been kept again since this time; False if so."""

    @abstractmethod
    def remove_leftovers(self, before: float) -> None:
        """Remove what writers that died before this time have not finished."""


def copy(file: IO[bytes], new: IO[bytes], known: Digest | None) -> Digest:
    """Copy what a file has from here on; return its hash and size, which may be known already."""
    made, size = hashlib.sha256(), 0
    for chunk in _chunks(file):
        if known is None:
            made.update(chunk)
            size += len(chunk)
        new.write(chunk)
        points.reach("keep.writing")
    return known or (made.hexdigest(), size)


def _digest(file: IO[bytes]) -> Digest:
    made, size = hashlib.sha256(), 0
    for chunk in _chunks(file):
        made.update(chunk)
        size += len(chunk)
    return made.hexdigest(), size


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        if not isinstance(chunk, (bytes, bytearray, memoryview)):
            raise UsageError(f"keep: the file returns {type(chunk).__name__}, not bytes: open it in binary mode")
        yield chunk


@contextmanager
def _opened(content: Content) -> Iterator[BinaryIO]:
    if isinstance(content, (bytes, bytearray, memoryview)):
        yield io.BytesIO(content)
    elif isinstance(content, (str, os.PathLike)):
        with open(content, "rb") as file:
            yield file
    elif hasattr(content, "read"):
        yield content
    else:
        raise UsageError(f"keep({type(content).__name__}): give bytes, the path of a file, or an open binary file")


def _position(file: BinaryIO) -> int | None:
    """Where a file that can be read twice stands."""
    return file.tell() if getattr(file, "seekable", lambda: False)() else None


def _name_of(content: Content) -> str | None:
    """The name of the file that the content comes from, if it has a usable one."""
    path = content if isinstance(content, (str, os.PathLike)) else getattr(content, "name", None)
    name = os.path.basename(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else ""
    return name if isinstance(name, str) and is_name(name) else None


def _check_text(what: str, given: object) -> None:
    if not isinstance(given, str) or not given.isprintable() or len(given) > 255:
        raise UsageError(f"keep: {what}={str(given)[:100]!r}: give a short text")
