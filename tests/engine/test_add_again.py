"""Adding what is there: merged by a function, all or nothing, and free of charge where nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import merge_provenance
from holdfast.app import Holdfast
from holdfast.engine import add as adding
from holdfast.errors import UsageError
from tests.support.effort import effort
from tests.support.harness import connected
from tests.support.together import at_once, listening, meeting_at

pytestmark = pytest.mark.req("J12")

#: Two transactions of them, at least.
MANY = effort(2 * adding.CHUNK, 100_000)


@pytest.fixture
def hold(url, app, clock) -> Iterator[Holdfast]:
    app.pipeline({"a": [], "b": ["a"]})
    with Holdfast(url, clock=clock) as hold:
        yield hold


def data_of(app) -> dict[str, Any]:
    return {row[0]: app.data(row[0]) for row in app.query("SELECT key FROM holdfast_items ORDER BY key")}


def unite(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {"seen": sorted({*old.get("seen", []), *new.get("seen", [])})}


# Merging --------------------------------------------------------------------------------------------------------------


def test_new_known_and_changed_items_come_in_one_call_and_are_counted_apart(app, hold):
    hold.add("p", [{"key": "x", "n": 1}, {"key": "y", "n": 1}])
    assert hold.add("p", [{"key": "x", "n": 1}, {"key": "y", "n": 2}, {"key": "z", "n": 1}]) == (1, 1, 1)
    assert data_of(app) == {"x": {"n": 1}, "y": {"n": 2}, "z": {"n": 1}}
    assert app.counts() == app.recount() == {"a": {"pending": 3}}


def test_a_merge_function_sees_the_data_of_both_without_the_key(app, hold):
    seen = []

    def merge(old, new):
        seen.append((old, new))
        return {**old, **new}

    hold.add("p", [{"key": "x", "old": 1}], merge=merge)
    assert seen == []
    assert hold.add("p", [{"key": "x", "new": 2}, {"key": "y"}], merge=merge) == (1, 1, 0)
    assert seen[0] == ({"old": 1}, {"new": 2})
    assert data_of(app) == {"x": {"old": 1, "new": 2}, "y": {}}


def test_a_merge_function_may_change_what_it_is_given(app, hold):
    def merge(old, new):
        old["seen"] += new.pop("seen")
        return old

    hold.add("p", [{"key": "x", "seen": [1]}])
    hold.add("p", [{"key": "x", "seen": [2]}], merge=merge)
    assert data_of(app) == {"x": {"seen": [1, 2]}}


def test_the_shipped_merge_function_keeps_who_found_an_item_and_when_first(app, hold):
    hold.add("p", [{"key": "x", "topics": ["whales"], "first_seen": "2026-01-02", "title": "Moby"}])
    found = {"key": "x", "topics": ["ships", "whales"], "first_seen": "2026-02-03", "title": "Moby-Dick"}
    assert hold.add("p", [found], merge=merge_provenance) == (0, 1, 0)
    assert data_of(app)["x"] == {
        "topics": ["whales", "ships"],
        "first_seen": "2026-01-02",
        "last_seen": "2026-02-03",
        "title": "Moby-Dick",
    }
    assert hold.add("p", [found], merge=merge_provenance) == (0, 0, 1)


@pytest.mark.req("J12")
def test_a_list_in_the_store_outlives_a_search_that_says_one_thing_or_nothing(app, hold):
    by_desk = merge_provenance(fields=["desks", "meta.queries"])
    hold.add("p", [{"key": "x", "desks": ["city"], "meta": {"queries": ["ferry"]}}])
    hold.add("p", [{"key": "x", "desks": "coast", "meta": {"queries": None}}], merge=by_desk)
    hold.add("p", [{"key": "x", "desks": None, "meta": "lost"}], merge=by_desk)
    assert data_of(app)["x"] == {"desks": ["city", "coast"], "meta": {"queries": ["ferry"]}}


def test_merged_data_does_not_send_finished_stages_back(app, hold):
    hold.add("p", ["x"])
    app.run_through()
    hold.add("p", [{"key": "x", "seen": [1]}], merge=unite)
    assert app.states("x") == {"a": "done", "b": "done"}


@pytest.mark.parametrize("database", ["postgres"])
def test_two_who_merge_into_one_item_at_once_lose_nothing_of_each_other(app, hold):
    app.add([{"key": "x", "seen": [0]}])
    with connected(app) as other, meeting_at("store.read_by_keys", 2):
        at_once(
            lambda: app.add([{"key": "x", "seen": [1]}], merge=unite),
            lambda: other.add([{"key": "x", "seen": [2]}], merge=unite),
        )
    assert data_of(app) == {"x": {"seen": [0, 1, 2]}}


@pytest.mark.parametrize("database", ["postgres"])
def test_two_who_add_one_key_at_once_are_merged_whoever_comes_first(app, hold):
    with connected(app) as other, meeting_at("store.insert_items", 2):
        counts = at_once(
            lambda: app.add([{"key": "x", "seen": [1]}], merge=unite),
            lambda: other.add([{"key": "x", "seen": [2]}], merge=unite),
        )
    assert sorted(counts) == [(0, 1, 0), (1, 0, 0)]
    assert data_of(app) == {"x": {"seen": [1, 2]}}
    assert app.counts() == app.recount() == {"a": {"pending": 1}}


# Merge functions that go wrong ----------------------------------------------------------------------------------------


def goes_wrong(old, new):
    raise KeyError("topics")


WRONG = {
    "raises": (goes_wrong, "the merge function goes_wrong raised KeyError: 'topics'"),
    "returns nothing": (lambda old, new: None, "returned NoneType, not an object"),
    "returns a list": (lambda old, new: [old, new], "returned list, not an object"),
    "returns a text": (lambda old, new: "x", "returned str, not an object"),
    "returns what JSON cannot hold": (lambda old, new: {"at": {1, 2}}, "a value of type set at at: give a list"),
    "returns a number JSON does not have": (lambda old, new: {"n": float("nan")}, "the number nan at n"),
    "cannot be called": (lambda one: {}, "raised TypeError"),
}


def test_a_merge_function_that_goes_wrong_is_named_with_its_item_and_nothing_is_written(app, hold):
    hold.add("p", [{"key": "x", "n": 1}])
    before = data_of(app)
    for merge, says in WRONG.values():
        with pytest.raises(UsageError, match="item 'x': the merge function") as raised:
            hold.add("p", [{"key": "new"}, {"key": "x", "n": 2}], merge=merge)
        assert says in str(raised.value)
        assert data_of(app) == before
    assert app.counts() == app.recount()


def picky(old, new):
    if new.get("bad"):
        raise ValueError("no")
    return {**old, **new}


def test_a_merge_function_that_goes_wrong_in_the_middle_of_many_writes_none_of_them(app, hold):
    """More items than go into one transaction: the last of them is the bad one."""
    many = adding.CHUNK + 10
    hold.add("p", [{"key": f"k{many - 1}"}])
    items = [{"key": f"k{number}", "bad": number == many - 1} for number in range(many)]
    with pytest.raises(UsageError, match=f"item 'k{many - 1}'"):
        hold.add("p", items, merge=picky)
    assert list(data_of(app)) == [f"k{many - 1}"]


# Nothing changed ------------------------------------------------------------------------------------------------------


def rows_written(app, hold) -> Any:
    """Something that differs if a row of any table was written; on SQLite, through the connection of `hold`."""
    driver = hold.store.driver
    if driver.dialect.name == "sqlite":
        return driver.connection.total_changes
    schema = driver.dialect.schema_name
    tables = [row[0] for row in app.query("SELECT tablename FROM pg_tables WHERE schemaname = :schema", schema=schema)]
    assert len(tables) > 10
    # Every version of a row has a place and a transaction of its own.
    seen = "COUNT(*), SUM(CAST(hashtext(CAST(t.ctid AS TEXT) || CAST(t.xmin AS TEXT)) AS BIGINT))"
    return {table: app.query(f"SELECT {seen} FROM holdfast_{table} t") for table in tables}


@pytest.mark.direct("a statement that another client dropped is run twice")
def test_adding_many_unchanged_items_again_writes_no_row_and_looks_once_at_each(app, hold):
    items = [{"key": f"k{number}", "topics": ["a", "b"], "title": f"Number {number}"} for number in range(MANY)]
    assert hold.add("p", items) == (MANY, 0, 0)
    before = rows_written(app, hold)
    reached: list[str] = []
    with listening(reached.append):
        assert hold.add("p", items) == (0, 0, MANY)
    transactions = 1 if MANY <= adding.WHOLE_ITEMS else MANY // adding.CHUNK
    assert reached == ["store.look_up_keys"] * transactions
    assert rows_written(app, hold) == before
    # One of them changed: that one row is written, and its neighbours are not.
    items[MANY // 2]["title"] = "another"
    app.clock.advance(1)
    assert hold.add("p", items) == (0, 1, MANY - 1)
    assert app.query("SELECT key FROM holdfast_items WHERE updated_at = :now", now=app.clock.now()) == [
        (f"k{MANY // 2}",)
    ]


def test_merging_unchanged_items_again_writes_no_item(app, hold):
    items = [{"key": f"k{number}", "topics": ["a", "b"]} for number in range(3000)]
    hold.add("p", items)
    app.clock.advance(1)
    assert hold.add("p", items, merge=merge_provenance) == (0, 0, 3000)
    assert app.query("SELECT COUNT(*) FROM holdfast_items WHERE updated_at = :now", now=app.clock.now()) == [(0,)]


def test_merging_unchanged_items_again_writes_no_row_at_all(app, hold):
    items = [{"key": f"k{number}", "topics": ["a"]} for number in range(100)]
    # The first time, the store learns what is provenance.
    hold.add("p", items, merge=merge_provenance)
    before = rows_written(app, hold)
    assert hold.add("p", items, merge=merge_provenance) == (0, 0, 100)
    assert rows_written(app, hold) == before


def test_the_order_of_fields_is_a_change_of_text_but_not_of_input(app, hold):
    """The text is stored as it came; no result is stale for it."""
    hold.add("p", [{"key": "x", "a": 1, "b": 2}])
    app.run_through()
    assert hold.add("p", [{"key": "x", "b": 2, "a": 1}]) == (0, 1, 0)
    assert hold.plan("p") == ()
