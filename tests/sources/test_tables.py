"""Lists, CSV, JSON lines and plain text: rows with a key. A bad row is skipped and counted, the others are not lost."""

from __future__ import annotations

import io
import os
import time

import pytest

from holdfast.errors import UsageError, ValueRefused
from holdfast.model.found_items import check
from holdfast.sources import SourceFailed
from holdfast.sources.read_lines import lines
from tests.support.slowness import slowness

pytestmark = pytest.mark.req("J20")


# list -----------------------------------------------------------------------------------------------------------------


def test_a_list_has_keys_and_objects_with_a_key(look):
    assert look({"list": ["a", {"key": "b", "n": 1}]}).items == {"a": {}, "b": {"n": 1}}
    assert look({"list": []}).items == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("a", "not a list"),
        ({"a": 1}, "not a list"),
        ([1], "item 1 is a int"),
        (["a", "a"], "'a' comes twice"),
        ([{"n": 1}], "item 1 has no 'key'"),
        ([""], "key is empty"),
        ([{"key": "a", "t": {1, 2}}], "a value of type set"),
    ],
)
def test_a_list_that_is_wrong_is_refused_when_it_is_read(look, given, said):
    with pytest.raises(UsageError, match=f"^test: source 's': list: .*{said}"):
        look.open({"list": given})


# csv ------------------------------------------------------------------------------------------------------------------


def test_csv_rows_become_items_by_the_key_column(look, tmp_path):
    (tmp_path / "books.csv").write_text('isbn,title\n1,"Emma, a novel"\n2,"two\nlines"\n\n', encoding="utf-8-sig")
    assert look({"csv": "books.csv", "key": "isbn"}).items == {
        "1": {"isbn": "1", "title": "Emma, a novel"},
        "2": {"isbn": "2", "title": "two\nlines"},
    }


def test_a_column_named_key_is_the_key_where_none_is_named(look, tmp_path):
    (tmp_path / "a.csv").write_text("key;n\na;1\n")
    assert look({"csv": "a.csv", "delimiter": ";"}).items == {"a": {"n": "1"}}


def test_bad_csv_rows_are_skipped_and_counted(look, tmp_path):
    rows = [b"id,t", b"1,good", b"2", b"3,a,b", b"4,\xff\xfe", b"5," + b"x" * 200_000, b"6,good"]
    (tmp_path / "a.csv").write_bytes(b"\r\n".join(rows))
    looked = look({"csv": "a.csv", "key": "id"})
    assert list(looked.items) == ["1", "4", "6"]
    assert looked.bad == 3
    assert looked.source.bad_example == "line 3: 1 fields under 2 columns"


@pytest.mark.parametrize(
    ("encoding", "bad"),
    [
        ("utf-8", b"\xff"),
        ("utf-16-le", b"\x00\xd8"),
        ("utf-16-be", b"\xd8\x00"),
        ("utf-32-le", b"\xff\xff\xff\xff"),
        ("shift_jis", b"\xff"),
        ("iso2022_jp", b"\x1b$B\xff\x1b(B"),
        ("iso2022_kr", b"\x1b$B"),
        ("hz", b"~{\xff~}"),
        ("utf-7", b"+AAA-"),
        ("gb18030", b"\xff"),
        ("cp1252", b"\x81"),
    ],
)
def test_bytes_that_are_not_of_the_encoding_cost_their_row_and_no_other(look, tmp_path, encoding, bad):
    rows = ["id,t\n", "1,good\n", "2,", "\n", "3,good\n"]
    head, good, begun, end, last = (row.encode(encoding) for row in rows)
    (tmp_path / "a.csv").write_bytes(head + good + begun + bad + end + last)
    one, two, three = look({"csv": "a.csv", "key": "id", "encoding": encoding}).all
    assert (check(one).key, check(three).key) == ("1", "3")
    with pytest.raises(ValueRefused):
        check(two)


@pytest.mark.parametrize("encoding", ["idna", "punycode", "undefined"])
def test_an_encoding_that_no_file_has_is_refused_by_name(look, encoding):
    with pytest.raises(UsageError, match=f"encoding: '{encoding}' is not an encoding of files; write it like 'utf-8'"):
        look.open({"csv": "a.csv", "encoding": encoding})


@pytest.mark.parametrize(
    ("encoding", "name"), [("latin-1", "latin-1"), ("utf-16", "utf-16"), ("utf-8", None), ("cp1252", "cp1252")]
)
def test_csv_is_read_in_its_encoding(look, tmp_path, encoding, name):
    (tmp_path / "a.csv").write_text("id,t\n1,é\n", encoding=encoding)
    assert look({"csv": "a.csv", "key": "id", "encoding": name}).items == {"1": {"id": "1", "t": "é"}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a,b\n1,2\n", "no column 'id'; its first line says: a, b"),
        (b"id,a,a\n1,2,3\n", "two columns of the same name"),
        ("id,t\n1,x\n".encode("utf-16"), "no column 'id'"),
        (os.urandom(5000).replace(b"id", b"xx"), "no column 'id'"),
    ],
)
def test_a_csv_file_without_its_key_column_is_one_clear_line(look, tmp_path, content, said):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(SourceFailed, match=said) as raised:
        look({"csv": "a.csv", "key": "id"})
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 1000
    str(raised.value).encode()


