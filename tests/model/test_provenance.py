"""`merge_provenance`: who found an item, for which topic and by which query, united over every time it was found."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import UsageError
from holdfast import merge_provenance as merge
from holdfast.model import codec

pytestmark = pytest.mark.req("J12")

LISTS = ("topics", "queries", "discovery_sources", "sources")


def test_topics_queries_and_sources_of_both_are_united_in_order_without_repeats():
    old = {"topics": ["whales", "ships"], "queries": ["q1"], "sources": ["arxiv"]}
    new = {"topics": ["ships", "storms", "whales", "islands"], "queries": ["q2"], "sources": ["arxiv"]}
    assert merge(old, new) == {
        "topics": ["whales", "ships", "storms", "islands"],
        "queries": ["q1", "q2"],
        "sources": ["arxiv"],
    }


def test_repeats_that_were_there_before_go_too():
    assert merge({"topics": ["a", "a"]}, {"topics": ["b", "b"]}) == {"topics": ["a", "b"]}


def test_entries_may_be_objects_and_lists():
    engine = {"name": "arxiv", "page": 2}
    assert merge({"sources": [engine, ["x"]]}, {"sources": [dict(engine), ["x"], {"name": "core"}]}) == {
        "sources": [engine, ["x"], {"name": "core"}]
    }


@pytest.mark.parametrize(
    ("old", "new", "stands"),
    [
        ("2026-01-02", "2026-02-03", "2026-01-02"),
        ("2026-02-03", "2026-01-02", "2026-01-02"),
        (1700000000, 1600000000.5, 1600000000.5),
        (None, "2026-02-03", "2026-02-03"),
        ("", "2026-02-03", "2026-02-03"),
        ([], "2026-02-03", "2026-02-03"),
        ("2026-01-02", None, "2026-01-02"),
        ("2026-01-02", {"when": 3}, "2026-01-02"),
        (True, 1700000000, 1700000000),
        (1700000000, "2020-01-01", 1700000000),
        ("2026-01-02", 5, "2026-01-02"),
    ],
)
def test_the_first_time_it_was_seen_stands_and_what_is_no_time_counts_as_nothing(old: Any, new: Any, stands: Any):
    """Numbers and texts cannot be compared with each other: of the two, the one that was there stands."""
    assert merge({"first_seen": old}, {"first_seen": new})["first_seen"] == stands


def test_a_first_time_is_kept_though_the_new_data_has_none():
    assert merge({"first_seen": "2026-01-02", "title": "old"}, {"title": "new"}) == {
        "first_seen": "2026-01-02",
        "title": "new",
    }


def test_the_last_time_it_was_seen_is_kept_beside_the_first():
    found = [{"first_seen": "2026-02-03"}, {"first_seen": "2026-01-02"}, {"last_seen": "2026-02-01"}, {}]
    merged: dict[str, Any] = {}
    for one in found:
        merged = merge(merged, one)
    assert merged == {"first_seen": "2026-01-02", "last_seen": "2026-02-03"}
    assert merge({"first_seen": 5}, {"first_seen": 5}) == {"first_seen": 5}
    assert merge({"last_seen": 5}, {}) == {"first_seen": 5, "last_seen": 5}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("nothing", [None, ""])
def test_nothing_takes_no_list_away_and_adds_nothing_to_it(name: str, nothing: Any):
    assert merge({name: nothing}, {name: ["x"]})[name] == ["x"]
    assert merge({name: ["x"]}, {name: nothing})[name] == ["x"]
    assert merge({name: nothing}, {name: nothing})[name] == []


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("single", [7, 0, True, False, {"a": 1}, {}, "y", 0.5])
def test_a_single_value_that_meets_a_list_is_one_more_entry(name: str, single: Any):
    assert merge({name: single}, {name: ["x"]})[name] == [single, "x"]
    assert merge({name: ["x"]}, {name: single})[name] == ["x", single]
    assert merge({name: single}, {name: single})[name] == [single]


def test_one_is_not_true_and_lists_within_lists_stay_what_they_are():
    merged = merge({"topics": [1, ["a"], [["b"]]]}, {"topics": [True, "a", [["b"]]]})["topics"]
    assert codec.encode(merged) == '[1,["a"],[["b"]],true,"a"]'


# A team's own fields --------------------------------------------------------------------------------------------------


def test_fields_of_ones_own_are_united_instead_and_the_new_value_of_the_others_stands():
    by_desk = merge(fields=["desks", "meta.queries"])
    old = {"desks": ["city"], "topics": ["a"], "meta": {"queries": "ferry", "html": "old"}, "first_seen": 1}
    new = {"desks": "coast", "topics": ["b"], "meta": {"queries": ["tide"], "html": "new"}, "first_seen": 2}
    assert by_desk(old, new) == {
        "desks": ["city", "coast"],
        "topics": ["b"],
        "meta": {"queries": ["ferry", "tide"], "html": "new"},
        "first_seen": 1,
        "last_seen": 2,
    }
    assert (old["meta"]["queries"], new["meta"]["queries"]) == ("ferry", ["tide"])


@pytest.mark.parametrize("new", [{}, {"meta": {}}, {"meta": None}, {"meta": "gone"}, {"meta": {"queries": None}}])
def test_a_list_that_lies_deeper_is_not_lost_with_what_was_around_it(new: dict[str, Any]):
    by_query = merge(fields=["meta.queries"])
    assert by_query({"meta": {"queries": ["ferry"]}}, new)["meta"] == {"queries": ["ferry"]}


def test_where_there_was_no_list_nothing_is_put_in_the_place_of_what_is_new():
    assert merge(fields=["meta.queries"])({"meta": {"queries": []}}, {"meta": "gone"}) == {"meta": "gone"}
    assert merge(fields=["meta.queries"])({"meta": {"html": "x"}}, {"meta": "gone"}) == {"meta": "gone"}


def test_it_says_which_fields_are_provenance():
    assert merge.provenance == {*LISTS, "first_seen", "last_seen"}
    assert merge(fields=["desks"]).provenance == {"desks", "first_seen", "last_seen"}
    assert merge(fields=["desks"]) == merge(fields=["desks"]) != merge


@pytest.mark.parametrize("wrong", ["topics", [], [7], ["a..b"], [""]])
def test_what_is_no_list_of_names_is_refused(wrong: Any):
    with pytest.raises(UsageError, match="give a list of names"):
        merge(fields=wrong)


@pytest.mark.parametrize("name", LISTS)
def test_a_single_text_counts_as_a_list_of_one_and_empty_entries_are_left_out(name: str):
    assert merge({name: "x"}, {name: ["y", "", None, "x"]})[name] == ["x", "y"]


@pytest.mark.parametrize("name", LISTS)
def test_a_list_that_one_side_has_is_kept_and_one_that_none_has_is_not_made(name: str):
    assert merge({name: ["x"]}, {"n": 1}) == {name: ["x"], "n": 1}
    assert merge({"n": 1}, {name: ["x"]}) == {"n": 1, name: ["x"]}
    assert name not in merge({"n": 1}, {"m": 2})


def test_of_every_other_field_the_new_one_stands_and_none_is_lost():
    assert merge({"title": "old", "pages": 3}, {"title": "new", "doi": "10/x"}) == {
        "title": "new",
        "pages": 3,
        "doi": "10/x",
    }


def test_what_was_given_is_not_changed():
    old, new = {"topics": ["a"], "first_seen": 1}, {"topics": ["b"], "first_seen": 2}
    merged = merge(old, new)
    merged["topics"].append("c")
    assert (old, new) == ({"topics": ["a"], "first_seen": 1}, {"topics": ["b"], "first_seen": 2})


# For any data whatever --------------------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, 1.0, 2.5]), st.sampled_from(["", "a", "b", "c"])
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("kl"), inner, max_size=2)),
    max_leaves=6,
)
data = st.dictionaries(st.sampled_from([*LISTS, "first_seen", "last_seen", "title"]), values, max_size=5)


def united(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name in LISTS}


@given(data)
def test_it_takes_any_data_and_merging_with_itself_again_changes_nothing_more(one: dict[str, Any]):
    once = merge(one, one)
    assert merge(once, once) == once
    assert merge(once, one) == once


@given(data, data)
def test_merging_the_same_again_changes_nothing(old: dict[str, Any], new: dict[str, Any]):
    """So re-adding what was found before writes no row."""
    once = merge(old, new)
    assert merge(once, new) == once


@given(data, data, data)
def test_the_united_fields_do_not_depend_on_who_is_merged_with_whom_first(a: Any, b: Any, c: Any):
    assert united(merge(merge(a, b), c)) == united(merge(a, merge(b, c)))


@given(data, data)
def test_united_fields_hold_every_entry_once_those_of_the_old_first(old: dict[str, Any], new: dict[str, Any]):
    for name, entries in united(merge(old, new)).items():
        written = [codec.digest(entry) for entry in entries]
        assert len(written) == len(set(written))
        mine = merge(old, {})[name] if name in old else []
        assert isinstance(mine, list) and entries[: len(mine)] == mine
        for side in (old, new):
            value = side.get(name)
            for entry in value if isinstance(value, list) else [value]:
                assert entry in (None, "") or codec.digest(entry) in written


times = st.one_of(st.integers(0, 9), st.none())


@given(times, times, times)
def test_the_first_seen_of_times_of_one_kind_does_not_depend_on_the_order(a: Any, b: Any, c: Any):
    one, two, three = ({"first_seen": time} for time in (a, b, c))
    known = [time for time in (a, b, c) if time is not None]
    for merged in (merge(merge(one, two), three), merge(three, merge(two, one))):
        assert merged["first_seen"] == (min(known) if known else None)
        assert merged.get("last_seen") == (max(known) if len({*known}) > 1 else None)
