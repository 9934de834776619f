"""`holdfast actions`: what it lists, and what it lets a person do."""

from __future__ import annotations

import getpass
from typing import Any

import pytest

from holdfast.engine import actions as acting
from holdfast.engine import selection
from holdfast.engine.retry_and_cancel import CancelStages
from holdfast.engine.selection import Who
from holdfast.model.item_filter import Which
from holdfast.store import open_store

pytestmark = pytest.mark.req("J7")


@pytest.fixture
def five(cli: Any, books: str) -> Any:
    cli("add", books, *"abcde")
    return cli


@pytest.fixture
def left(five: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """An action that was left after its first two items."""
    monkeypatch.setattr(selection, "CHUNK", 2)
    store = open_store(five.url)
    action = store.write(lambda tx: acting.begin(tx, CancelStages(Which("books")), Who("me", "for a test")))
    store.close()
    assert action is not None
    return action.id


def test_actions_are_listed_with_what_was_asked_for(five: Any) -> None:
    assert five("actions").stdout == "There is none.\n"
    five("cancel", "--key", "[*]", "--key", "a", "--reason", "not now")
    [one] = five.json("actions")
    assert (one["kind"], one["state"], one["by"], one["reason"]) == ("cancel", "done", getpass.getuser(), "not now")
    assert one["filter"] == {"key": ["[*]", "a"]}
    assert (one["counts"], one["preview"]) == (
        {"pending": 1},
        {"counts": {"pending": 1}, "more": False, "previewed": None},
    )
    assert one["created_at"].endswith("Z")
    [head, row] = five("actions").stdout.splitlines()
    assert head.split()[:5] == ["id", "kind", "state", "done", "of"]
    assert row.split()[:5] == [str(one["id"]), "cancel", "done", "1", "1"]
    assert row.endswith("key=[*] a")
    assert five.json("actions", "--open") == []


def test_one_action_is_told_with_the_outcome_of_each_item(five: Any) -> None:
    [number] = five.json("cancel", "--pipeline", "books")["actions"]
    one = five.json("actions", str(number), "--limit", "3")
    assert [(item["key"], item["stage"], item["event"]) for item in one["items"]] == [
        (key, "extract", "cancelled") for key in "abc"
    ]
    page = five("actions", str(number), "--limit", "3", "--after", one["cursor"]).stdout
    assert "  asked for: pipeline=books\n" in page
    assert "when it began it meant 5; done: 5 (5 pending)\n" in page
    assert "cancelled  books/extract  d  was=pending\n" in page
    assert "there is no action 999" in five("actions", "999", code=2).stderr
    assert "not in the range" in five("actions", "9" * 23, code=2).stderr


def test_what_had_changed_meanwhile_is_told_of_the_action(five: Any) -> None:
    store = open_store(five.url)
    five("delete", "b", "--yes")
    done = acting.act(store, CancelStages(Which("books", key=("a", "b"))), Who(), previewed=2)
    store.close()
    told = five.json("actions", str(done.action))
    assert (told["preview"]["previewed"], told["changed"]) == (2, 1)
    assert told["left_alone"] == [{"key": "b", "pipeline": None, "states": {}}]
    page = five("actions", str(done.action)).stdout
    assert "  previewed 2, 1 had changed meanwhile\n" in page
    assert "  not acted on: b: deleted, or never there\n" in page


def test_an_open_action_is_continued(five: Any, left: int) -> None:
    assert f"to go on: holdfast actions {left} --continue" in five("actions", str(left)).stdout
    assert [one["id"] for one in five.json("actions", "--open")] == [left]
    assert five.json("actions", str(left), "--continue")["state"] == "done"
    assert five.states()["extract"] == {"cancelled": 5}


def test_an_open_action_is_stopped_and_what_it_has_done_stays_done(five: Any, left: int) -> None:
    assert five.json("actions", str(left), "--stop", "--reason", "enough")["state"] == "stopped"
    assert five.states()["extract"] == {"cancelled": 2, "pending": 3}
    assert f"action {left} is not open: it is stopped" in five("actions", str(left), "--stop", code=2).stderr
    [event] = five.json("events", "--event", "action_stopped")
    assert event["data"] == {"action": left, "by": getpass.getuser(), "reason": "enough"}


def test_an_action_is_undone(five: Any) -> None:
    [number] = five.json("cancel", "--all")["actions"]
    five("retry", "--key", "a")
    assert five("actions", str(number), "--undo", "--dry-run").stdout == "would be moved back: 4 (4 cancelled)\n"
    assert five.states()["extract"] == {"cancelled": 4, "pending": 1}
    answer = five.json("actions", str(number), "--undo", "--reason", "a mistake")
    assert (answer["total"], len(answer["actions"])) == (4, 1)
    assert five.states()["extract"] == {"pending": 5}
    assert f"asked for: undo of action {number}\n" in five("actions", str(answer["actions"][0])).stdout
    assert five("actions", str(number), "--undo").stdout.startswith("Nothing that action")


def test_what_cannot_be_undone_says_why(five: Any) -> None:
    [number] = five.json("delete", "a", "--yes")["actions"]
    said = five("actions", str(number), "--undo", code=2).stderr
    assert f"action {number}, delete, cannot be undone: what was deleted is gone" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("args", [("--stop",), ("1", "--stop", "--undo"), ("--after", "1/1")])
def test_what_makes_no_sense_is_refused(five: Any, args: tuple[str, ...]) -> None:
    assert "give an ID with one of" in five("actions", *args, code=2).stderr
