"""Content behind fsspec, proved with its memory and local file systems. A real object store is not part of these tests."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from holdfast.blobs import Blob, open_blobs
from holdfast.blobs.blobs import GRACE_SECONDS, RENEW_SECONDS
from holdfast.blobs.folder import BlobFolder
from holdfast.blobs.remote import RemoteBlobs
from holdfast.errors import BlobMissing, UsageError
from tests.support.forking import in_a_child

pytestmark = pytest.mark.req("P13")

PAGE = bytes(range(256)) * 5000


@pytest.fixture(params=["memory", "file"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteBlobs]:
    address = f"memory://{tmp_path.name}" if request.param == "memory" else f"file://{tmp_path}/remote"
    yield RemoteBlobs(address, "s")
    fsspec.filesystem("memory").store.clear()


def make_old(blobs: RemoteBlobs, blob: Blob, seconds: float) -> None:
    fs, _ = blobs._fs
    path, at = blobs._target(blob.sha256), time.time() - seconds
    if hasattr(fs, "store"):
        fs.store[path].modified = fs.store[path].created = _moment(at)
    else:
        os.utime(path, (at, at))


def _moment(at: float) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC)


def names(blobs: RemoteBlobs) -> list[str]:
    fs, root = blobs._fs
    return sorted(path.rpartition("/")[2] for path in fs.find(root))


@pytest.mark.parametrize("content", [b"", PAGE], ids=["nothing", "a megabyte"])
def test_what_is_kept_comes_back_byte_for_byte(blobs: RemoteBlobs, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "page.png"
    file.write_bytes(content)
    kept = blobs.keep(file)
    assert (kept.name, kept.size, kept.read()) == ("page.png", len(content), content)
    kept.verify()
    kept.save(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    assert blobs.blob({"$blob": kept.id, "size": kept.size}).read() == content
    assert names(blobs) == [kept.sha256]
    with pytest.raises(UsageError, match="not in a local folder"):
        kept.path


def test_content_that_is_there_is_not_uploaded_again(blobs: RemoteBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = blobs.keep(PAGE)
    monkeypatch.setattr(blobs, "write", lambda *given: pytest.fail("uploaded again"))
    assert blobs.keep(PAGE) == kept


def test_old_content_that_is_kept_or_held_again_gets_younger(blobs: RemoteBlobs) -> None:
    kept = blobs.keep(PAGE)
    for renew in (lambda: blobs.keep(PAGE), lambda: RemoteBlobs(blobs._address, "s").hold([kept.sha256])):
        make_old(blobs, kept, RENEW_SECONDS + 60)
        renew()
        assert list(blobs.older_than(time.time() - RENEW_SECONDS)) == []
        assert kept.read() == PAGE


def test_content_that_was_cut_off_is_missing_and_is_uploaded_again(blobs: RemoteBlobs) -> None:
    kept = blobs.keep(PAGE)
    blobs._fs[0].pipe_file(blobs._target(kept.sha256), PAGE[:-1])
    with pytest.raises(BlobMissing, match="does not have the"):
        kept.read()
    assert blobs.keep(PAGE).read() == PAGE


def test_content_that_is_gone_is_missing(blobs: RemoteBlobs) -> None:
    kept = blobs.keep(PAGE)
    blobs._fs[0].rm_file(blobs._target(kept.sha256))
    with pytest.raises(BlobMissing, match="is not at"):
        kept.open()
    assert RemoteBlobs(blobs._address, "s").hold([kept.sha256]) == [kept.sha256]
    assert not blobs.is_there(kept.sha256)


def test_an_upload_that_breaks_off_leaves_no_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file system shows what is being uploaded, it is uploaded under another name."""
    blobs = RemoteBlobs(f"file://{tmp_path}/remote", "s")
    fs, _ = blobs._fs

    def broken(local: str, remote: str) -> None:
        Path(remote).write_bytes(PAGE[:100])
        raise ConnectionError("lost")

    monkeypatch.setattr(fs, "put_file", broken)
    with pytest.raises(ConnectionError):
        blobs.keep(PAGE)
    assert not list(blobs.older_than(time.time() + 10))
    [left] = names(blobs)
    assert left.endswith(".part")
    blobs.remove_leftovers(time.time() - 10)
    assert names(blobs) == [left]
    blobs.remove_leftovers(time.time() + 10)
    assert names(blobs) == []


def test_only_what_is_old_is_removed(blobs: RemoteBlobs) -> None:
    old, young = blobs.keep(b"old"), blobs.keep(b"young")
    make_old(blobs, old, 2 * GRACE_SECONDS)
    before = time.time() - GRACE_SECONDS
    assert list(blobs.older_than(before)) == [old.sha256]
    assert [blobs.remove(one.sha256, before, dry_run=True) for one in (old, young)] == [True, False]
    assert [blobs.remove(one.sha256, before) for one in (old, young, old)] == [True, False, False]
    assert names(blobs) == [young.sha256]


@pytest.mark.parametrize("hash", ["../../../etc/passwd", "..", "A" * 64])
def test_a_hash_that_is_none_reaches_nothing(blobs: RemoteBlobs, hash: str) -> None:
    for act in (blobs.is_there, blobs.renew, lambda one: blobs.open(one, 1), lambda one: blobs.remove(one, 1e12)):
        with pytest.raises(BlobMissing):
            act(hash)


def test_a_forked_process_opens_the_file_system_anew(tmp_path: Path) -> None:
    blobs = RemoteBlobs(f"file://{tmp_path}/remote", "s")
    blobs.keep(b"x")
    mine = blobs._fs[0]
    assert in_a_child(lambda: blobs._fs[0] is mine) == "False"
    assert in_a_child(lambda: blobs.keep(b"y").size) == "1"
    assert blobs.keep(b"y").read() == b"y"


# Addresses ------------------------------------------------------------------------------------------------------------


def test_the_address_decides_who_keeps(tmp_path: Path) -> None:
    for address in (str(tmp_path), f"file://{tmp_path}", "relative/folder"):
        assert isinstance(open_blobs(address, "postgresql://x/y", 1), BlobFolder), address
    for address in ("memory://x", "s3://bucket/folder", f"simplecache::file://{tmp_path}"):
        assert isinstance(open_blobs(address, "postgresql://x/y", 1), RemoteBlobs), address


def test_a_local_folder_needs_no_fsspec_and_any_other_place_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert open_blobs(str(tmp_path), "postgresql://x/y", 1).keep(b"x").read() == b"x"
    with pytest.raises(UsageError, match="need fsspec: install the extra `blobs`"):
        open_blobs("s3://bucket", "postgresql://x/y", 1)


def test_a_file_system_that_is_not_installed_is_named() -> None:
    with pytest.raises(UsageError, match="nosuch"):
        open_blobs("nosuch://bucket", "postgresql://x/y", 1).keep(b"x")


def test_a_password_in_the_address_is_not_shown() -> None:
    blobs = open_blobs("sftp://me:hunter2-secret@host/folder", "postgresql://x/y", 1)
    assert "hunter2-secret" not in blobs.where
