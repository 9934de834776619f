"""Functions and programs as sources: whatever they do, it is one line, and nothing is left running."""

from __future__ import annotations

import os
import stat
import time

import pytest

from holdfast.errors import UsageError
from holdfast.sources import SourceFailed
from holdfast.sources.contract import LookEnded
from holdfast.sources.subprocess_ import lines
from tests.support.slowness import slowness
from tests.support.together import wait_for

pytestmark = pytest.mark.req("J20")


def function(name, **more):
    return {"python": f"tests.sources.finding.{name}", **more}


# python ---------------------------------------------------------------------------------------------------------------


def test_a_function_yields_keys_and_mappings_and_what_is_neither_is_counted(look):
    looked = look(function("keys"))
    assert looked.items == {"a": {}, "b": {"n": 1}, "c": {}}
    assert (looked.bad, looked.source.bad_example) == (2, "tests.sources.finding.keys yielded nothing at 'key'")
    assert looked.source.whole
    assert look(function("listed")).items == {"a": {}, "b": {}}


def test_a_function_that_takes_memory_remembers_and_tells_only_what_is_new(look):
    assert list(look(function("counting")).items) == ["item 1"]
    second = look(function("counting", args={"step": 5}))
    assert (list(second.items), look.memory, second.source.whole) == (["item 6"], {"n": 6}, False)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("breaking", "finding.breaking raised ValueError: no more of that$"),
        ("raising", "finding.raising raised OSError: not now$"),
        ("nothing", "returned a NoneType, and no items"),
        ("a_text", "returned a str: let it yield"),
        ("later", "later is asynchronous"),
        ("streaming", "streaming is asynchronous"),
    ],
)
def test_a_function_that_does_something_else_is_one_clear_line(look, name, said):
    with pytest.raises(SourceFailed, match=said):
        look(function(name))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests.sources.finding.gone", "has no 'gone'"),
        ("tests.sources.nowhere.f", "importing tests.sources.nowhere raised ModuleNotFoundError"),
        ("tests.sources.finding.NOT_A_FUNCTION", "is a int, not a function"),
    ],
)
def test_a_function_that_is_not_there_is_said_so(look, name, said):
    with pytest.raises(UsageError, match=said):
        look({"python": name})


@pytest.mark.parametrize("name", ["find", "my package.find", "", 5, "a..b", "os.path.join; x"])
def test_a_function_is_named_in_full(look, name):
    with pytest.raises(UsageError, match=r"^test: source 's': python: "):
        look.open({"python": name})


# Programs -------------------------------------------------------------------------------------------------------------


def script(folder, text):
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().split()[2] != "Z"


def test_a_program_is_read_line_by_line(tmp_path):
    assert list(lines([script(tmp_path, "echo a; echo b; printf c")], seconds=10)) == [b"a", b"b", b"c"]


def test_a_program_that_fails_tells_its_last_complaint_after_what_it_had_to_say(tmp_path):
    stream = lines([script(tmp_path, "echo a; echo first >&2; echo 'it broke' >&2; exit 7")], seconds=10)
    assert next(stream) == b"a"
    with pytest.raises(SourceFailed, match=r"^program ended with exit code 7: it broke$"):
        next(stream)


def test_a_program_that_is_killed_is_said_so(tmp_path):
    with pytest.raises(SourceFailed, match="program ended with signal 9"):
        list(lines([script(tmp_path, "kill -9 $$")], seconds=10))


@pytest.mark.parametrize("text", ["sleep 600", "exec >&- 2>&-; sleep 600", "while true; do echo x; sleep 0.01; done"])
def test_a_program_that_takes_too_long_is_ended(tmp_path, text):
    began = time.monotonic()
    with pytest.raises(SourceFailed, match=r"program took longer than 0\.3 s"):
        list(lines([script(tmp_path, text)], seconds=0.3))
    assert time.monotonic() - began < 60 * slowness()


def test_a_program_that_writes_without_end_is_ended(tmp_path):
    with pytest.raises(SourceFailed, match="program writes more than 100,000 bytes"):
        list(lines([script(tmp_path, "yes")], seconds=10, max_bytes=100_000))


