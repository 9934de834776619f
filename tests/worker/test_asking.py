"""Questions of a program about its own store: no act and no other question keeps them waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Pipeline, points
from tests.support.bench import STUCK_SECONDS, Bench

pytestmark = pytest.mark.req("V14")

QUESTIONS: dict[str, Callable[[Holdfast], Any]] = {
    "status": lambda app: app.status(),
    "workers": lambda app: app.workers(),
    "items": lambda app: app.items(),
    "show": lambda app: app.show("x"),
    "why": lambda app: app.why("x"),
    "events": lambda app: app.events(),
    "costs": lambda app: app.costs(),
    "limits": lambda app: app.limits(),
    "memos": lambda app: app.memos("x"),
    "plan": lambda app: app.plan("p"),
    "doctor": lambda app: app.doctor(),
    "check": lambda app: app.check(),
    "schema_version": lambda app: app.schema_version(),
}


@pytest.fixture
def app(run: Bench) -> Holdfast:
    pipeline = Pipeline("p")
    pipeline.stage(name="work")(lambda item, ctx: None)
    return run.app(pipeline, ["x"])


class Held:
    """Something in a thread of its own that is held in the middle of it."""

    def __init__(self) -> None:
        self._there, self._go_on = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def here(self) -> None:
        if threading.current_thread() is self._thread and not self._there.is_set():
            self._there.set()
            assert self._go_on.wait(STUCK_SECONDS)

    def start(self, act: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=act, daemon=True)
        self._thread.start()
        assert self._there.wait(STUCK_SECONDS)

    def release(self) -> None:
        self._go_on.set()
        if self._thread is not None:
            self._thread.join(STUCK_SECONDS)


@pytest.fixture
def held() -> Any:
    held = Held()
    yield held
    held.release()


def answered(app: Holdfast, *questions: str) -> list[str]:
    """Which of these questions were answered, in the end; in a thread, so that one that waits is only missing."""
    done: list[str] = []

    def ask() -> None:
        for name in questions:
            QUESTIONS[name](app)
            done.append(name)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(STUCK_SECONDS / 2)
    return done


def test_an_act_that_takes_long_keeps_no_question_waiting(app: Holdfast, held: Held) -> None:
    def merge(old: Any, new: Any) -> Any:
        held.here()
        return new

    held.start(lambda: app.add("p", [{"key": "x", "n": 2}], merge=merge))
    assert answered(app, *QUESTIONS) == [*QUESTIONS]
    assert "n" not in app.show("x").data
    held.release()
    assert app.show("x").data["n"] == 2


def test_an_act_in_the_middle_of_its_transaction_keeps_no_question_waiting(
    app: Holdfast, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points, "listener", lambda point: held.here() if point == "store.add_events" else None)
    held.start(lambda: app.cancel(pipeline="p"))
    assert answered(app, *QUESTIONS) == [*QUESTIONS]
    assert app.show("x").stages[0].state == "pending"
    held.release()
    assert app.show("x").stages[0].state == "cancelled"


@pytest.mark.parametrize("scan", ["check", "plan", "doctor"])
def test_a_scan_keeps_no_other_question_waiting(
    app: Holdfast, held: Held, monkeypatch: pytest.MonkeyPatch, scan: str
) -> None:
    app.status()
    monkeypatch.setattr(points, "listener", lambda point: held.here())
    held.start(lambda: QUESTIONS[scan](app))
    assert answered(app, *QUESTIONS) == [*QUESTIONS]


def test_a_program_that_asks_a_store_it_makes_finds_it_empty(bare_url: str) -> None:
    with Holdfast(bare_url) as app:
        assert app.schema_version() == 0
        assert app.status().pipelines == ()
        assert app.check() == []
