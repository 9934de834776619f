"""Blobs at any address that fsspec understands: `<address>/<first two digits>/<hash>`.

An object store makes an upload visible when it is complete. Elsewhere content is uploaded under a temporary name and moved.
There are no locks: between a look at the age of old content and its removal lies one round trip.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from holdfast import points
from holdfast.blobs.blobs import RENEW_SECONDS, Blobs, Digest, copy
from holdfast.blobs.reference import CHUNK
from holdfast.errors import BlobMissing, UsageError
from holdfast.model.redact import redact

_HASH = re.compile("[0-9a-f]{64}")
_PART = ".part"
#: An upload becomes visible when it is complete.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "ocilake", "oci", "memory"})
#: What file systems call the time of the last change.
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


class RemoteBlobs(Blobs):
    """Blobs behind fsspec. The file system is opened when it is first used, in each process anew."""

    #: Each is a question over the network.
    most_looks = 10_000

    def __init__(self, address: str, below: str) -> None:
        super().__init__(redact(address))
        self._address = address
        self._below = below
        self._opened: tuple[int, Any, str] | None = None
        self._opening = threading.Lock()

    # Keeping ------------------------------------------------------------------------------------------------------

    def write(self, file: BinaryIO, known: Digest | None = None) -> Digest:
        # A copy of our own: the caller's file may change between its hash and its upload.
        with tempfile.NamedTemporaryFile(prefix="holdfast-") as local:
            sha256, size = copy(file, local, known)
            local.flush()
            self._upload(local.name, sha256, size)
        return sha256, size

    def _upload(self, local: str, sha256: str, size: int) -> None:
        fs, root = self._fs
        target = self._target(sha256)
        fs.makedirs(f"{root}/{sha256[:2]}", exist_ok=True)
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        direct = bool(protocols & _OBJECT_STORES)
        part = target if direct else f"{root}/{secrets.token_hex(16)}{_PART}"
        points.reach("keep.written")
        fs.put_file(local, part)
        if not direct:
            fs.mv(part, target)
        points.reach("keep.named")
        if (found := self._info(sha256)) is None or found["size"] != size:
            raise BlobMissing(f"{self.where} has not stored sha256:{sha256} with its {size:,} bytes")

    def renew(self, sha256: str, size: int | None = None) -> bool:
        found = self._info(sha256)
        if found is None or size not in (None, found["size"]):
            return False
        changed = self._changed_at(found)
        if changed is not None and time.time() - changed > RENEW_SECONDS:
            return self._renew(sha256, found["size"])
        return True

    def _renew(self, sha256: str, size: int) -> bool:
        """Most object stores cannot change a time: the content is uploaded again."""
        fs, _ = self._fs
        with suppress(NotImplementedError, ValueError):
            fs.touch(self._target(sha256), truncate=False)
            return self._info(sha256) is not None
        try:
            with self.open(sha256, size) as file:
                return self.write(file)[0] == sha256
        except BlobMissing:
            return False

    # Reading ------------------------------------------------------------------------------------------------------

    def open(self, sha256: str, size: int) -> BinaryIO:
        fs, _ = self._fs
        found = self._info(sha256)
        if found is None:
            raise BlobMissing(f"the content of sha256:{sha256} is not at {self.where}")
        if found["size"] != size:
            raise BlobMissing(
                f"the content of sha256:{sha256} at {self.where} does not have the {size:,} bytes that were kept"
            )
        file: BinaryIO = fs.open(self._target(sha256), "rb", block_size=CHUNK)
        return file

    def path(self, sha256: str) -> Path:
        raise UsageError(f"this blob is at {self.where}, not in a local folder: use open(), read() or save()")

    def is_there(self, sha256: str) -> bool:
        return self._info(sha256) is not None

    # Collecting ---------------------------------------------------------------------------------------------------

    def older_than(self, before: float) -> Iterator[str]:
        fs, root = self._fs
        fs.invalidate_cache()
        for number in range(256):
            try:
                entries: Mapping[str, Any] = fs.find(f"{root}/{number:02x}", detail=True)
            except FileNotFoundError:
                continue
            for path, info in entries.items():
                name = path.rpartition("/")[2]
                if _HASH.fullmatch(name) and self._is_older(info, before):
                    yield name

    def remove(self, sha256: str, before: float, *, dry_run: bool = False) -> bool:
        found = self._info(sha256)
        if found is None or not self._is_older(found, before):
            return False
        if not dry_run:
            with suppress(FileNotFoundError):
                self._fs[0].rm_file(self._target(sha256))
        return True

    def remove_leftovers(self, before: float) -> None:
        fs, root = self._fs
        try:
            entries = fs.ls(root, detail=True)
        except FileNotFoundError:
            return
        for info in entries:
            if info["name"].endswith(_PART) and self._is_older(info, before):
                with suppress(FileNotFoundError):
                    fs.rm_file(info["name"])

    def _is_older(self, info: Mapping[str, Any], before: float) -> bool:
        changed = self._changed_at(info)
        return changed is not None and changed < before

    def _changed_at(self, info: Mapping[str, Any]) -> float | None:
        """When content was last changed; None if the file system does not tell, and nothing is ever collected."""
        for name in _TIMES:
            value = info.get(name)
            if isinstance(value, datetime):
                return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
            if isinstance(value, (int, float)):
                return float(value)
            if isinstance(value, str):
                with suppress(ValueError):
                    return datetime.fromisoformat(value).timestamp()
        with suppress(NotImplementedError, AttributeError):
            found: datetime = self._fs[0].modified(info["name"])
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        return None

    # The file system ----------------------------------------------------------------------------------------------

    def _info(self, sha256: str) -> dict[str, Any] | None:
        fs, root = self._fs
        fs.invalidate_cache(f"{root}/{sha256[:2]}")
        try:
            found: dict[str, Any] = fs.info(self._target(sha256))
        except FileNotFoundError:
            return None
        return found if found["type"] == "file" else None

    def _target(self, sha256: str) -> str:
        if not _HASH.fullmatch(sha256):
            raise BlobMissing(f"{sha256[:100]!r} is not a SHA-256")
        return f"{self._fs[1]}/{sha256[:2]}/{sha256}"

    @property
    def _fs(self) -> tuple[Any, str]:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            with self._opening:
                opened = self._opened = (os.getpid(), *self._connect())
        return opened[1], opened[2]

    def _connect(self) -> tuple[Any, str]:
        import fsspec

        try:
            fs, path = fsspec.url_to_fs(self._address, use_listings_cache=False, skip_instance_cache=True)
        except (ImportError, ValueError) as error:
            raise UsageError(f"blobs at {self.where}: {error}") from error
        return fs, f"{path.rstrip('/')}/{self._below}"
