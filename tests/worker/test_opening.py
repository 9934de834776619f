"""How a worker begins."""

from __future__ import annotations

import pytest

from holdfast import Pipeline, points
from tests.support.bench import Bench
from tests.support.kinds import keys


def test_what_waits_is_begun_before_the_worker_looks_after_others(run: Bench, monkeypatch: pytest.MonkeyPatch):
    """A pass over the dead, the due and the rest takes its time; whoever starts a worker waits for the handlers."""
    pipeline = Pipeline("p")
    pipeline.stage(name="work")(lambda item, ctx: None)
    reached: list[str] = []
    monkeypatch.setattr(points, "listener", reached.append)
    run(pipeline, keys(3))
    assert reached.index("run.before") < reached.index("store.neighbours")
    assert "store.take_due" in reached


def test_a_worker_that_finds_nothing_looks_after_others_at_once(run: Bench, monkeypatch: pytest.MonkeyPatch):
    pipeline = Pipeline("p")
    pipeline.stage(name="work")(lambda item, ctx: None)
    reached: list[str] = []
    monkeypatch.setattr(points, "listener", reached.append)
    run(pipeline, [])
    # And before it says that nothing is left to do.
    assert reached.index("store.any_open") > max(reached.index("store.neighbours"), reached.index("store.take_due"))
