"""Files: found by a pattern below a root, and nothing outside of it."""

from __future__ import annotations

import os
import socket
import time

import pytest

from holdfast.errors import UsageError
from holdfast.model.found_items import check
from holdfast.sources import SourceFailed
from tests.support.slowness import slowness

pytestmark = [pytest.mark.req("J20"), pytest.mark.fault(80)]


def put(folder, *names, content="x"):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def keys(look, pattern, **more):
    return sorted(look({"files": pattern, **more}).items)


def test_files_are_found_by_pattern_with_their_path_below_the_root_as_key(look, tmp_path):
    put(
        tmp_path,
        "inbox/a.epub",
        "inbox/deep/er/b.epub",
        "inbox/c.txt",
        "inbox/.hidden.epub",
        "inbox/.git/d.epub",
        "e.epub",
    )
    assert keys(look, "inbox/**/*.epub") == ["a.epub", "deep/er/b.epub"]
    assert keys(look, "inbox/*.epub") == ["a.epub"]
    assert keys(look, "inbox/*/*/*.epub") == ["deep/er/b.epub"]
    assert keys(look, "inbox/**/er/*") == ["deep/er/b.epub"]
    assert keys(look, "inbox/**/**/b.*") == ["deep/er/b.epub"]
    assert keys(look, "inbox/**") == ["a.epub", "c.txt", "deep/er/b.epub"]
    assert keys(look, "*.epub") == ["e.epub"]
    assert keys(look, "**/*.epub") == ["e.epub", "inbox/a.epub", "inbox/deep/er/b.epub"]
    assert keys(look, "inbox/[ac].*") == ["a.epub", "c.txt"]
    assert keys(look, "inbox/a.epub") == ["a.epub"]
    assert keys(look, "inbox/*.epub", root=".") == ["inbox/a.epub"]
    assert keys(look, str(tmp_path / "inbox/*.epub"), root=str(tmp_path)) == ["inbox/a.epub"]
    assert keys(look, "inbox/**/*.epub", hidden=True) == [".git/d.epub", ".hidden.epub", "a.epub", "deep/er/b.epub"]


def test_an_item_has_the_path_the_size_and_the_time_of_the_last_change(look, tmp_path):
    put(tmp_path, "a.txt", content="four")
    os.utime(tmp_path / "a.txt", ns=(0, 1_772_445_600_123_456_000))
    assert look({"files": "*.txt"}).items == {
        "a.txt": {"path": str(tmp_path / "a.txt"), "size": 4, "modified_at": "2026-03-02T10:00:00.123456+00:00"}
    }


def test_a_change_of_time_or_size_changes_the_mark_and_nothing_else_does(look, tmp_path):
    put(tmp_path, "a.txt")
    first = look({"files": "*.txt"}).marks
    assert look({"files": "*.txt"}).marks == first
    os.utime(tmp_path / "a.txt", ns=(0, 1))
    second = look({"files": "*.txt"}).marks
    assert second != first
    put(tmp_path, "a.txt", content="longer")
    os.utime(tmp_path / "a.txt", ns=(0, 1))
    assert look({"files": "*.txt"}).marks != second


def test_with_content_a_file_that_was_only_touched_looks_as_before_and_is_read_only_if_its_time_differs(look, tmp_path):
    put(tmp_path, "a.txt")

    def checked(**more):
        [found] = look({"files": "*.txt", "content": True, **more}).all
        return check(found)

    first = checked().settled(None)
    (tmp_path / "a.txt").chmod(0)
    assert checked()._replace(content=None).is_as(first.stored) is False
    assert checked().settled(first.stored).is_as(first.stored)
    (tmp_path / "a.txt").chmod(0o600)
    os.utime(tmp_path / "a.txt", ns=(0, 1))
    touched = checked().settled(first.stored)
    assert touched.is_as(first.stored)
    assert touched.stored != first.stored
    put(tmp_path, "a.txt", content="y")
    assert not checked().settled(touched.stored).is_as(touched.stored)


def test_nothing_leads_out_of_the_root(look, tmp_path):
    put(tmp_path, "secret.txt", "other/secret.txt", "inbox/in.txt", "inbox/sub/deep.txt")
    inbox = tmp_path / "inbox"
    (inbox / "out.txt").symlink_to(tmp_path / "secret.txt")
    (inbox / "dir").symlink_to(tmp_path / "other")
    (inbox / "up").symlink_to("..")
    (inbox / "passwd.txt").symlink_to("/etc/passwd")
    (inbox / "broken.txt").symlink_to("nowhere")
    (inbox / "within.txt").symlink_to("sub/deep.txt")
    assert keys(look, "inbox/**/*.txt") == ["in.txt", "sub/deep.txt", "within.txt"]
    assert keys(look, "inbox/*/*.txt") == ["sub/deep.txt"]


