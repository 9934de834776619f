"""Lists of items narrowed by what no index has: they find what a look at everything finds, a bounded slice at a time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Backoff, Context, Holdfast, Item, Permanent, Pipeline
from holdfast.answers import ListedItem
from holdfast.engine import item_filters, item_pages

pytestmark = pytest.mark.req("J5", "V14")


@pytest.fixture
def app(url: str) -> Iterator[Holdfast]:
    """Nine items that cost 0 to 8; the odd ones fail, the last one twice."""
    pipeline = Pipeline("p")

    @pipeline.stage(version="7", max_attempts=2, backoff=Backoff(first_seconds=0.01, most_seconds=0.02))
    def a(item: Item, ctx: Context) -> None:
        ctx.cost(item.data["n"])
        if item.data["n"] == 8:
            raise ValueError("again")
        if item.data["n"] % 2:
            raise Permanent("odd")

    @pipeline.stage(after="a", version="8")
    def b(item: Item, ctx: Context) -> None:
        pass

    with Holdfast(url, [pipeline.spec]) as app:
        app.add("p", [{"key": f"k{n}", "n": n} for n in range(9)])
        app.run()
        app.add("p", [{"key": "later", "n": 0}])
        yield app


def places(found: Any) -> list[tuple[str, str | None]]:
    return [(one.key, one.stage) for one in found]


def every(app: Holdfast) -> list[ListedItem]:
    """All stages of items, with nothing left to narrow."""
    return [*app.items(attempts=0, most=1000)]


def test_versions_and_costs_stand_in_every_list_of_stages(app: Holdfast):
    for one in app.items(stage="a"):
        known = app.show(one.key).stage("a")
        assert (one.version, one.cost) == (known.version, known.cost)
    assert [one.cost for one in app.items(key="k8", stage="a")] == [Decimal(16)], "two attempts"
    assert [(one.version, one.cost) for one in app.items(key="later", state="pending")] == [(None, Decimal(0))]
    assert [(one.version, one.cost) for one in app.items(key="k1")] == [(None, None)], "of whole items"


def test_a_list_is_narrowed_to_what_a_look_at_everything_finds(app: Holdfast):
    rows = every(app)
    assert len(rows) == 14
    middle = sorted(one.updated_at for one in rows)[7]
    assert places(app.items(attempts=2)) == [("k8", "a")]
    assert places(app.items(version="8")) == [(f"k{n}", "b") for n in (0, 2, 4, 6)]
    assert app.items(version="9") == ()
    assert places(app.items(cost="5")) == [(f"k{n}", "a") for n in (5, 6, 7, 8)]
    assert places(app.items(cost=5, state="failed")) == [("k5", "a"), ("k7", "a")]
    assert places(app.items(since=middle)) == places(one for one in rows if one.updated_at >= middle)
    assert places(app.items(until=middle)) == places(one for one in rows if one.updated_at < middle)
    assert places(app.items(key="k5", cost=1, version="7", attempts=1)) == [("k5", "a")]


@pytest.mark.parametrize("most", [1, 3, 100])
def test_slices_go_on_until_everything_was_looked_at(app: Holdfast, most: int, monkeypatch: pytest.MonkeyPatch):
    whole = places(app.items(cost=2))
    monkeypatch.setattr(item_filters, "LOOK", 4)
    monkeypatch.setattr(item_filters, "CHUNK", 3)
    found: list[Any] = []
    looked, after = 0, "0"
    while True:
        page = app.items(cost=2, after=after, most=most)
        assert page.looked_at is not None and page.looked_at <= 4 and len(page) <= most
        found += places(page)
        looked += page.looked_at
        if page.cursor is None:
            break
        assert page.looked_at > 0, "every slice goes on"
        after = page.cursor
    assert found == whole
    assert looked == 14


@pytest.mark.parametrize("look", [2, 4])
def test_a_list_narrowed_by_time_passes_over_what_did_not_change(
    app: Holdfast, look: int, monkeypatch: pytest.MonkeyPatch
):
    """Slice by slice it finds what a look at everything finds, wherever in the list that is."""
    rows = every(app)
    monkeypatch.setattr(item_filters, "LOOK", look)
    monkeypatch.setattr(item_filters, "CHUNK", 2)
    monkeypatch.setattr(item_filters, "PASS_OVER", 3)
    for moment in {one.updated_at for one in rows}:
        assert going_on(app, since=moment) == places(one for one in rows if one.updated_at >= moment)
        assert going_on(app, until=moment) == places(one for one in rows if one.updated_at < moment)
        failed = places(one for one in rows if one.updated_at >= moment and one.state == "failed")
        assert going_on(app, since=moment, state="failed") == failed


def test_a_slice_by_time_goes_further_than_one_that_reads_every_row(app: Holdfast, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(item_filters, "LOOK", 2)
    monkeypatch.setattr(item_filters, "CHUNK", 2)
    late = max(one.updated_at for one in every(app))
    assert app.items(attempts=3).cursor is not None
    page = app.items(since=late + timedelta(days=1))
    assert (page.cursor, len(page)) == (None, 0)


def test_a_part_of_an_error_is_searched_for_slice_by_slice(app: Holdfast, monkeypatch: pytest.MonkeyPatch):
    whole = places(app.items(error="odd"))
    assert whole == [(f"k{n}", "a") for n in (1, 3, 5, 7)]
    monkeypatch.setattr(item_pages, "SEARCHED", 3)
    first = app.items(error="odd")
    assert (places(first), first.looked_at, first.cursor is None) == (whole[:1], 2, False)
    assert going_on(app, error="odd") == whole
    assert going_on(app, error="odd", key="k5") == whole[2:3]
    assert going_on(app, error="of no kind") == []


def test_what_hardly_any_item_has_is_searched_for_slice_by_slice(app: Holdfast, monkeypatch: pytest.MonkeyPatch):
    """A prefix that many keys have, and a state or a cause that few of them have, is found wherever it is."""
    asked: list[dict[str, Any]] = [
        {"key": "k*"},
        {"key": "*7"},
        {"pipeline": "p", "key": "l*"},
        {"key": "k*", "state": "failed"},
        {"key": "l*", "state": ["pending", "failed"]},
        {"key": ["k*", "k8"], "stage": "a"},
        {"state": "done", "stage": "b"},
        {"key": "k*", "state": "done", "since": every(app)[0].updated_at},
        {"group": app.errors()[0].group},
    ]
    whole = [going_on(app, **one) for one in asked]
    assert all(whole)
    for name in ("FEW", "KEYS", "SEARCHED", "PASSED_BY", "STRETCH"):
        monkeypatch.setattr(item_pages, name, 1)
    assert [going_on(app, **one) for one in asked] == whole
    rare = app.items(key="l*", state="pending")
    assert (rare.cursor is None, rare.looked_at) == (True, None)
    assert app.items(state="done", stage="b", after=1).looked_at == 1


def going_on(app: Holdfast, **which: Any) -> list[tuple[str, str | None]]:
    """All that a list finds, slice by slice."""
    found: list[Any] = []
    after: str | None = "0"
    while after is not None:
        page = app.items(after=after, **which)
        assert page.cursor != after, "every slice goes on"
        found += places(page)
        after = page.cursor
    return found


def test_a_list_that_is_not_narrowed_says_where_it_goes_on_and_nothing_of_a_look(app: Holdfast):
    first = app.items(most=6)
    assert (first.cursor, first.looked_at) == (first[-1].cursor, None)
    rest = app.items(after=str(first.cursor), most=6)
    assert (len(rest), rest.cursor) == (4, None)
