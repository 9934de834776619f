"""run, worker, check and plan say what has changed in a pipeline and what it will cost; a person at a terminal is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.req("P4")

Write = Callable[[str, str], str]

BEFORE = """
from holdfast import Pipeline

books = Pipeline("books", resources={"model": {}})


@books.stage
def fetch(item, ctx):
    return item.key
"""

AFTER = (
    BEFORE
    + """

@books.stage(after=fetch, resource="model", estimate="0.25")
def embed(item, ctx):
    return ctx.once("vector", len, item.key, cost="0.25")
"""
)

BLOCK = "  added    embed: runs for 2 items; expected cost 0.50, time not known"
RELEASE = "holdfast retry --state on_hold --pipeline books --stage embed"


@pytest.fixture
def file(cli: Any, write: Write) -> str:
    """Two items have been through the pipeline; then it has got another stage."""
    name = write("books.py", BEFORE)
    cli("add", name, "a", "b")
    cli("run", name)
    return write("books.py", AFTER)


def states(cli: Any) -> dict[str, int]:
    [pipeline] = cli.json("status")["pipelines"]
    found: dict[str, int] = pipeline["stages"][1]["states"]
    return found


def test_without_a_terminal_new_work_with_a_price_is_on_hold_and_the_run_says_how_to_release_it(cli, file):
    ran = cli("run", file)
    assert "books has changed since this store last saw it:" in ran.stderr
    assert BLOCK in ran.stderr
    assert RELEASE in ran.stderr
    assert states(cli) == {"on_hold": 2}
    assert (
        f"embed has work on hold: it is new for 2 items and is expected to cost 0.50; to let it run: {RELEASE}"
        in cli("status").stdout
    )
    assert RELEASE.replace("--stage embed", "--key a") in cli("why", "a").stdout
    cli(*RELEASE.split()[1:])
    assert "has changed" not in cli("run", file).stderr
    assert states(cli) == {"done": 2}


def test_yes_accepts_the_price(cli, file):
    assert "on hold" not in cli("run", file, "--yes").stderr
    assert states(cli) == {"done": 2}


@pytest.mark.parametrize(("answer", "found"), [("y", {"done": 2}), ("n", {"on_hold": 2}), ("", {"on_hold": 2})])
def test_a_person_at_a_terminal_is_asked(cli, file, monkeypatch, answer, found):
    monkeypatch.setattr("holdfast.cli.confirm_changes.at_a_terminal", lambda: True)
    ran = cli("run", file, input=f"{answer}\n")
    assert "Let the new work of embed run for 0.50? [y/N]" in ran.stderr
    assert (RELEASE in ran.stderr) == ("on_hold" in found)
    assert states(cli) == found


def test_check_says_what_would_change_and_changes_nothing(cli, file):
    checked = cli("check", file, "--store", cli.url)
    assert BLOCK in checked.stderr
    [change] = cli.json("check", file, "--store", cli.url)["changes"]
    assert change["added"] == [
        {"stage": "embed", "items": 2, "cost": "0.5", "is_back": False, "handler_time_seconds": None}
    ]
    assert list(change["on_hold"]) == ["embed"]
    assert [stage["name"] for stage in cli.json("status")["pipelines"][0]["stages"]] == ["fetch"]


def test_plan_says_what_would_change_and_changes_nothing(cli, file):
    planned = cli("plan", file)
    assert planned.stdout == "Nothing is stale.\n"
    assert BLOCK in planned.stderr
    assert "The new work of embed would be put on hold" in planned.stderr
    [change] = cli.json("plan", file)["changes"]
    assert change["on_hold"]["embed"].endswith("expected to cost 0.50")
    assert [stage["name"] for stage in cli.json("status")["pipelines"][0]["stages"]] == ["fetch"]


def test_plan_by_a_file_with_other_versions_and_names_is_that_of_the_store_once_it_knows_them(cli, write, file):
    text = AFTER.replace("def fetch", "def get").replace("after=fetch", "after=get")
    after = write("after.py", text.replace("@books.stage\n", '@books.stage(version="2", renamed_from="fetch")\n'))
    before = cli.json("plan", after)
    assert before["pipelines"][0]["stages"][0]["stage"] == "get"
    assert before["total"]["sure"] == 2
    assert [one["was"] for one in before["changes"][0]["renamed"]] == ["fetch"]
    cli("run", after, "--stages", "embed")
    later = cli.json("plan", after)
    assert later["changes"] == []
    assert (later["pipelines"], later["total"]) == (before["pipelines"], before["total"])
