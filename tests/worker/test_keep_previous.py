"""A stage with `keep_previous` keeps the result that a rerun replaces, until the next one is replaced."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import DefinitionError, Permanent, Pipeline
from tests.support.bench import Bench

pytestmark = pytest.mark.req("P17")


def library(version: str, result: Any, *, keep_previous: bool = True) -> Pipeline[Any]:
    pipeline = Pipeline("p")

    @pipeline.stage(version=version, keep_previous=keep_previous)
    def summarise(item: Any, ctx: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    return pipeline


def rerun(run: Bench, pipeline: Pipeline[Any]) -> Any:
    """Run again with this code; return the stage of the item, and its result before."""
    run.app(pipeline).reprocess("p", stage="summarise", stale_only=False)
    stage = run(pipeline).stage("book", "summarise")
    return stage, stage.previous


def test_the_result_that_was_replaced_last_is_kept_with_its_version(run: Bench) -> None:
    first = run(library("1", {"pages": 10}), ["book"]).stage("book", "summarise")
    assert first.previous is None
    _, kept = rerun(run, library("2", {"pages": 11}))
    assert (kept.result, kept.version, kept.ended_at) == ({"pages": 10}, "1", first.ended_at)
    now, kept = rerun(run, library("3", {"pages": 12}))
    assert (now.result, kept.result, kept.version) == ({"pages": 12}, {"pages": 11}, "2")


def test_it_outlives_reruns_that_fail_and_a_cancelled_one(run: Bench) -> None:
    run(library("1", {"pages": 10}), ["book"])
    failed, kept = rerun(run, library("2", Permanent("torn")))
    assert (failed.state, failed.has_result, kept.result) == ("failed", False, {"pages": 10})
    _, kept = rerun(run, library("3", Permanent("torn")))
    assert kept.result == {"pages": 10}
    app = run.app(library("4", {"pages": 11}))
    app.retry(pipeline="p")
    app.cancel(pipeline="p")
    cancelled = app.show("book").stage("summarise")
    assert cancelled.state == "cancelled"
    assert cancelled.previous is not None and cancelled.previous.result == {"pages": 10}


def test_nothing_is_kept_of_a_stage_that_does_not_ask_for_it(run: Bench) -> None:
    run(library("1", 1, keep_previous=False), ["book"])
    _, kept = rerun(run, library("2", 2, keep_previous=False))
    assert kept is None
    _, kept = rerun(run, library("3", 3))
    assert kept.result == 2


def test_show_prints_both(run: Bench) -> None:
    run(library("1", "old"), ["book"])
    stage, _ = rerun(run, library("2", "new"))
    assert [line.partition(" (")[0] for line in stage.lines()[-2:]] == ['  result "new"', "  previous result"]
    assert stage.lines()[-1].endswith(') "old"') and "(version 1, ended " in stage.lines()[-1]


def test_it_is_true_or_false() -> None:
    with pytest.raises(DefinitionError, match="stage 'summarise': keep_previous 'yes' is neither True nor False"):
        library("1", 1, keep_previous="yes")  # type: ignore[arg-type]
