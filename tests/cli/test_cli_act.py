"""retry, cancel and add: what they change, what they refuse, what they answer."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast

Write = Callable[[str, str], str]


@pytest.fixture
def three(cli: Any, books: str) -> Any:
    cli("add", books, "a", "b", "c")
    return cli


def newest_action(cli: Any) -> int:
    number: int = cli.json("actions")[0]["id"]
    return number


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_to_act_on_everything_must_be_meant(three: Any, verb: str) -> None:
    result = three(verb, code=2)
    assert "give a filter, or --all" in result.stderr
    assert three.states()["extract"] == {"pending": 3}


@pytest.mark.req("J7")
def test_a_dry_run_counts_and_changes_nothing(three: Any) -> None:
    assert three("cancel", "--all", "--dry-run").stdout == "would be cancelled: 3 (3 pending)\n"
    assert three.json("cancel", "--all", "--dry-run") == {
        "dry_run": True,
        "total": 3,
        "counts": {"pending": 3},
        "actions": [],
    }
    assert three.states()["extract"] == {"pending": 3}


@pytest.mark.req("J7")
def test_cancelled_items_are_set_aside_and_sent_back(three: Any) -> None:
    assert three("cancel", "--key", "[ab]", "--stage", "extract").stdout == "Nothing matches.\n"
    done = three("cancel", "--key", "?", "--stage", "extract", "--reason", "not now").stdout
    assert done == f"cancelled by action {newest_action(three)}: 3 (3 pending)\n"
    [one] = three.json("events", "--event", "cancelled", "--key", "a")
    assert (one["data"]["by"], one["data"]["reason"]) == (getpass.getuser(), "not now")
    assert three.json("retry", "--key", "a")["counts"] == {"cancelled": 1}
    assert three.states()["extract"] == {"cancelled": 2, "pending": 1}
    assert three.json("retry", "--state", "failed", "--state", "exhausted")["total"] == 0
    assert three.json("retry", "--all", "--older-than", "1h")["total"] == 0
    assert three.json("retry", "--all")["counts"] == {"cancelled": 2}


def test_several_keys_mean_every_item_that_fits_one_of_them_once(three: Any) -> None:
    several = ["--key", "a", "--key", "[ab]", "--key", "?", "--key", "b"]
    assert three.json("cancel", *several[:4], "--dry-run")["total"] == 1
    assert three.json("cancel", *several, "--dry-run")["total"] == 3
    assert three.json("cancel", "--key", "a", "--key", "b")["total"] == 2
    assert three.json("retry", *several)["total"] == 2
    assert three.states()["extract"] == {"pending": 3}


def test_what_cannot_be_meant_is_refused(three: Any) -> None:
    assert "retry takes finished stages" in three("retry", "--state", "pending", code=2).stderr
    assert "there is no stage 'nobody'" in three("cancel", "--stage", "nobody", code=2).stderr
    assert "--older-than" in three("cancel", "--older-than", "soon", code=2).stderr.replace(
        "older_than", "--older-than"
    )


def test_add_answers_with_counts(cli: Any, books: str, write: Write) -> None:
    lines = '{"key": "a", "n": 1}\n\n{"key": "b", "n": 1}\n'
    assert cli("add", books, "--from", write("items.jsonl", lines)).stdout == "books: 2 new, 0 changed, 0 unchanged\n"
    answer = cli("add", books, "--from", "-", "--json", input='\ufeff{"key": "a", "n": 2}\n{"key": "b", "n": 1}\n')
    assert json.loads(answer.stdout) == {"pipeline": "books", "new": 0, "changed": 1, "unchanged": 1}
    assert cli.json("show", "a")["data"] == {"n": 2}


def test_a_key_without_data_keeps_the_data_it_has(cli: Any, books: str, write: Write) -> None:
    cli("add", books, "--from", write("items.jsonl", '{"key": "a", "n": 1}'))
    assert cli.json("add", books, "a", "b") == {"pipeline": "books", "new": 1, "changed": 0, "unchanged": 1}
    assert cli.json("show", "a")["data"] == {"n": 1}


def test_a_line_that_does_not_end_is_refused(cli: Any, books: str, write: Write) -> None:
    failed = cli("add", books, "--from", write("items.txt", "a\n" + "x" * (16 * 2**20 + 1)), code=2)
    assert "items.txt, line 2: it is longer than 16 MiB; nothing was added" in failed.stderr


@pytest.mark.req("J20")
def test_addresses_come_from_arguments_from_a_file_and_from_stdin_and_are_written_one_way(
    cli: Any, books: str, write: Write
) -> None:
    urls = "\ufeff# the harbour\nHTTPS://Example.org\n\n  https://example.org/a#b  \nhttps://example.org:443/\n#last\n"
    assert cli("add", books, "--from", write("urls.txt", urls)).stdout == "books: 2 new, 0 changed, 0 unchanged\n"
    assert cli("add", books, "--from", "-", input=urls).stdout == "books: 0 new, 0 changed, 2 unchanged\n"
    again = ["https://EXAMPLE.org/a#b", "https://example.org/%7Eme", "https://example.org/~me", "9780141439587"]
    assert cli("add", books, *again).stdout == "books: 2 new, 0 changed, 1 unchanged\n"
    keys = {"https://example.org/", "https://example.org/a#b", "https://example.org/~me", "9780141439587"}
    assert {one["key"] for one in cli.json("items")} == keys
    assert cli.json("show", "https://Example.org")["key"] == "https://example.org/"


@pytest.mark.req("J20", "V13")
def test_an_item_whose_address_was_not_written_that_way_is_not_added_again(cli: Any, books: str, write: Write) -> None:
    """Stores from before have them, and whatever was done for them is paid."""
    cli("add", books, "another")
    with Holdfast(cli.url) as app:
        app.add("books", ["https://example.org"])
    assert cli("add", books, "https://example.org").stdout == "books: 0 new, 0 changed, 1 unchanged\n"
    lines = '{"key": "https://example.org", "n": 1}\n'
    assert cli("add", books, "--from", write("items.jsonl", lines)).stdout == "books: 0 new, 1 changed, 0 unchanged\n"


def test_items_of_a_smaller_priority_come_first(cli: Any, books: str) -> None:
    cli("add", books, "later")
    cli("add", books, "first", "--priority", "-5")
    assert cli.json("show", "first")["priority"] == -5


def test_the_pipeline_is_named_where_a_file_has_several(lite: Any, books: str) -> None:
    text = Path(books).read_text()
    Path("two.py").write_text(f"{text}\nother = Pipeline('other')\nother.stage()(extract)\n")
    assert "several pipelines (books, other)" in lite("add", "two.py", "a", code=2).stderr
    assert "has no pipeline 'third'" in lite("add", "two.py", "a", "--pipeline", "third", code=2).stderr
    assert lite("add", "two.py", "a", "--pipeline", "other").stdout == "other: 1 new, 0 changed, 0 unchanged\n"


BAD = {
    "no items": ([], "nothing to add"),
    "an empty key": (["a", ""], "item key is empty"),
    "a blank key": (["a", "  "], "item key is empty"),
    "a long key": (["a", "x" * 10_000], "has 10,000 bytes; the limit is 1,024"),
    "a file that is not there": (["--from", "nobody.jsonl"], "nobody.jsonl cannot be read"),
    "a priority out of range": (["a", "--priority", str(2**40)], "priority"),
}

BAD_LINES = {
    "no JSON": ('{"key": "a"}\n\n{"key": \n', "items.jsonl, line 3: "),
    "no object": ('{"key": "a"}\n["b"]\n', 'items.jsonl, line 2: not an object with a "key"'),
    "no key": ('{"key": "a"}\n{"n": 1}\n', 'items.jsonl, line 2: not an object with a "key"'),
    "an unhashable key": ('{"key": ["a"]}\n', "item key ['a']: a key is text, not list"),
    "plain text that is none": ("a\n\udcff\n", "items.jsonl, line 2: "),
    "a key that is no text": ('{"key": "a"}\n{"key": 5}\n', "item key 5: a key is text, not int"),
    "a NUL in the data": ('{"key": "a"}\n{"key": "b", "x": "\\u0000"}\n', "item 'b': its data has a text with a NUL"),
    "a lone surrogate": ('{"key": "a"}\n{"key": "b", "x": "\\ud800"}\n', "items.jsonl, line 2: "),
    "NaN": ('{"key": "a"}\n{"key": "b", "x": NaN}\n', "items.jsonl, line 2: "),
    "bytes that are no text": ('{"key": "a"}\n{"key": "\udcff"}\n', "items.jsonl, line 2: "),
    "deep nesting": ('{"key": "a"}\n{"key": "b", "x": ' + "[" * 5000 + "]" * 5000 + "}\n", "items.jsonl, line 2: "),
}


def nothing_was_added(cli: Any) -> bool:
    """No store was made, or nothing is in it."""
    from click.testing import CliRunner

    from holdfast.cli import commands

    found = CliRunner().invoke(commands, ["items", "--json"], env={"HOLDFAST_URL": cli.url})
    return found.exit_code == 5 or json.loads(found.stdout) == []


@pytest.mark.parametrize("what", BAD)
def test_bad_items_are_refused_in_one_line_and_none_is_added(cli: Any, books: str, what: str) -> None:
    args, said = BAD[what]
    result = cli("add", books, *args, code=2)
    assert said in result.stderr
    assert result.stderr.count("\n") == 1 and len(result.stderr) < 300
    assert nothing_was_added(cli)


@pytest.mark.req("V12")
@pytest.mark.fault(55)
@pytest.mark.parametrize("what", BAD_LINES)
def test_a_bad_line_is_named_and_none_is_added(cli: Any, books: str, what: str) -> None:
    text, said = BAD_LINES[what]
    Path("items.jsonl").write_bytes(text.encode("utf-8", "surrogateescape"))
    result = cli("add", books, "given", "--from", "items.jsonl", code=2)
    assert said in result.stderr
    assert "; nothing was added" in result.stderr
    assert result.stderr.count("\n") == 1 and len(result.stderr) < 300
    assert nothing_was_added(cli)


def test_lines_before_a_bad_one_are_there_and_the_same_command_goes_on(
    cli: Any, books: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.add.CHUNK", 3)
    monkeypatch.setattr("holdfast.cli.add.CHUNK", 3)
    lines = "".join(f'{{"key": "k{n}"}}\n' for n in range(7))
    said = cli("add", books, "--from", write("items.jsonl", lines + '{"key":\n'), code=2).stderr
    assert "items.jsonl, line 8: " in said
    assert "; the 6 items before it were added" in said
    assert cli("add", books, "--from", write("items.jsonl", lines)).stdout == "books: 1 new, 0 changed, 6 unchanged\n"


def test_a_line_for_a_key_that_came_before_is_merged(cli: Any, books: str, write: Write) -> None:
    lines = '{"key": "http://a.org", "n": 1}\n{"key": "HTTP://a.org/", "n": 2}\n{"key": "given"}\n'
    assert (
        cli("add", books, "given", "--from", write("i.jsonl", lines)).stdout == "books: 2 new, 1 changed, 1 unchanged\n"
    )
    assert cli.json("show", "http://a.org/")["data"] == {"n": 2}


def test_items_are_deleted_only_when_that_is_meant(three: Any) -> None:
    assert "give a KEY or a filter, or --all" in three("delete", code=2).stderr
    assert "this removes 2 books for good: add --yes" in three("delete", "a", "b", code=2).stderr
    assert three("delete", "a", "b", "--dry-run").stdout == "would be deleted: 2 (2 books)\n"
    assert three.states()["extract"] == {"pending": 3}
    assert three.json("delete", "a", "b", "--yes", "--reason", "asked to") == {
        "dry_run": False,
        "total": 2,
        "counts": {"books": 2},
        "actions": [newest_action(three)],
    }
    [event] = three.json("events", "--event", "deleted")
    assert (event["data"]["by"], event["data"]["reason"]) == (getpass.getuser(), "asked to")
    assert three("delete", "a", "--yes").stdout == "Nothing matches.\n"
    assert [one["key"] for one in three.json("items")] == ["c"]


def test_answers_are_forgotten_only_when_that_is_meant(three: Any) -> None:
    assert "give a KEY or a filter, or --all" in three("forget", code=2).stderr
    assert three("forget", "a").stdout == "Nothing matches.\n"
    assert three.json("forget", "--all", "--undo") == {"dry_run": False, "total": 0, "counts": {}, "actions": []}
    assert "give a filter, or --all" in three("resolve", "--not-charged", code=2).stderr
    assert three.json("resolve", "--all", "--not-charged")["total"] == 0
    assert "--value is the answer of one call" in three("resolve", "--all", "--value", "1", code=2).stderr
