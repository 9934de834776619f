"""Lists of items narrowed by what no index has: they find what a look at everything finds, a bounded slice at a time."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Backoff, Context, Holdfast, Item, Permanent, Pipeline
from holdfast.answers import ListedItem
from holdfast.engine import listed_items

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
    monkeypatch.setattr(listed_items, "LOOK", 4)
    monkeypatch.setattr(listed_items, "CHUNK", 3)
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


def test_a_list_that_is_not_narrowed_says_where_it_goes_on_and_nothing_of_a_look(app: Holdfast):
    first = app.items(most=6)
    assert (first.cursor, first.looked_at) == (first[-1].cursor, None)
    rest = app.items(after=str(first.cursor), most=6)
    assert (len(rest), rest.cursor) == (4, None)
