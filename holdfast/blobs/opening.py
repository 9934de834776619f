"""Open the blobs of a store: in the folder beside a SQLite file, or at an address."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn
from urllib.parse import unquote, urlsplit

from holdfast.blobs.blobs import Blobs, Digest
from holdfast.blobs.folder import BlobFolder
from holdfast.blobs.remote import RemoteBlobs
from holdfast.errors import StoreBroken, UsageError
from holdfast.model.redact import remember_password_of
from holdfast.store.kind import kind_of_address
from holdfast.store.sqlite_files import file_of
from holdfast.store.sqlite_permissions import check_owner, check_planted, file_mode

#: The environment variable with the address of blobs.
BLOBS_VARIABLE = "HOLDFAST_BLOBS"

_NO_PLACE = (
    "a store on PostgreSQL has no folder for blobs: say where to keep them, with Pipeline(blobs=…), `blobs:` in the job file "
    f"or {BLOBS_VARIABLE}: a folder or an address like s3://bucket/folder that all workers reach"
)


def open_blobs(address: str | None, url: str, identity: int) -> Blobs:
    """The blobs of the store at `url`. Several stores may share an address: each has a folder of its own there, named after
    its identity. Nothing is made or opened before it is needed."""
    below = f"{identity:016x}"
    if address is None:
        return _beside(file_of(url), below) if kind_of_address(url) == "sqlite" else NoBlobs()
    if (folder := _local(address)) is not None:
        check_planted(folder)
        return BlobFolder(Path(os.path.realpath(folder)) / below, file_mode())
    remember_password_of(address)
    if importlib.util.find_spec("fsspec") is None:
        raise UsageError("blobs at an address that is not a local folder need fsspec: install the extra `blobs`")
    return RemoteBlobs(address, below)


def check_address(address: str, where: str = "blobs") -> None:
    """Refuse what cannot be the address of blobs."""
    if not isinstance(address, str) or not address.strip() or "\0" in address:
        raise UsageError(f"{where}: give a folder, or an address like s3://bucket/folder")


def _beside(database: Path, below: str) -> BlobFolder:
    """The folder beside a SQLite file. The database decides who may use it."""
    folder = Path(f"{database}.blobs")
    check_planted(folder)
    found = os.stat(database)
    if folder.exists():
        check_owner(folder, os.lstat(folder), database, found)
        if not folder.is_dir():
            raise StoreBroken(f"{folder} is not a folder: find out who made it, and remove it")
    return BlobFolder(Path(os.path.realpath(folder)) / below, found.st_mode & 0o666, found)


def _local(address: str) -> Path | None:
    """The folder that an address names without the help of fsspec."""
    check_address(address)
    if "://" not in address and "::" not in address:
        return Path(address)
    parts = urlsplit(address)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None


class NoBlobs(Blobs):
    """There is no place for blobs."""

    most_looks = 0

    def __init__(self) -> None:
        super().__init__("nowhere")

    def renew(self, sha256: str, size: int | None = None) -> bool:
        return size is None  # nothing is known of it

    def write(self, file: BinaryIO, known: Digest | None = None) -> Digest:
        raise UsageError(_NO_PLACE)

    def open(self, sha256: str, size: int) -> BinaryIO:
        raise UsageError(_NO_PLACE)

    def path(self, sha256: str) -> NoReturn:
        raise UsageError(_NO_PLACE)

    @property
    def is_used(self) -> bool:
        return False

    def is_there(self, sha256: str) -> bool:
        return True

    def older_than(self, before: float) -> Iterator[str]:
        return iter(())

    def remove(self, sha256: str, before: float, *, dry_run: bool = False) -> bool:
        return False

    def remove_leftovers(self, before: float) -> None:
        pass
