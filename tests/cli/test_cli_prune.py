"""`holdfast prune`: what is forgotten, what stays, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.cli.loader import load


@pytest.fixture
def done(cli: Any, books: str) -> Any:
    """A store in which two items have ended and one has not begun."""
    cli("add", books, "good", "bad")
    with Holdfast(cli.url, load(books, None).specs) as app:
        app.run()
    cli("add", books, "new")
    return cli


@pytest.mark.req("J9")
def test_items_that_ended_are_forgotten_with_all_of_theirs(done: Any) -> None:
    assert done("prune", "--items-older-than", "0s").stdout == "forgotten: 2 items\n"
    assert [one["key"] for one in done.json("items")] == ["new"]
    assert done.states() == {"extract": {"pending": 1}, "chunk": {}}
    assert done.json("db", "check") == {"wrong": []}
    assert done.json("events", "--event", "failed") == []


@pytest.mark.req("J9")
def test_old_events_are_forgotten(done: Any) -> None:
    before = len(done.json("events"))
    assert done.json("prune", "--events-older-than", "0s") == {"events": before, "items": 0}
    assert done.json("events") == []
    assert len(done.json("items")) == 3


def test_what_is_young_stays(done: Any) -> None:
    assert done.json("prune", "--events-older-than", "90d", "--items-older-than", "365d") == {"events": 0, "items": 0}
    assert done("prune", "--events-older-than", "300000d", "--items-older-than", "1h").stdout == (
        "forgotten: 0 events, 0 items\n"
    )
    assert len(done.json("items")) == 3


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "give --events-older-than, --items-older-than or both"),
        (["--events-older-than", "soon"], "--events-older-than: 'soon' is not a length of time"),
        (["--items-older-than", "-1"], "--items-older-than: '-1' must be zero or more"),
        (["--items-older-than", "1h", "--events-older-than", ""], "--events-older-than: ''"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_forgotten(done: Any, args: list[str], said: str) -> None:
    before = len(done.json("events"))
    result = done("prune", *args, code=2)
    assert said in result.stderr and result.stderr.count("\n") == 1
    assert (len(done.json("items")), len(done.json("events"))) == (3, before)