def test_nothing_that_a_program_started_is_left_behind_when_nobody_wants_more(tmp_path):
    stream = lines([script(tmp_path, "sleep 300 & echo $!; echo $$; sleep 300")], seconds=60)
    pids = [int(next(stream)), int(next(stream))]
    assert all(is_running(pid) for pid in pids)
    stream.close()
    wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_a_child_that_keeps_the_output_open_does_not_keep_us(tmp_path):
    began = time.monotonic()
    [pid] = list(lines([script(tmp_path, "sleep 300 & echo $!")], seconds=600))
    assert time.monotonic() - began < 60 * slowness()
    wait_for(lambda: not is_running(int(pid)))


def test_a_look_that_has_to_end_ends_a_silent_program(tmp_path):
    calls = []

    def check():
        calls.append(1)
        if len(calls) > 2:
            raise LookEnded("enough")

    with pytest.raises(LookEnded):
        list(lines([script(tmp_path, "sleep 300")], seconds=60, check=check))


# media ----------------------------------------------------------------------------------------------------------------


def media(tmp_path, text, **more):
    return {"media": "http://127.0.0.1/@channel", "allow_private": True, "program": script(tmp_path, text), **more}


ENTRY = (
    '{"id": "abc", "ie_key": "Youtube", "title": "T", "duration": 5, "view_count": 9, "url": "https://y.example/abc"}'
)


def test_entries_of_a_channel_are_listed_and_nothing_is_downloaded(look, tmp_path):
    looked = look(media(tmp_path, f"echo \"$@\" >&2; echo '{ENTRY}'; echo nonsense; echo '{{}}'"))
    assert looked.items == {"youtube:abc": {"id": "abc", "title": "T", "duration": 5, "url": "https://y.example/abc"}}
    assert looked.bad == 2


def test_the_program_gets_the_address_as_an_address_whatever_it_looks_like(look, tmp_path):
    given = media(tmp_path, f'printf "%s\\n" "$@" > {tmp_path}/args', newest=5)
    looked = look(given)
    assert (tmp_path / "args").read_text().split() == [
        "--ignore-config",
        "--no-cache-dir",
        "--no-warnings",
        "--flat-playlist",
        "--dump-json",
        "--playlist-end",
        "5",
        "--",
        "http://127.0.0.1/@channel",
    ]
    assert looked.source.missed


@pytest.mark.parametrize("search", ["ytsearch20:harbour ferry", "ytsearchdate5: --exec=reboot", "scsearch:tides"])
def test_a_search_is_handed_to_the_program_as_one_text_and_lets_nothing_vanish(look, tmp_path, search):
    program = script(tmp_path, f"printf '%s\\n' \"$@\" > {tmp_path}/args; echo '{ENTRY}'")
    looked = look({"media": search, "program": program})
    assert (tmp_path / "args").read_text().splitlines()[-2:] == ["--", search]
    assert list(looked.items) == ["youtube:abc"]
    assert looked.source.missed


@pytest.mark.parametrize(
    "search", ["ytsearchall:x", "ytsearch20:", "ytsearch20: ", "search:x", "--ytsearch:x", "ytsearch:a\nb"]
)
def test_what_is_neither_an_address_nor_a_search_that_ends_is_refused(look, search):
    with pytest.raises(UsageError, match=r"^test: source 's': media: .* is neither an http address nor a search like"):
        look.open({"media": search})


def test_a_program_that_is_not_installed_is_said_so_with_what_to_do(look, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SourceFailed, match="the program 'yt-dlp' is not there: install it with `pip install yt-dlp`"):
        look({"media": "http://127.0.0.1/@channel", "allow_private": True})


@pytest.mark.fault(80)
def test_a_channel_is_an_address_of_the_public_internet(look):
    with pytest.raises(UsageError, match=r"media: .*only http:// and https://"):
        look.open({"media": "file:///etc/passwd"})
    with pytest.raises(UsageError, match="media"):
        look.open({"media": "--exec=reboot"})
    with pytest.raises(SourceFailed, match="not an address of the public internet"):
        look({"media": "http://169.254.169.254/@channel"})
