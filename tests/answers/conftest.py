"""A store in which something of everything has happened, and every question about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Backoff, Context, Holdfast, Item, Permanent, Pipeline, RetryLater
from holdfast.answers import Answer, Answers
from holdfast.worker import Settings

#: The key of an item whose text would be markup in a page.
SCRIPT = "<script>alert('x')</script>"


def shop() -> Pipeline:
    pipeline = Pipeline("shop", resources={"api": {"budget": 100, "rate": "1000/s"}})

    @pipeline.stage(resource="api", max_attempts=2, backoff=Backoff(first_seconds=0.01, most_seconds=0.02))
    def weigh(item: Item, ctx: Context) -> Any:
        ctx.progress(1, 2, "half")
        ctx.cost("0.25", facts={"model": "m", "tokens_in": 7})
        ctx.event("user.weighed", due_at=1_794_852_441_662_444)
        if item.key == "bad":
            raise Permanent("no scales")
        if item.key == "late":
            return RetryLater(after="2h", reason="closed")
        return ctx.once("answer", lambda: {"of": item.key}, cost="0.5")

    # What is due while the questions are asked would change their answers.
    @pipeline.stage(after="weigh", backoff=Backoff(first_seconds=3600, most_seconds=7200))
    def sell(item: Item, ctx: Context) -> None:
        if item.key == "often":
            raise ValueError("nobody wants it")

    return pipeline


@pytest.fixture
def app(url: str) -> Iterator[Holdfast]:
    pipeline = shop()
    with Holdfast(url, [pipeline.spec], resources=pipeline.resources) as app:
        app.add("shop", [{"key": SCRIPT, "n": 1}, "bad", "late", "often"])
        worker = app.worker(Settings(grace_seconds=0.2, poll_seconds=0.05))

        def tick() -> None:
            states = [stage.states for one in app.status().pipelines for stage in one.stages]
            if states == [{"done": 2, "failed": 1, "retry_later": 1}, {"done": 1, "retry_later": 1}]:
                worker.stop()

        worker.run(on_tick=tick, tick_seconds=0.05)
        app.retry(key="bad", by="me", reason="try again")
        app.pause("api", until="1h", reason="lunch", resource=True)
        app.pause("shop", until="2h", reason="dinner")
        yield app


def every_answer(app: Holdfast) -> dict[str, Answer | Answers[Any]]:
    """Every answer, by its question."""
    [action] = app.actions()
    return {
        "status": app.status(),
        "summary": app.summary(),
        "workers": app.workers(),
        "items": app.items(),
        "stages": app.items(state=["failed", "retry_later", "done"]),
        "show": app.show(SCRIPT),
        "show late": app.show("late"),
        "history": app.history("bad"),
        "memos": app.memos("often"),
        "calls": app.calls(SCRIPT),
        "why": app.why("late"),
        "events": app.events(most=1000),
        "count": app.count_events(),
        "newest events": app.newest_events(most=5),
        "audit": app.audit(),
        "alerts": app.alert_status(),
        "sources": app.sources(),
        "errors": app.errors(),
        "costs": app.costs(),
        "costs by all": app.costs(("pipeline", "stage", "item", "resource", "model", "day")),
        "matrix": app.matrix("shop", rows=20),
        "throughput": app.throughput(),
        "limits": app.limits(),
        "plan": app.plan("shop", stale_only=False),
        "actions": app.actions(),
        "action": app.action(action.id),
        "doctor": app.doctor(),
    }
