"""Kept content in tests: a place for it on both databases, and how it gets old."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.blobs import BLOBS_VARIABLE, Blob
from holdfast.blobs.blobs import GRACE_SECONDS


def give_a_place(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which this test's content is: PostgreSQL has none of its own, and is given one."""
    if url.startswith("sqlite:"):
        return folder / "store.db.blobs"
    monkeypatch.setenv(BLOBS_VARIABLE, str(folder / "blobs"))
    return folder / "blobs"


def content_in(place: Path) -> set[bytes]:
    """Everything that is kept, complete or not."""
    return {one.read_bytes() for one in place.rglob("*") if one.is_file() and one.name != "lock"}


def make_old(place: Path, seconds: float = GRACE_SECONDS + 3600) -> None:
    """Let everything that is kept be so old."""
    at = time.time() - seconds
    for one in place.rglob("*"):
        if one.is_file():
            os.utime(one, (at, at))


def opened(app: Holdfast, value: object) -> bytes:
    """The content of a reference, read and compared with its hash."""
    blob: Blob = app.blob(value)
    blob.verify()
    return blob.read()
