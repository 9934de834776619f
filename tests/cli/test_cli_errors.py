"""`holdfast errors`: what fails, grouped by cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.program_file import load

pytestmark = pytest.mark.req("V14", "P15")

BOOKS = """
from holdfast import Pipeline

books = Pipeline("books")


@books.stage(max_attempts=1)
def fetch(item, ctx):
    if item.key == "fine":
        return {}
    ctx.once("ask", dict, cost=0.25)
    if item.key == "odd":
        raise KeyError("title")
    raise ValueError(f"page {len(item.key)} of {item.key} is torn")
"""


@pytest.fixture
def failed(cli: Any, write: Callable[[str, str], str]) -> Any:
    """A store in which three items have failed, two of them alike."""
    file = write("books.py", BOOKS)
    cli("add", file, "book-1", "book-22", "odd", "fine")
    with load(file, cli.url).open() as app:
        app.run()
    return cli


def test_what_fails_is_told_by_cause_with_what_to_do(failed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    head, torn, odd, sample, do = failed("errors").stdout.splitlines()
    assert head.split() == [
        "group",
        "attempts",
        "last",
        "24",
        "h",
        "items",
        "now",
        "spent",
        "stages",
        "last",
        "seen",
        "error",
    ]
    group, *numbers = torn.split()[:6]
    assert numbers == ["2", "2", "2", "0.50", "books/fetch"]
    assert torn.endswith("ValueError: page <…> of <…> is torn")
    assert odd.endswith("KeyError: 'title'")
    assert sample.startswith(f"Group {group} fails in books.py: fetch. For an example: holdfast show book-")
    assert do == f"To send its items back: holdfast retry --group {group}"


def test_in_json_times_are_times_and_amounts_are_exact(failed: Any) -> None:
    torn, odd = json.loads(failed("errors", "--json").stdout)
    assert torn["message"] == "page <…> of <…> is torn"
    assert (torn["count"], torn["items"], torn["spent"], torn["stages"]) == (2, 2, "0.5", ["books/fetch"])
    assert torn["first_seen_at"].endswith("Z")
    assert torn["first_seen_at"] <= torn["last_seen_at"]
    assert (odd["error"], odd["pipeline"], odd["key"], odd["more_items"]) == ("KeyError", "books", "odd", False)


def test_a_group_is_a_filter_of_items_and_of_what_is_done_to_them(failed: Any) -> None:
    torn, odd = (one["group"] for one in json.loads(failed("errors", "--json").stdout))
    assert {one["key"] for one in json.loads(failed("items", "--group", torn, "--json").stdout)} == {
        "book-1",
        "book-22",
    }
    assert "2 books/fetch" in failed("forget", "--group", torn).stdout
    assert "1 exhausted" in failed("retry", "--group", odd).stdout
    assert failed("cancel", "--group", odd).stdout == "Nothing matches.\n"  # it waits: it is in no group until it fails
    assert "2 exhausted" in failed("retry", "--group", torn, "--dry-run").stdout
    assert "2 books" in failed("delete", "--group", torn, "--yes").stdout
    assert json.loads(failed("items", "--group", torn, "--json").stdout) == []


@pytest.mark.parametrize("command", [["items"], ["retry"], ["cancel"], ["forget"], ["delete", "--yes"]])
def test_a_group_that_does_not_exist_is_an_error_that_says_where_to_look(failed: Any, command: list[str]) -> None:
    refused = failed(*command, "--group", "928cbc31ed", code=2)
    assert "there is no error group '928cbc31ed': `holdfast errors` lists them" in refused.stderr


def test_a_store_without_pipelines_has_no_errors_and_no_failed_items(cli: Any) -> None:
    assert cli("errors").stdout == "No attempt has failed.\n"
    assert json.loads(cli("items", "--state", "failed", "--json").stdout) == []


def test_where_nothing_has_failed_it_says_so(cli: Any, write: Callable[[str, str], str]) -> None:
    cli("add", write("books.py", BOOKS), "fine")
    assert cli("errors").stdout == "No attempt has failed.\n"
    assert json.loads(cli("errors", "--json").stdout) == []


@pytest.mark.req("V14")
def test_status_says_since_when_the_oldest_waits(cli: Any, write: Callable[[str, str], str]) -> None:
    file = write("books.py", BOOKS)
    cli("add", file, "fine")
    [stage] = json.loads(cli("status", "--json").stdout)["pipelines"][0]["stages"]
    [item] = json.loads(cli("items", "--json").stdout)
    assert stage["pending_since"] == item["created_at"]
    with load(file, cli.url).open() as app:
        app.run()
    [stage] = json.loads(cli("status", "--json").stdout)["pipelines"][0]["stages"]
    assert stage["pending_since"] is None
