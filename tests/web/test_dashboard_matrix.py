"""The matrix: counted in the background while somebody looks, shown as a table that a picture is drawn from."""

from __future__ import annotations

import threading

import pytest

from holdfast import Holdfast
from holdfast.answers.json_of import json_of
from holdfast.errors import UsageError
from holdfast.web.long_questions import Counting, OnStep, Walks
from holdfast.web.shared_answers import Answered
from tests.support.waiting import wait_for
from tests.web.conftest import Web

pytestmark = pytest.mark.req("P17")


def counted(web: Web, address: str) -> dict[str, object]:
    def look() -> dict[str, object] | None:
        found = web.get(address)
        return None if found.status_code == 503 else found.json()

    return wait_for(look) or {}


def test_the_matrix_is_the_answer_of_the_app(web: Web, shelf: str) -> None:
    found = counted(web, "/matrix.json")
    with Holdfast(shelf, create=False) as app:
        assert found["matrix"] == json_of(app.matrix("books"))
    text = web.get("/matrix").text
    assert 'data-counts="done:' in text and "items?pipeline=books&amp;after=" in text
    assert web.get("/matrix.csv").text.splitlines()[0].startswith("after,until,items,stage,pending")
    assert counted(web, "/matrix.json?pipeline=books") == found


def test_what_is_still_counted_has_no_file_yet(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = Answered(Counting(0.25), 0.0, 0.0)
    monkeypatch.setattr(web.app.walks, "ask", lambda name, question: answered)
    for path in ("/matrix.csv", "/matrix.json"):
        found = web.get(path)
        assert (found.status_code, found.headers["retry-after"]) == (503, "2")
        assert "25%" in found.json()["error"]
    assert web.get("/matrix").status_code == 200


def test_an_unknown_pipeline_is_refused_once_it_was_looked_for(web: Web) -> None:
    answered = wait_for(lambda: (found := web.get("/matrix?pipeline=nothing")).status_code == 400 and found)
    assert "nothing" in answered.text


def test_the_first_who_asks_sees_how_far_it_is_and_all_share_one_walk(shelf: str) -> None:
    walks = Walks(lambda: Holdfast(shelf, create=False))
    begun: list[int] = []
    go_on, asked = threading.Event(), threading.Event()

    def walk(app: Holdfast, on_step: OnStep) -> str:
        begun.append(1)
        on_step(0.5)
        asked.set()
        go_on.wait(20)
        return "all of it"

    assert isinstance(walks.ask("m", walk).value, Counting)
    assert asked.wait(20)
    assert walks.ask("m", walk).value == Counting(0.5)
    go_on.set()
    wait_for(lambda: walks.ask("m", walk).value == "all of it")
    assert begun == [1]
    walks.close()


def test_a_server_that_stops_does_not_wait_for_the_rest(shelf: str) -> None:
    walks = Walks(lambda: Holdfast(shelf, create=False))
    began = threading.Event()

    def endless(app: Holdfast, on_step: OnStep) -> None:
        while True:
            began.set()
            on_step(0.1)

    walks.ask("m", endless)
    assert began.wait(20)
    walks.close()


def test_what_a_walk_ends_with_is_told_once_and_then_tried_again(shelf: str) -> None:
    walks = Walks(lambda: Holdfast(shelf, create=False))
    tried: list[int] = []

    def walk(app: Holdfast, on_step: OnStep) -> str:
        tried.append(1)
        if len(tried) == 1:
            raise UsageError("not now")
        return "there"

    refused: list[str] = []

    def ask() -> bool:
        try:
            return walks.ask("m", walk).value == "there"
        except UsageError as error:
            refused.append(str(error))
            return False

    wait_for(ask)
    assert (refused, tried) == (["not now"], [1, 1])
    walks.close()
