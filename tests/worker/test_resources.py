"""A stage uses resources that somebody has defined: its program, or the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import DefinitionError, Holdfast, Pipeline
from holdfast.engine.layout import layout
from holdfast.store import open_store
from tests.support.limited_bench import LimitedBench

pytestmark = pytest.mark.req("J14")

NOWHERE = "pipeline 'books', stage 'extract': resource 'gemini' is not defined, there is none. To define it: Pipeline"


@pytest.fixture
def run(url: str) -> Iterator[LimitedBench]:
    bench = LimitedBench(url)
    yield bench
    bench.close()


def books(resource: str = "gemini", **given: object) -> Pipeline:
    """A pipeline whose only stage uses a resource."""
    pipeline = Pipeline("books", **given)  # type: ignore[arg-type]
    pipeline.stage(name="extract", resource=resource)(lambda item, ctx: None)
    return pipeline


def nothing_is_in(url: str) -> bool:
    with Holdfast(url, create=False) as app:
        return app.status().pipelines == () and app.limits() == () and app.events() == ()


def test_a_misspelt_resource_is_refused_with_the_nearest_name_and_nothing_is_written(url: str):
    typo = books("gemni", store=url, resources={"gemini": {"budget": 1}})
    for act in (lambda: typo.add(["moby-dick"]), typo.run):
        with pytest.raises(
            DefinitionError, match=r"resource 'gemni' is not defined, did you mean 'gemini'\? To define it"
        ):
            act()
    assert nothing_is_in(url)


def test_a_store_that_has_no_tables_yet_stays_as_it_is_when_a_resource_is_not_defined(bare_url: str, tmp_path: Path):
    with pytest.raises(DefinitionError, match=NOWHERE):
        books(store=bare_url, tuning={"rate": "10/s"}).add(["moby-dick"])
    if bare_url.startswith("sqlite:"):
        assert list(tmp_path.iterdir()) == []
    else:
        store = open_store(bare_url, create=False)
        assert store.schema_version() == 0
        store.close()


def test_a_resource_may_be_defined_without_limits(run: LimitedBench):
    ran = run(books(resources={"gemini": {}}), ["moby-dick"])
    assert ran.state("moby-dick", "extract") == "done"
    assert [one.name for one in ran.app.limits()] == ["gemini"]


@pytest.mark.parametrize("how", ["defined", "tuned"])
def test_a_resource_that_the_store_defines_needs_no_second_definition(run: LimitedBench, how: str):
    other = Pipeline("films", resources={"gemini": {"budget": 1} if how == "defined" else {}})
    other.stage(name="watch", resource="gemini")(lambda item, ctx: None)
    app = run.app(other, ["vertigo"])
    if how == "tuned":
        app.tune("films", {"gemini.rate": "100/s"})
    allowed = app.limits()[0].allowed
    ran = run(books(), ["moby-dick"])
    assert ran.state("moby-dick", "extract") == "done"
    assert ran.app.limits()[0].allowed == allowed != {}


def test_a_resource_that_another_pipeline_of_the_program_defines_counts(run: LimitedBench):
    run.others = [Pipeline("films", resources={"gemini": {}})]
    run.others[0].stage(name="watch")(lambda item, ctx: None)
    assert run(books(), ["moby-dick"]).state("moby-dick", "extract") == "done"


def test_a_row_that_an_older_registration_left_for_a_name_defines_nothing(url: str, run: LimitedBench):
    """Every name that a stage used got a row without limits, typos included."""
    app = run.app(books(resources={"gemini": {}}))
    app.register()
    app.store.write(lambda tx: tx.run("add_resource", name="gemni", spec="{}", now=tx.now))
    with pytest.raises(DefinitionError, match="resource 'gemni' is not defined, did you mean 'gemini'"):
        books("gemni", store=url, resources={"gemini": {}}).run()


def test_a_stage_is_never_seen_without_the_limits_of_its_resource(url: str, monkeypatch: pytest.MonkeyPatch):
    """A worker that is there already may take its items the moment it is registered."""
    seen: list[dict[str, object]] = []
    other = open_store(url)
    with Holdfast(url, [books().spec], resources={"gemini": {"budget": "1"}}) as app:
        write = app.store.write

        def watched(*args, **given):
            done = write(*args, **given)
            known = other.read(layout)
            if known.stages:
                seen.append({one.spec.name: one.declared for one in known.resources.values()})
            return done

        monkeypatch.setattr(app.store, "write", watched)
        app.register()
    other.close()
    assert seen
    assert all(one == {"gemini": {"budget": "1"}} for one in seen)
