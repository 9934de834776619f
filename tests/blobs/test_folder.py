"""Content in a local folder: whole or not there, private, and out of reach for hostile references."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.blobs import Blob, open_blobs
from holdfast.blobs.blobs import GRACE_SECONDS, RENEW_SECONDS
from holdfast.blobs.folder import BlobFolder
from holdfast.errors import BlobMissing, HoldfastError, StoreBroken, StoreUnavailable, UsageError
from tests.support.together import listening

pytestmark = pytest.mark.req("P13")

PAGE = b"\x89PNG" + bytes(range(256)) * 5000


@pytest.fixture
def blobs(tmp_path: Path) -> BlobFolder:
    return BlobFolder(tmp_path / "blobs" / "s", 0o600)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def files(blobs: BlobFolder) -> list[str]:
    """Everything in the folder but its lock."""
    return sorted(one.name for one in Path(blobs.where).rglob("*") if one.is_file() and one.name != "lock")


def make_old(blob: Blob, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(blob.path, (at, at))


class OneWay(io.RawIOBase):
    """A stream that can be read once, in small pieces."""

    def __init__(self, content: bytes) -> None:
        self._left = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self._left.read(min(size, 1000) if size > 0 else size)

    def seekable(self) -> bool:
        return False


@pytest.mark.parametrize("content", [b"", b"a", PAGE], ids=["nothing", "a byte", "a megabyte"])
@pytest.mark.parametrize("form", ["bytes", "bytearray", "memoryview", "path", "text path", "file", "stream"])
def test_what_is_kept_comes_back_byte_for_byte_however_it_was_given(
    blobs: BlobFolder, tmp_path: Path, form: str, content: bytes
) -> None:
    file = tmp_path / "page.png"
    file.write_bytes(content)
    given: dict[str, Any] = {
        "bytes": content,
        "bytearray": bytearray(content),
        "memoryview": memoryview(content),
        "path": file,
        "text path": str(file),
        "file": file.open("rb"),
        "stream": OneWay(content),
    }
    kept = blobs.keep(given[form])
    assert (kept.id, kept.size, kept.read()) == (f"sha256:{sha256(content)}", len(content), content)
    assert kept.path.read_bytes() == content
    with kept.open() as opened:
        assert opened.read(1) == content[:1]
        opened.seek(0)
        assert opened.read() == content
    kept.save(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    kept.verify()
    assert files(blobs) == [sha256(content)]


def test_a_file_is_kept_from_where_it_stands(blobs: BlobFolder) -> None:
    file = io.BytesIO(b"head and body")
    file.seek(9)
    assert blobs.keep(file).read() == b"body"


def test_a_file_has_its_name_and_its_type(blobs: BlobFolder, tmp_path: Path) -> None:
    file = tmp_path / "page.png"
    file.write_bytes(b"x")
    assert (blobs.keep(file).name, blobs.keep(file).type) == ("page.png", "image/png")
    with file.open("rb") as opened:
        assert blobs.keep(opened).name == "page.png"
    named = blobs.keep(b"x", name="a.html", type="application/xhtml+xml")
    assert (named.name, named.type) == ("a.html", "application/xhtml+xml")
    assert (blobs.keep(b"x").name, blobs.keep(b"x").type) == (None, None)


@pytest.mark.parametrize("wrong", [7, None, ["x"], {"a": 1}, io.StringIO("text")])
def test_what_has_no_bytes_is_refused(blobs: BlobFolder, wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"^keep"):
        blobs.keep(wrong)
    assert files(blobs) == []


@pytest.mark.parametrize("name", ["a/b", "..", ".", "", "a\\b", "a\0b", "a\nb", "x" * 256, 7])
def test_a_name_that_is_more_than_a_name_is_refused(blobs: BlobFolder, name: Any) -> None:
    with pytest.raises(UsageError, match="name"):
        blobs.keep(b"x", name=name)


# Hostile references ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference",
    [
        {"$blob": "../../etc/passwd", "size": 1},
        {"$blob": "sha256:../../../../etc/passwd", "size": 1},
        {"$blob": "sha256:" + "A" * 64, "size": 1},
        {"$blob": "sha256:" + "0" * 63, "size": 1},
        {"$blob": "sha256:" + "0" * 64 + "/../x", "size": 1},
        {"$blob": "sha256:" + "0" * 64 + "\n", "size": 1},
        {"$blob": "sha256:" + "0" * 64, "size": -1},
        {"$blob": "sha256:" + "0" * 64},
        {"$blob": "sha256:" + "0" * 64, "size": "1"},
        {"$blob": "sha256:" + "0" * 64, "size": 1, "name": "../x"},
        {"$blob": ["sha256:" + "0" * 64], "size": 1},
        {"$blob": None, "size": 1},
        {"blob": 1},
        "sha256:" + "0" * 64,
        None,
    ],
)
def test_a_reference_that_is_none_is_refused(blobs: BlobFolder, reference: Any) -> None:
    with pytest.raises(UsageError):
        blobs.blob(reference)


@pytest.mark.parametrize("hash", ["../../../etc/passwd", "..", "/etc/passwd", "A" * 64, "0" * 65])
def test_a_reference_made_by_hand_opens_nothing_outside(blobs: BlobFolder, hash: str) -> None:
    blobs.keep(b"x")
    made = Blob(f"sha256:{hash}", 1).bound(blobs)
    for act in (made.open, made.read, lambda: made.path):
        with pytest.raises(UsageError):
            act()
    for act in (lambda: blobs.open(hash, 1), lambda: blobs.path(hash), lambda: blobs.remove(hash, 1e12)):
        with pytest.raises(BlobMissing):
            act()


def test_no_link_is_followed(blobs: BlobFolder, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s")
    kept = blobs.keep(b"x")
    path = kept.path
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(BlobMissing):
        kept.read()
    again = BlobFolder(Path(blobs.where), 0o600)
    assert again.hold([kept.sha256]) == [kept.sha256]
    # Keeping it again puts the content in place of the link, not into what the link names.
    assert again.keep(b"x").read() == b"x"
    assert secret.read_bytes() == b"s"
    other = again.keep(b"y")
    folder = other.path.parent
    for file in folder.iterdir():
        file.rename(tmp_path / file.name)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises((BlobMissing, OSError)):
        other.read()


def test_a_fifo_in_place_of_content_holds_nobody_up(blobs: BlobFolder) -> None:
    kept = blobs.keep(b"x")
    path = kept.path
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BlobMissing):
        kept.read()


# Whole or not there ---------------------------------------------------------------------------------------------------


def test_content_that_breaks_off_leaves_nothing(blobs: BlobFolder) -> None:
    class Broken(OneWay):
        def read(self, size: int = -1) -> bytes:
            if self._left.tell() > 5000:
                raise ConnectionError("lost")
            return super().read(size)

    with pytest.raises(ConnectionError):
        blobs.keep(Broken(PAGE))
    assert files(blobs) == []


def test_content_is_durable_before_it_has_its_name_and_the_name_before_it_is_referred_to(
    blobs: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync = os.fsync

    def fsync(number: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "content"
        steps.append(f"{kind} {os.fstat(number).st_size}" if kind == "content" else kind)
        sync(number)

    blobs.keep(b"other")
    monkeypatch.setattr(os, "fsync", fsync)
    with listening(steps.append):
        blobs.keep(PAGE)
        blobs.keep(PAGE)
    new_folder = ["folder"]
    assert steps == [
        "keep.before",
        "keep.writing",
        "keep.writing",
        f"content {len(PAGE)}",
        "keep.written",
        *new_folder,
        "keep.named",
        "folder",
        "keep.after",
        "keep.before",
        "folder",
        "keep.after",
    ]


def test_content_that_is_there_is_not_written_again_and_gets_younger(blobs: BlobFolder) -> None:
    kept = blobs.keep(PAGE)
    number = kept.path.stat().st_ino
    make_old(kept, RENEW_SECONDS + 60)
    assert blobs.keep(PAGE) == kept
    assert kept.path.stat().st_ino == number
    assert time.time() - kept.path.stat().st_mtime < RENEW_SECONDS


def test_content_of_the_wrong_size_is_missing_and_is_written_again(blobs: BlobFolder) -> None:
    kept = blobs.keep(PAGE)
    kept.path.write_bytes(PAGE[:-1])
    with pytest.raises(BlobMissing, match="does not have the"):
        kept.read()
    assert blobs.keep(PAGE).read() == PAGE


def test_content_that_was_changed_is_found_out_when_it_is_verified_or_saved(blobs: BlobFolder, tmp_path: Path) -> None:
    kept = blobs.keep(PAGE)
    kept.path.write_bytes(PAGE[:-1] + b"?")
    with pytest.raises(BlobMissing, match="damaged"):
        kept.verify()
    with pytest.raises(BlobMissing, match="damaged"):
        kept.save(tmp_path / "copy")
    assert list(tmp_path.iterdir()) == [tmp_path / "blobs"]


def test_many_writers_of_the_same_content_are_harmless(blobs: BlobFolder) -> None:
    kept: list[Blob] = []
    threads = [threading.Thread(target=lambda: kept.extend(blobs.keep(PAGE) for _ in range(5))) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert {one.id for one in kept} == {f"sha256:{sha256(PAGE)}"} and len(kept) == 40
    assert kept[0].read() == PAGE
    assert files(blobs) == [sha256(PAGE)]


def test_a_full_disk_is_the_stores_trouble_and_leaves_nothing(
    blobs: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.keep(b"x")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        blobs.keep(PAGE)
    assert files(blobs) == [sha256(b"x")]


# Collecting -----------------------------------------------------------------------------------------------------------


def test_only_what_is_old_is_removed_and_leftovers_of_dead_writers_with_it(blobs: BlobFolder) -> None:
    old, young = blobs.keep(b"old"), blobs.keep(b"young")
    make_old(old, 100)
    before = time.time() - 50
    root = Path(blobs.where)
    for name in ("left.part", "new.part"):
        (root / name).write_bytes(b"half")
    os.utime(root / "left.part", (before - 1, before - 1))
    assert list(blobs.older_than(before)) == [old.sha256]
    assert [blobs.remove(one.sha256, before, dry_run=True) for one in (old, young)] == [True, False]
    assert [blobs.remove(one.sha256, before) for one in (old, young, old)] == [True, False, False]
    blobs.remove_leftovers(before)
    assert files(blobs) == sorted([young.sha256, "new.part"])


def test_content_that_is_kept_while_it_is_collected_is_there_afterwards(
    blobs: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can keep old content between the look at its age and its removal."""
    kept = blobs.keep(PAGE)
    make_old(kept, 2 * GRACE_SECONDS)
    other = BlobFolder(Path(blobs.where), 0o600)
    keeper = threading.Thread(target=lambda: other.keep(PAGE))
    unlink = os.unlink

    def late_unlink(name: str, *, dir_fd: int) -> None:
        keeper.start()
        with (Path(blobs.where) / "lock").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                keeper.join()  # nothing keeps it out: it believes that the content is there
            except BlockingIOError:
                pass
        unlink(name, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", late_unlink)
        assert blobs.remove(kept.sha256, time.time() - GRACE_SECONDS)
    keeper.join()
    assert kept.read() == PAGE


def test_content_that_was_kept_again_before_its_turn_stays(blobs: BlobFolder) -> None:
    kept = blobs.keep(PAGE)
    make_old(kept, 2 * GRACE_SECONDS)
    before = time.time() - GRACE_SECONDS
    [found] = blobs.older_than(before)
    BlobFolder(Path(blobs.where), 0o600).keep(PAGE)
    assert not blobs.remove(found, before)
    assert kept.read() == PAGE


# Who may read ---------------------------------------------------------------------------------------------------------


def modes(folder: Path) -> set[str]:
    return {f"{'d' if one.is_dir() else 'f'}{stat.S_IMODE(one.stat().st_mode):o}" for one in folder.rglob("*")}


@pytest.mark.req("P10")
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("0600", {"d700", "f600"}),
        ("0640", {"d750", "f640", "f600"}),
        ("0660", {"d770", "f660"}),
        ("0644", {"d755", "f644", "f600"}),
    ],
)
def test_who_may_read_the_database_may_read_what_is_kept_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, expected: set[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_FILE_MODE", mode)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with Holdfast(url) as app:
        app.upgrade()
        old = os.umask(0o077)
        try:
            # The database decides, not the environment of who comes later.
            monkeypatch.delenv("HOLDFAST_FILE_MODE")
            blobs = open_blobs(None, url, 1)
            blobs.keep(b"x")
            blobs.keep(b"x")
        finally:
            os.umask(old)
    assert modes(tmp_path / "store.db.blobs") == expected


@pytest.mark.req("P10")
def test_a_folder_of_ones_own_is_private_too(tmp_path: Path) -> None:
    open_blobs(str(tmp_path / "mine"), "postgresql://x/y", 1).keep(b"x")
    assert modes(tmp_path / "mine") == {"d700", "f600"}
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700


@pytest.mark.req("P10")
def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with Holdfast(url) as app:
        app.upgrade()
    (tmp_path / "store.db.blobs").write_text("planted")
    with pytest.raises(StoreBroken, match="is not a folder"):
        open_blobs(None, url, 1)


def test_two_stores_at_one_address_do_not_see_each_other(tmp_path: Path) -> None:
    """A collection of one must not take what only the other refers to."""
    one, other = (open_blobs(str(tmp_path), "postgresql://x/y", number) for number in (1, 2))
    kept = one.keep(b"x")
    assert list(other.older_than(time.time() + 1)) == []
    with pytest.raises(BlobMissing):
        other.blob(kept).read()


def test_without_a_place_the_error_says_where_to_name_one() -> None:
    nowhere = open_blobs(None, "postgresql://x/y", 1)
    with pytest.raises(HoldfastError, match=r"Pipeline\(blobs=…\).*HOLDFAST_BLOBS"):
        nowhere.keep(b"x")
    assert nowhere.hold(["0" * 64]) == []
