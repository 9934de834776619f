"""Hostile and malformed YAML: one line with its place, nothing imported, nothing that takes long."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.jobfile import JobFileError, load
from holdfast.jobfile.problems import Problems
from holdfast.jobfile.reading import read
from tests.jobfile.conftest import Folder

GOOD = "pipelines:\n  books:\n    stages:\n      extract: {handler: shelf.extract}\n"

#: A file with what is said of it. Each but the last few would be in order without its one fault.
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "a python tag that calls": (
        GOOD + "store: !!python/object/apply:os.system ['touch imported']\n",
        "5:8: store: the tag '!!python/object/apply:os.system' is not taken here, expected a plain value without a tag",
    ),
    "a python tag that names": (
        GOOD + "store: !!python/name:os.system\n",
        "5:8: store: the tag '!!python/name:os.system' is not taken here",
    ),
    "a python tag in disguise": (
        "%TAG ! tag:yaml.org,2002:python/\n---\n" + GOOD + "store: !name:os.system x\n",
        "7:8: store: the tag '!!python/name:os.system' is not taken here",
    ),
    "a python tag as a key": (
        GOOD + "!!python/name:os.system x: 1\n",
        "5:1: the tag '!!python/name:os.system' is not taken here",
    ),
    "an unknown tag": (GOOD + "store: !secret x\n", "5:8: store: the tag '!secret' is not taken here"),
    "a tag on a mapping": (GOOD + "alerts: !!omap {}\n", "5:9: alerts: the tag '!!omap' is not taken here"),
    "a number that is none": (GOOD + "store: !!int x\n", "5:8: store: the tag '!!int' is not taken here"),
    "a key twice": (
        GOOD + "      extract: {handler: shelf.chunk}\n",
        "5:7: pipelines.books.stages.extract: the key 'extract' is there twice, first in line 4; expected each key once",
    ),
    "a key twice in braces": (
        GOOD.replace("}", ", handler: x}"),
        "4:41: pipelines.books.stages.extract.handler: the key 'handler' is there twice, first in line 4",
    ),
    "a tab": (GOOD + "store:\n\tsqlite:///x.db\n", "6:1: a tab, expected spaces"),
    "a tab after a key": (GOOD + "store:\tsqlite:///x.db\n", "5:7: a tab, expected spaces"),
    "several documents": (GOOD + "---\n" + GOOD, "5:1: another document begins here, expected one"),
    "not UTF-8": (GOOD.encode() + b"store: \xff\n", "5:8: this is not UTF-8, expected a text file in UTF-8"),
    "UTF-16": (GOOD.encode("utf-16"), "1:1: this is not UTF-8"),
    "a zero": (GOOD + "store: a\0b\n", "5:9: the character '\\x00' does not belong into a text file"),
    "an escape sequence": (GOOD + "# \x1b[2J\n", "5:3: the character '\\x1b' does not belong into a text file"),
    "an escaped zero": (GOOD + 'store: "a\\0b"\n', "5:8: store: a text with a character that cannot be stored"),
    "half a character": (GOOD + 'store: "\\ud800"\n', "5:8: store: a text with a character that cannot be stored"),
    "no character at all": (
        GOOD + 'store: "\\UFFFFFFFF"\n',
        "5:11: this is not YAML: an escape or a number is out of range",
    ),
    "a version of a thousand digits": ("%YAML " + "1" * 5000 + ".1\n---\n" + GOOD, "1:7: this is not YAML: an escape"),
    "an alias of nothing": (GOOD + "store: *x\n", "5:8: this is not YAML: found undefined alias 'x'"),
    "an alias of itself": ("pipelines: &a\n  books: *a\n", "1:12: pipelines.books: it contains itself"),
    "a bracket too few": (GOOD + "store: [\n", "6:1: this is not YAML: expected the node content"),
    "a key that is no text": (GOOD + "1: x\n", '5:1: the key 1 is no text; write it as "1"'),
    "a key that is a list": (GOOD + "[a]: x\n", "5:1: a list or a mapping is no key, expected a text"),
    "a number that is too large": (GOOD + f"store: {'9' * 5000}\n", "5:8: store: a number that is too large"),
    "a number that is no number any more": (GOOD + "store: 1e999\n", "5:8: store: a number that is too large"),
    "a variable among braces": (
        GOOD.replace("shelf.extract", "${HANDLER}"),
        '4:27: a variable among braces, expected it in quotes, as in "${NAME}"',
    ),
    "nothing": ("", "1:1: the file is empty, expected a mapping with 'pipelines'"),
    "only a comment": ("# soon\n", "1:1: the file is empty"),
    "a list": ("- a\n", "1:1: a list is given, expected a mapping with 'store', 'resources', 'pipelines', 'alerts'"),
    "a text": ("hello", "1:1: 'hello' is given, expected a mapping"),
    "all brackets": ("[" * 1_000_000, "1:32: too many levels, expected at most 30"),
    "all dashes": ("- " * 400_000, "1:63: too many levels, expected at most 30"),
    "too many keys": (
        "".join(f"k{n}: 1\n" for n in range(50_000)),
        "10000:8: too many values, expected at most 20,000",
    ),
    "too large by one": (
        GOOD + "#" * (1_000_001 - len(GOOD)),
        "1:1: the file is too large, expected at most 1,000,000 bytes",
    ),
}


@pytest.mark.fault(61)
@pytest.mark.req("J15")
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_with_its_place_and_nothing_of_it_runs(what: str, folder: Folder) -> None:
    text, said = HOSTILE[what]
    lines = folder.wrong(text)
    assert any(line.startswith(said) for line in lines), lines
    assert folder.imports == 0


@pytest.mark.fault(61)
@pytest.mark.parametrize(
    "text",
    [
        # Each level stands for nine of the one before.
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
        # Few aliases, many values.
        "a0: &a0 x\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40)),
        # By merging.
        "a: &a {"
        + ",".join(f"k{n}: 1" for n in range(5000))
        + "}\n"
        + "".join(f"b{n}: {{<<: *a}}\n" for n in range(90)),
    ],
    ids=["nine of nine", "two of two", "merged"],
)
def test_an_alias_bomb_does_not_go_off(text: str, folder: Folder) -> None:
    begin = time.process_time()
    [said] = folder.wrong(text)
    assert "aliases stand for too many values, expected at most 20,000" in said
    assert time.process_time() - begin < 20, "a bomb of this size takes hours, or all memory"


@pytest.mark.fault(61)
def test_more_aliases_than_a_job_file_needs_are_refused(folder: Folder) -> None:
    [said] = folder.wrong("a: &a x\nb: [" + "*a, " * 101 + "]\n")
    assert said == "2:405: too many aliases, expected at most 100"


@pytest.mark.fault(61)
def test_of_a_file_of_50_megabytes_only_the_beginning_is_read(folder: Folder) -> None:
    folder.write(GOOD)
    os.truncate(folder.file, 50_000_000)
    with pytest.raises(JobFileError, match=r":1:1: the file is too large, expected at most 1,000,000 bytes$"):
        load(folder.file)


@pytest.mark.fault(61)
@pytest.mark.parametrize(
    "text", [GOOD.encode("utf-8-sig"), GOOD.replace("\n", "\r\n").encode(), b"---\n" + GOOD.encode()]
)
def test_what_editors_leave_in_a_file_does_no_harm(text: bytes, folder: Folder) -> None:
    """A byte order mark, Windows line ends, a document start."""
    assert [spec.name for spec in folder.load(text).pipelines] == ["books"]


def test_a_byte_order_mark_does_not_count_as_a_column(folder: Folder) -> None:
    assert folder.wrong(b"\xef\xbb\xbfstor: 1\n" + GOOD.encode())[0].startswith("1:1: stor: ")


def test_everything_that_can_be_told_is_told_at_once(folder: Folder) -> None:
    lines = folder.wrong("stor: !x y\nstor: 1\npipelines: {}\n3: 4\n")
    assert [line.split(": ")[0] for line in lines] == ["1:1", "1:7", "2:1", "3:1", "4:1"]


def test_of_a_thousand_faults_the_first_fifty_are_told(folder: Folder) -> None:
    lines = folder.wrong(GOOD + "".join(f"k{n}: 1\n" for n in range(1000)))
    assert (len(lines), lines[0].startswith("5:1: k0"), lines[-1]) == (51, True, " and 950 more")


def test_a_message_is_one_line_of_reasonable_length_whatever_the_file_holds(folder: Folder) -> None:
    long = "x" * 100_000
    for line in folder.wrong(
        f'{GOOD}"{long}": 1\n"two\\nlines": 1\nstore: {long}\nresources: {{a: {{rate: "{long}"}}}}\n'
    ):
        assert len(line) < 700


def tree(text: str) -> object:
    problems = Problems("x.yaml")
    found = read(text.encode(), problems).plain()
    problems.raise_any()
    return found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("22:00", "22:00"),
        ("2024-01-31", "2024-01-31"),
        ("010", "010"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        (".inf", ".inf"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("12", 12),
        ("-3", -3),
        ("+4", 4),
        ("1.50", 1.5),
        (".5", 0.5),
        ("2.", 2.0),
        ("1e3", 1000.0),
        ('"12"', "12"),
        ("'true'", "true"),
        ("!!str 12", "12"),
        ("!!float 3", 3.0),
        ("60/min", "60/min"),
    ],
)
def test_words_mean_what_they_mean_in_yaml_12(text: str, value: object) -> None:
    found = tree(f"a: {text}")
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


def test_an_alias_stands_for_what_was_named_and_a_merge_stands_back(folder: Folder) -> None:
    text = "a: &usual {x: 1, y: {z: 2}}\nb: {<<: *usual, x: 3}\nc: {x: 4, <<: [{w: 5, x: 6}, *usual]}\nd: *usual\n"
    usual = {"x": 1, "y": {"z": 2}}
    merged = {"x": 4, "w": 5, "y": {"z": 2}}
    assert tree(text) == {"a": usual, "b": {"x": 3, "y": {"z": 2}}, "c": merged, "d": usual}
    assert "<< brings in no mapping" in "".join(folder.wrong("a: {<<: 3}\n"))
    assert "<< is not a value" in "".join(folder.wrong("a: <<\n"))


@pytest.mark.parametrize("make", ["nothing", "folder", "pipe", "secret"])
def test_a_file_that_cannot_be_read_is_wrong_usage(make: str, tmp_path: Path) -> None:
    path = tmp_path / "holdfast.yaml"
    if make == "folder":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)
    elif make == "secret":
        path = tmp_path / "a\0b.yaml"
    with pytest.raises(UsageError, match=r"(cannot be read|is not a file).*name a job file, as in holdfast\.yaml"):
        load(path)
