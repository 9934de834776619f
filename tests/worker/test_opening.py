"""How a worker begins."""

from __future__ import annotations

import logging

import pytest

from holdfast import Holdfast, Pipeline, points
from tests.support.bench import Bench
from tests.support.kinds import keys


def test_what_waits_is_begun_before_the_worker_looks_after_others(run: Bench, monkeypatch: pytest.MonkeyPatch):
    """A pass over the dead, the due and the rest takes its time; whoever starts a worker waits for the handlers."""
    pipeline = Pipeline("p")
    pipeline.stage(name="work")(lambda item, ctx: None)
    reached: list[str] = []
    monkeypatch.setattr(points, "listener", reached.append)
    # On a slow machine, too: it looks after others before that only once a poll has passed.
    run(pipeline, keys(3), poll_seconds=60)
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


def test_a_program_logs_that_it_made_a_store_and_warns_if_it_has_no_items(
    bare_url: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, logger="holdfast.app")
    pipeline = Pipeline("p", store=bare_url)
    pipeline.stage(name="work")(lambda item, ctx: None)
    pipeline.run()
    said = [(one.levelname, one.getMessage()) for one in caplog.records if one.name.startswith("holdfast.app")]
    [where] = {text.removeprefix("made a new store: ") for level, text in said if level == "INFO"}
    assert [text.partition(";")[0] for level, text in said if level == "WARNING"] == [
        f"{where} is a new store without items"
    ]
    caplog.clear()
    pipeline.run()
    assert not [one for one in caplog.records if one.name.startswith("holdfast.app")]


def test_a_program_that_adds_items_to_the_store_it_makes_does_not_warn(bare_url: str, caplog: pytest.LogCaptureFixture):
    pipeline = Pipeline("p", store=bare_url)
    pipeline.stage(name="work")(lambda item, ctx: None)
    with Holdfast(bare_url, [pipeline.spec]) as app:
        app.add("p", ["a"])
        app.run()
    said = [one for one in caplog.records if one.name.startswith("holdfast.app")]
    assert [one.message for one in said if one.levelname == "WARNING"] == []