@pytest.mark.parametrize(
    ("pattern", "root"),
    [
        ("../*.txt", None),
        ("inbox/../../*.txt", None),
        ("other/*.txt", "inbox"),
        ("/etc/*", "inbox"),
        ("inbox", "inbox"),
        ("", None),
        (5, None),
        ("a\0b", None),
        ("*.txt", ["inbox"]),
    ],
)
def test_a_pattern_that_leads_out_of_its_root_is_refused_before_anything_is_looked_at(look, pattern, root):
    with pytest.raises(UsageError, match=r"^test: source 's': .*(files|root)"):
        look.open({"files": pattern, "root": root})


def test_fifos_devices_and_sockets_are_passed_over_without_waiting(look, tmp_path):
    put(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "fifo.txt")
    (tmp_path / "null.txt").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(tmp_path / "socket.txt"))
        began = time.monotonic()
        assert keys(look, "*.txt", content=True) == ["a.txt"]
        assert time.monotonic() - began < 30 * slowness()


def test_links_that_go_round_in_a_circle_end(look, tmp_path):
    put(tmp_path, "inbox/a/x.txt")
    (tmp_path / "inbox/a/again").symlink_to(tmp_path / "inbox")
    (tmp_path / "inbox/self").symlink_to("self")
    assert "a/x.txt" in keys(look, "inbox/**/*.txt")


@pytest.mark.fault(80)
def test_each_folder_is_looked_at_once_however_often_a_pattern_says_any_number_of_folders(look, tmp_path, monkeypatch):
    folder = tmp_path / "/".join(["a"] * 18)
    folder.mkdir(parents=True)
    (folder / "x.txt").write_text("x")
    looked_at = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looked_at.append(path) or scandir(path))
    found = look({"files": "**/a/" * 9 + "**/*.txt", "root": "."})
    assert [one.key for one in found.all] == ["a/" * 18 + "x.txt"]
    assert len(looked_at) == 19


def test_a_root_that_is_not_there_is_a_failure_and_not_an_empty_folder(look, tmp_path):
    with pytest.raises(SourceFailed, match="inbox is not a folder"):
        look({"files": "inbox/*.txt"})


def test_a_folder_that_cannot_be_read_is_counted_and_nothing_in_it_has_vanished(look, tmp_path, monkeypatch):
    put(tmp_path, "open/a.txt", "closed/b.txt")
    real = os.scandir

    def scandir(folder):
        if str(folder).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(folder))
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    looked = look({"files": "*/*.txt"})
    assert (sorted(looked.items), looked.bad, looked.source.missed) == (["open/a.txt"], 1, True)
    assert looked.source.bad_example == f"{tmp_path / 'closed'}: Permission denied"


def test_a_file_that_may_not_be_looked_at_is_counted_and_has_not_vanished(look, tmp_path, monkeypatch):
    put(tmp_path, "a.txt", "b.txt")
    real = os.lstat

    def lstat(path):
        if str(path).endswith("b.txt"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "lstat", lstat)
    looked = look({"files": "*.txt"})
    assert (sorted(looked.items), looked.bad, looked.source.missed) == (["a.txt"], 1, True)


def test_folders_that_lie_too_deep_are_counted_and_nothing_in_them_has_vanished(look, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.sources.files.MAX_DEPTH", 3)
    put(tmp_path, "a/b/x.txt", "a/b/c/d/x.txt")
    looked = look({"files": "**/x.txt"})
    assert (sorted(looked.items), looked.bad, looked.source.missed) == (["a/b/x.txt"], 1, True)


def test_a_folder_that_goes_while_it_is_looked_at_is_counted_and_nothing_in_it_has_vanished(look, tmp_path):
    put(tmp_path, "a/x.txt", "b/x.txt")
    source = look.open({"files": "*/x.txt"})
    stream = source.look({})
    assert next(stream).key == "a/x.txt"
    (tmp_path / "b/x.txt").unlink()
    (tmp_path / "b").rmdir()
    (tmp_path / "b").write_text("a file now")
    assert list(stream) == []


def test_a_file_that_was_just_written_may_settle_first(look, tmp_path):
    put(tmp_path, "old.txt", "new.txt")
    os.utime(tmp_path / "old.txt", (0, 0))
    looked = look({"files": "*.txt", "settle": "1h"})
    assert sorted(looked.items) == ["old.txt"]
    assert looked.source.missed


def test_a_name_that_is_not_utf8_is_found_and_refused_as_a_key_by_itself(look, tmp_path):
    put(tmp_path, "good.txt")
    try:
        (tmp_path / os.fsdecode(b"bad\xff.txt")).write_text("x")
    except OSError:
        pytest.skip("this file system keeps only names in UTF-8")
    found = look({"files": "*.txt"}).all
    refused = []
    for one in found:
        try:
            check(one)
        except UsageError:
            refused.append(one)
    assert (len(found), len(refused)) == (2, 1)


def test_a_large_folder_is_looked_at_piece_by_piece(look, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.sources.files.SORTED", 10)
    put(tmp_path, *(f"{n:03}.txt" for n in range(95)))
    assert len(keys(look, "*.txt")) == 95
