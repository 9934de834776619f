"""Stale by type: results that no longer fit the type of their stage are found by `plan` and made anew by `reprocess`."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from holdfast import Context, Holdfast, Item, Pipeline
from holdfast.engine import plan_and_reprocess
from holdfast.engine.recount import check
from tests.support.bench import Bench, Ran

pytestmark = pytest.mark.req("P13", "J13")


@pytest.fixture
def run(url: str) -> Any:
    bench = Bench(url)
    yield bench
    bench.close()


class Old(msgspec.Struct, rename={"text": "words"}):
    text: str | None


@dataclasses.dataclass
class New:
    words: str


@dataclasses.dataclass
class Wider:
    words: str | None
    language: str = "en"


def deployed(kind: Any, version: str = "1") -> Pipeline:
    """The pipeline with this type of the results of its first stage."""
    pipeline = Pipeline("p")

    @pipeline.stage(returns=kind, version=version)
    def extract(item: Item, ctx: Context) -> Any:
        return {"words": item.data["text"]}

    @pipeline.stage(after=extract)
    def use(item: Item, ctx: Context) -> Any:
        return item.key

    return pipeline


ITEMS: list[dict[str, Any]] = [
    {"key": "fits", "text": "x"},
    {"key": "unfit", "text": None},
    {"key": "fits too", "text": "y"},
]


def why(app: Holdfast) -> dict[str, dict[str, int]]:
    return {one.stage: dict(one.why) for one in app.plan("p")}


def walks(app: Holdfast) -> list[str]:
    """Why items were walked for a plan."""
    found: list[str] = []
    app.plan("p", on_walk=lambda reason, _: found.append(reason))
    return found


@pytest.fixture
def finished(run: Bench) -> Ran:
    return run(deployed(Old), ITEMS)


def test_nothing_is_stale_and_no_item_is_read_while_the_type_is_the_same(run: Bench, finished: Ran) -> None:
    app = run.app(deployed(Old))
    assert why(app) == {}
    assert walks(app) == []
    assert app.store.read(lambda tx: plan_and_reprocess.why_every_item(tx, "p", None)) is None


def test_results_that_no_longer_fit_are_stale_by_type_and_those_that_fit_are_not(run: Bench, finished: Ran) -> None:
    app = run.app(deployed(New))
    assert why(app) == {"extract": {"type": 1}, "use": {"upstream": 1}}
    assert "1 type" in str(app.plan("p"))


def test_why_every_item_is_read_is_said(run: Bench, finished: Ran) -> None:
    app = run.app(deployed(New))
    assert (
        app.store.read(lambda tx: plan_and_reprocess.why_every_item(tx, "p", None, app._today))
        == plan_and_reprocess.TYPE
    )


def test_a_type_that_old_values_fit_makes_nothing_stale(run: Bench, finished: Ran) -> None:
    assert why(run.app(deployed(Wider))) == {}


def test_a_reprocess_makes_what_does_not_fit_anew_and_then_nothing_is_stale(run: Bench, finished: Ran) -> None:
    pipeline = deployed(New)
    app = run.app(pipeline)
    app.add("p", [{"key": "unfit", "text": "z"}])
    assert why(app)["extract"] == {"type": 1}
    assert app.reprocess("p") == {"extract": 1}
    ran = run(pipeline)
    assert ran.result("unfit", "extract") == {"words": "z"}
    assert why(ran.app) == {}
    assert check(ran.app.store) == []


def test_results_that_were_checked_against_no_type_are_looked_at(run: Bench) -> None:
    run(deployed(None), ITEMS)
    assert why(run.app(deployed(New))) == {"extract": {"type": 1}, "use": {"upstream": 1}}


def test_a_version_that_changed_is_the_reason_before_the_type(run: Bench, finished: Ran) -> None:
    assert why(run.app(deployed(New, version="2")))["extract"] == {"version": 3}


def test_without_a_type_and_in_a_process_that_does_not_know_it_nothing_is_stale_by_type(
    run: Bench, finished: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why(run.app(deployed(None))) == {}
    with Holdfast(run.url, [deployed(New).spec]) as app:
        app.register()
    monkeypatch.setattr("holdfast.model.typed._known", {})
    with Holdfast(run.url) as app:
        assert why(app) == {}


def test_counts_by_type_are_kept_when_results_are_sent_back_accepted_and_deleted(run: Bench, finished: Ran) -> None:
    app = run.app(deployed(New, version="2"))
    app.register()
    app.retry(pipeline="p", stage="extract", key="fits", states=["done"])
    assert check(app.store) == []
    app.cancel(pipeline="p", stage="extract", key="fits")
    assert check(app.store) == []
    assert app.accept("p", stage="extract", key="fits")
    assert check(app.store) == []
    app.delete(pipeline="p", key="fits too")
    assert check(app.store) == []
    assert app.check() == []
