"""What a stage reads is what its results are made from: a change of anything else in an item's data makes nothing stale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast.app import Holdfast
from holdfast.errors import DefinitionError
from holdfast.model.declared_reads import Reading
from holdfast.model.stage import StageSpec
from tests.support.harness import App, handler

pytestmark = pytest.mark.req("J13", "J12")

CHAIN = {"fetch": [], "analyse": ["fetch"]}
PAGE = {"key": "page", "url": "u", "meta": {"html": "h", "seen": 1}, "queries": ["tide"]}


@pytest.fixture
def hold(url, app, clock) -> Iterator[Holdfast]:
    with Holdfast(url, clock=clock) as hold:
        yield hold


def deploy(app: App, fetch: Sequence[str] | None = None, analyse: Sequence[str] | None = None) -> None:
    """The pipeline, whose stages read this."""
    app.pipeline(CHAIN, only={"fetch": {"reads": fetch}, "analyse": {"reads": analyse}})


def change(app: App, **new: Any) -> None:
    app.add([{**PAGE, **new}])


def stale(hold: Holdfast) -> dict[str, dict[str, int]]:
    return {one.stage: dict(one.why) for one in hold.plan("p")}


def unite(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A merge function of a team's own."""
    return {**old, **new, "queries": [*old.get("queries", ()), *new.get("queries", ())]}


unite.provenance = frozenset({"queries"})  # type: ignore[attr-defined]


def test_a_second_search_that_finds_a_known_page_makes_nothing_stale(app, hold):
    deploy(app, ["url"], ["url", "meta.html"])
    app.add([PAGE])
    app.run_through("text")
    change(app, queries=["tide", "ferry"])
    assert stale(hold) == {}
    change(app, meta={"html": "h", "seen": 2})
    assert stale(hold) == {}
    change(app, meta={"html": "another", "seen": 2})
    assert stale(hold) == {"analyse": {"input changed": 1}}
    change(app, url="elsewhere", meta={})
    assert stale(hold) == {"fetch": {"input changed": 1}, "analyse": {"input changed": 1}}
    change(app)
    assert stale(hold) == {}, "all is as it was"


def test_what_the_stages_before_it_put_out_is_input_whatever_a_stage_reads(app, hold):
    deploy(app, ["url"], [])
    app.add([PAGE])
    app.run_through("text")
    change(app, url="elsewhere")
    assert stale(hold) == {"fetch": {"input changed": 1}, "analyse": {"upstream": 1}}
    hold.reprocess("p")
    [lease] = app.claim(stage="fetch")
    app.complete(lease, "another text")
    assert app.states("page") == {"fetch": "done", "analyse": "pending"}


def test_a_change_of_what_is_read_makes_nothing_stale(app, hold):
    deploy(app)
    app.add([PAGE])
    app.run_through("text")
    for fetch, analyse in ((["url"], ["url", "meta.html"]), (["url", "queries"], None), (None, ["url"]), (None, None)):
        deploy(app, fetch, analyse)
        assert stale(hold) == {}


def test_results_from_before_it_was_said_what_is_read_are_not_made_stale_by_what_is_not(app, hold):
    """A store of years: everything counted as read. Then the stages say what they read, and the searches go on."""
    deploy(app)
    app.add([PAGE])
    app.run_through("text")
    deploy(app, ["url"], ["meta"])
    change(app, queries=["tide", "ferry"])
    assert stale(hold) == {}
    deploy(app, ["meta.seen"], ["meta"])
    change(app, url="elsewhere", queries=["none"])
    assert stale(hold) == {}
    change(app, meta={"html": "h", "seen": 2})
    assert stale(hold) == {"fetch": {"input changed": 1}, "analyse": {"input changed": 1}}


def test_what_was_stale_before_it_was_said_what_is_read_stays_so(app, hold):
    deploy(app)
    app.add([PAGE])
    app.run_through("text")
    change(app, url="elsewhere")
    deploy(app, ["url"], ["url"])
    change(app, url="elsewhere", queries=["none"])
    assert stale(hold) == {"fetch": {"input changed": 1}, "analyse": {"input changed": 1}}


@pytest.mark.parametrize("first", ["results", "the merge function"])
def test_provenance_is_input_of_no_stage_that_does_not_name_it(app, hold, first):
    deploy(app, None, ["url", "queries"])
    if first == "the merge function":
        hold.add("p", [{**PAGE, "key": "other"}], merge=unite)
    app.add([PAGE])
    app.run_through("text")
    hold.add("p", [{**PAGE, "queries": ["ferry"]}], merge=unite)
    assert app.query("SELECT data FROM holdfast_items WHERE key = 'page'")[0][0].count("ferry") == 1
    assert stale(hold) == {"analyse": {"input changed": 1}}
    hold.add("p", [{**PAGE, "meta": 3}], merge=unite)
    assert stale(hold) == {"fetch": {"input changed": 1}, "analyse": {"input changed": 1}}


def test_an_item_that_has_no_such_place_is_told_from_one_where_it_is_empty(app, hold):
    assert Reading(("a.b",)).digest({"a": {"b": None}}) != Reading(("a.b",)).digest({"a": {}})
    deep = Reading(None, ("a.b", "c"))
    assert deep.digest({"a": {"b": 1, "d": 2}, "c": 3}) == deep.digest({"a": {"d": 2}}) != deep.digest({"a": {"d": 3}})
    assert Reading(("a.b",)).digest({"a": 7}) == Reading(("a.b",)).digest({}) == Reading(("a.b",)).digest([])


@pytest.mark.parametrize("reads", [("",), ("a..b",), (7,), ("a.",)])
def test_what_is_no_path_is_refused(reads):
    with pytest.raises(DefinitionError, match=r"stage 'fetch': reads=.*: give paths into the data"):
        StageSpec("fetch", handler, reads=reads)


# Accept -----------------------------------------------------------------------------------------------------------------


def test_what_was_made_from_an_input_that_has_changed_can_be_accepted(app, hold):
    deploy(app)
    app.add([PAGE, {**PAGE, "key": "other"}])
    app.run_through("text")
    app.add([{**PAGE, "n": 1}, {**PAGE, "key": "other", "n": 1}])
    assert hold.accept("p", key="page", dry_run=True) == {"fetch": 1, "analyse": 1}
    assert hold.accept("p", stage="fetch", key="page", by="me", reason="only a counter") == {"fetch": 1}
    [event] = hold.events(event="accepted")
    assert (event.item, event.stage, event.data["why"]) == ("page", "fetch", "input changed")
    assert stale(hold) == {"fetch": {"input changed": 1}, "analyse": {"input changed": 2}}
    assert hold.accept("p") == {"fetch": 1, "analyse": 2}
    assert (stale(hold), hold.accept("p")) == ({}, {})
    assert app.counts() == app.recount()
    app.add([{**PAGE, "n": 2}])
    assert stale(hold) == {"fetch": {"input changed": 1}, "analyse": {"input changed": 1}}


def test_an_older_version_and_a_changed_input_are_accepted_at_once(app, hold):
    deploy(app)
    app.add([PAGE])
    app.run_through("text")
    app.pipeline(CHAIN, version="2")
    app.add([{**PAGE, "n": 1}])
    assert hold.accept("p") == {"fetch": 1, "analyse": 1}
    assert stale(hold) == {}
    assert app.outcome("page", "fetch")["version"] == "2"
