"""`holdfast prune`: what is forgotten, what stays, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.engine.prune import CHUNK
from holdfast.program_file import load
from tests.support.kept import content_in, make_old


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
    assert done("prune", "--items-older-than", "0s", "--yes").stdout == "forgotten: 2 items\n"
    assert [one["key"] for one in done.json("items")] == ["new"]
    assert done.states() == {"extract": {"pending": 1}, "chunk": {}}
    assert done.json("db", "check")["wrong"] == []
    assert done.json("events", "--event", "failed") == []


@pytest.mark.req("J9")
def test_old_events_are_forgotten(done: Any) -> None:
    before = len(done.json("events"))
    answer = done.json("prune", "--events-older-than", "0s", "--yes")
    assert answer == {"dry_run": False, "events": before, "items": 0, "blobs": 0}
    assert done.json("events") == []
    assert len(done.json("items")) == 3


def test_what_is_young_stays(done: Any) -> None:
    answer = done.json("prune", "--events-older-than", "90d", "--items-older-than", "365d")
    assert answer == {"dry_run": False, "events": 0, "items": 0, "blobs": 0}
    assert done("prune", "--events-older-than", "300000d", "--items-older-than", "1h").stdout == (
        "forgotten: 0 events, 0 items\n"
    )
    assert len(done.json("items")) == 3


@pytest.mark.req("J9")
def test_a_dry_run_counts_and_forgets_nothing(done: Any) -> None:
    events = len(done.json("events"))
    both = ("--items-older-than", "0s", "--events-older-than", "0s", "--dry-run")
    assert done("prune", *both).stdout == f"would be forgotten: {events} events, 2 items\n"
    assert done.json("prune", *both) == {"dry_run": True, "events": events, "items": 2, "blobs": 0}
    assert done.json("prune", "--items-older-than", "1h", "--dry-run") == {
        "dry_run": True,
        "events": 0,
        "items": 0,
        "blobs": 0,
    }
    assert (len(done.json("items")), len(done.json("events"))) == (3, events)


@pytest.mark.req("J9")
@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--items-older-than", "0s"], "all items that have ended"),
        (["--items-older-than", "1h", "--events-older-than", "0"], "all events"),
        (["--items-older-than", "0", "--events-older-than", "0"], "all events and all items that have ended"),
    ],
)
def test_to_forget_everything_without_a_terminal_needs_to_be_said_in_the_command(
    done: Any, args: list[str], what: str
) -> None:
    before = len(done.json("events"))
    assert f"this forgets {what}: add --yes" in done("prune", *args, code=2).stderr
    assert (len(done.json("items")), len(done.json("events"))) == (3, before)


@pytest.mark.req("J9")
def test_a_person_at_a_terminal_is_asked_before_everything_is_forgotten(
    done: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.prune._at_a_terminal", lambda: True)
    no = done("prune", "--items-older-than", "0s", input="n\n", code=1)
    assert "Forget 2 items? It cannot be undone [y/N]" in no.stderr
    assert len(done.json("items")) == 3
    assert done("prune", "--items-older-than", "0s", input="y\n").stdout.endswith("forgotten: 2 items\n")
    assert [one["key"] for one in done.json("items")] == ["new"]


@pytest.mark.req("J9")
def test_a_dry_run_counts_items_beyond_the_first_step(cli: Any, books: str) -> None:
    cli("add", books, *(f"bad-{n}" for n in range(CHUNK + 10)))
    cli("cancel", "--pipeline", "books")
    assert cli.json("prune", "--items-older-than", "0", "--dry-run")["items"] == CHUNK + 10
    assert cli.json("prune", "--items-older-than", "0", "--yes")["items"] == CHUNK + 10


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "give --events-older-than, --items-older-than or --blobs"),
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


@pytest.mark.req("P13")
def test_without_options_only_content_is_forgotten_that_nothing_refers_to(done: Any, tmp_path: Path) -> None:
    place = tmp_path / "kept"
    with Holdfast(done.url, blobs=str(place)) as app:
        reference = app._blobs.keep(b"unreferenced")
        assert done("prune", "--blobs", str(place)).stdout == "forgotten: 0 blobs\n"
        make_old(place)
        assert done("prune", "--blobs", str(place), "--dry-run").stdout == "would be forgotten: 1 blobs\n"
        assert app.blob(reference).read() == b"unreferenced"
    both = done("prune", "--blobs", str(place), "--events-older-than", "90d")
    assert both.stdout == "forgotten: 0 events, 1 blobs\n"
    assert content_in(place) == set()


@pytest.mark.req("P13")
def test_a_check_of_the_database_finds_references_to_nothing(done: Any, books: str, tmp_path: Path) -> None:
    with Holdfast(done.url, load(books, None).specs) as app:
        app.add("books", [{"key": "odd", "page": {"$blob": "sha256:" + "0" * 64, "size": 1}}])
    [wrong] = done.json("db", "check", "--blobs", str(tmp_path / "kept"), code=5)["wrong"]
    assert "refers to sha256:000" in wrong and wrong.endswith(f"which is not at {_of(tmp_path / 'kept', done.url)}")


def _of(place: Path, url: str) -> str:
    with Holdfast(url, blobs=str(place)) as app:
        return app._blobs.where