def test_a_line_without_an_end_is_passed_over_in_pieces():
    passed_over = []
    file = io.BytesIO(b"a\n" + b"x" * 5500 + b"\n" + b"y" * 999 + b"\n" + b"z" * 1000)
    assert list(lines(file, b"\n", passed_over.append, most=1000)) == [(1, b"a\n"), (3, b"y" * 999 + b"\n")]
    assert passed_over == [2, 4]


# jsonl ----------------------------------------------------------------------------------------------------------------


def test_json_lines_are_objects_with_a_key_or_keys_alone(look, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"key": "a", "n": 1}\r\n"b"\n\n{"key": 3}')
    assert look({"jsonl": "a.jsonl"}).items == {"a": {"n": 1}, "b": {}, "3": {}}


def test_the_key_of_a_json_line_may_lie_deeper(look, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"meta": {"ids": ["x", "y"]}}\n')
    assert look({"jsonl": "a.jsonl", "key": "meta.ids.1"}).items == {"y": {"meta": {"ids": ["x", "y"]}}}


def test_bad_json_lines_are_skipped_and_counted(look, tmp_path):
    rows = [
        b'{"key": "a"}',
        b"{",
        b"null",
        b"[1]",
        b'{"id": 1}',
        b'{"key": null}',
        b'{"key": true}',
        b'{"key": 1.5}',
        b'"\xff"',
        b"[" * 100_000,
        b'{"key": "z"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(rows))
    looked = look({"jsonl": "a.jsonl"})
    assert (list(looked.items), looked.bad) == (["a", "z"], 9)
    assert looked.source.bad_example.startswith("line 2: Input data was truncated")


def test_a_mark_of_the_authors_choice_decides_what_has_changed(look, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"key": "a", "seen": 1, "rev": 7}\n{"key": "b", "seen": 1}\n')
    first = look({"jsonl": "a.jsonl", "mark": "rev"}).marks
    file.write_text('{"key": "a", "seen": 2, "rev": 7}\n{"key": "b", "seen": 2}\n')
    second = look({"jsonl": "a.jsonl", "mark": "rev"}).marks
    assert (second["a"] == first["a"], second["b"] == first["b"]) == (True, False)


# lines ----------------------------------------------------------------------------------------------------------------


def test_lines_of_text_are_keys_and_empty_ones_and_comments_are_none(look, tmp_path):
    text = b"\xef\xbb\xbf# mine\r\nhttps://example.org/a\r\n\n  # not yet\n  b c \n\xff\nd # e"
    (tmp_path / "a.txt").write_bytes(text)
    looked = look({"lines": "a.txt"})
    assert looked.items == {"https://example.org/a": {}, "b c": {}, "d # e": {}}
    assert looked.bad == 1 and looked.source.bad_example.startswith("line 6: 'utf-8' codec")


# Files that are read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "text"), [("csv", "key\na\n"), ("jsonl", '"a"\n'), ("lines", "a\n")])
def test_a_file_that_has_not_changed_is_not_read(look, tmp_path, kind, text):
    (tmp_path / "a").write_text(text)
    os.utime(tmp_path / "a", ns=(0, 1))
    assert look({kind: "a"}).items == {"a": {}}
    again = look({kind: "a"})
    assert (again.items, again.kept) == ({}, [""])
    os.utime(tmp_path / "a", ns=(0, 2))
    assert look({kind: "a"}).items == {"a": {}}


@pytest.mark.parametrize(("kind", "text"), [("csv", "key\na\n"), ("jsonl", '"a"\n'), ("lines", "a\n")])
def test_a_file_that_changed_a_moment_ago_is_read_again_for_it_may_change_unnoticed(look, tmp_path, kind, text):
    (tmp_path / "a").write_text(text)
    look({kind: "a"})
    assert look({kind: "a"}).items == {"a": {}}


@pytest.mark.fault(59)
@pytest.mark.parametrize(("kind", "text"), [("csv", "key\na\n"), ("jsonl", '"a"\n'), ("lines", "a\n")])
def test_a_file_that_changes_while_it_is_read_is_read_again(look, tmp_path, kind, text):
    (tmp_path / "a").write_text(text)
    os.utime(tmp_path / "a", ns=(0, 1))
    stream = look.open({kind: "a"}).look(look.memory)
    next(stream)
    with (tmp_path / "a").open("a") as file:
        file.write('"b"\n')
    list(stream)
    assert look({kind: "a"}).kept == []


@pytest.mark.fault(80)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "lines"])
def test_only_regular_files_are_read_and_nothing_waits_for_a_writer(look, tmp_path, kind):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    began = time.monotonic()
    for name in ("fifo", "device", "."):
        with pytest.raises(SourceFailed, match="not a regular file"):
            look({kind: name})
    with pytest.raises(SourceFailed, match="gone cannot be read: No such file"):
        look({kind: "gone"})
    assert time.monotonic() - began < 30 * slowness()
