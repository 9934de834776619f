"""Slow questions: the database ends them at the limit, and they keep no other question waiting; downloads end, too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.web import downloads
from holdfast.web.shared_answers import GaveUp
from tests.store.test_question_time_limit import endless
from tests.support.waiting import wait_for
from tests.web.conftest import Web

pytestmark = pytest.mark.req("P17")


def ask(web: Web, name: str, question: Callable[[Holdfast], Any]) -> Any:
    async def asked() -> Any:
        return (await web.app.questions.ask(name, question)).value

    return asyncio.run(asked())


def test_slow_questions_are_ended_and_block_nobody(shelf: str, serve: Callable[..., Web]):
    web = serve(shelf, question_seconds=2.0)

    def gives_up(name: str) -> None:
        with pytest.raises(GaveUp):
            ask(web, name, lambda app: app._read(endless))

    for _ in range(2):
        together = [threading.Thread(target=gives_up, args=(f"endless {n}",)) for n in range(6)]
        for one in together:
            one.start()
        for one in together:
            one.join()
        # All threads are free again, and so is the database.
        wait_for(lambda: web.get("/items").status_code == 200, 120)


def test_a_question_that_was_slow_has_threads_of_its_own(shelf: str, serve: Callable[..., Web]):
    web = serve(shelf)
    web.app.questions._remember("slow", True)
    held, began = threading.Event(), threading.Event()

    def slow(app: Holdfast) -> None:
        began.set()
        assert held.wait(60)

    waiting = threading.Thread(target=ask, args=(web, "slow", slow))
    waiting.start()
    assert began.wait(60)
    names = [ask(web, f"quick {n}", lambda app: threading.current_thread().name) for n in range(8)]
    assert not any("slow" in one for one in names)
    held.set()
    waiting.join()
    web.app.questions.forget()
    assert "slow" not in ask(web, "slow", lambda app: threading.current_thread().name)


class Stuck:
    """Content on a disk that has stopped to answer after the first part."""

    def __init__(self) -> None:
        self.parts = [b"first"]
        self.go_on = threading.Event()
        self.is_closed = threading.Event()

    def read(self, size: int) -> bytes:
        if self.parts:
            return self.parts.pop()
        assert self.go_on.wait(60)
        return b""

    def close(self) -> None:
        self.is_closed.set()


def response(file: Any, *, takes: bool) -> list[Any]:
    """What a client gets, which takes parts or does not."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not takes:
            await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def run() -> None:
        scope = {"type": "http", "method": "GET", "headers": []}
        await asyncio.wait_for(downloads.Download(file, {"content-length": "10"})(scope, receive, send), 60)

    asyncio.run(run())
    return sent


@pytest.mark.parametrize("takes", [True, False])
def test_a_download_that_stands_still_is_ended_and_closes_its_file(monkeypatch: pytest.MonkeyPatch, takes: bool):
    monkeypatch.setattr(downloads, "CHUNK_SECONDS", 0.2)
    stuck = Stuck()
    sent = response(stuck, takes=takes)
    assert not stuck.go_on.is_set()
    stuck.go_on.set()
    # It does not say that it was complete.
    assert [one.get("body") for one in sent] == [None, b"first"]
    assert all(one.get("more_body", True) for one in sent)
    assert stuck.is_closed.wait(60)
