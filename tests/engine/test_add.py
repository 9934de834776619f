"""Adding items: a bulk upsert that writes nothing at all if any of it is wrong."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from tests.support.harness import connected
from tests.support.together import at_once


@pytest.fixture(autouse=True)
def _two_stages(app):
    app.pipeline({"a": [], "b": ["a"]})


def test_new_items_wait_at_the_first_stage(app):
    assert app.add([{"key": "x", "n": 1}, "y"]) == (2, 0, 0)
    assert app.states("x") == app.states("y") == {"a": "pending"}
    assert (app.data("x"), app.data("y")) == ({"n": 1}, {})


def test_new_items_wait_at_every_stage_that_nothing_comes_before(app):
    app.pipeline({"a": [], "b": [], "c": ["a", "b"]}, name="roots")
    app.add(["x"])
    assert app.states("x") == {"a": "pending", "b": "pending"}


def test_the_newest_data_stands_by_default(app):
    app.add([{"key": "x", "n": 1}])
    assert app.add([{"key": "x", "n": 2}, {"key": "y"}]) == (1, 1, 0)
    assert app.data("x") == {"n": 2}


def test_adding_the_same_again_changes_nothing_and_says_so(app):
    app.add([{"key": "x", "n": 1}])
    [before] = app.query("SELECT id, data, updated_at FROM holdfast_items")
    app.clock.advance(5)
    assert app.add([{"key": "x", "n": 1}]) == (0, 0, 1)
    assert app.query("SELECT id, data, updated_at FROM holdfast_items") == [before]


def test_an_item_that_is_known_is_not_sent_through_its_stages_again(app):
    app.add(["x"])
    app.run_through()
    app.add([{"key": "x", "new": True}])
    assert app.states("x") == {"a": "done", "b": "done"}


def test_a_merge_function_decides_what_becomes_of_known_items(app):
    app.add([{"key": "x", "seen": [1]}])

    def unite(old, new):
        return {"seen": old["seen"] + new["seen"]}

    assert app.add([{"key": "x", "seen": [2]}, {"key": "y", "seen": [9]}], merge=unite) == (1, 1, 0)
    assert (app.data("x"), app.data("y")) == ({"seen": [1, 2]}, {"seen": [9]})


def test_a_merge_function_that_goes_wrong_is_named_and_writes_nothing(app):
    app.add([{"key": "x", "n": 1}])
    for merge, says in [
        (lambda old, new: 1 / 0, "raised ZeroDivisionError"),
        (lambda old, new: [old, new], "returned list, not an object"),
        (lambda old, new: {"when": {1, 2}}, "a value of type set at when"),
    ]:
        with pytest.raises(UsageError, match=f"'x'.*{says}"):
            app.add([{"key": "y"}, {"key": "x", "n": 2}], merge=merge)
        assert app.data("x") == {"n": 1}
        assert app.query("SELECT COUNT(*) FROM holdfast_items") == [(1,)]


WRONG = {
    "an empty key": ["", "empty"],
    "a blank key": ["  ", "empty"],
    "a key with NUL": ["a\0b", "NUL"],
    "a key with a lone surrogate": ["a\ud800", "lone surrogate"],
    "a key of 10,000 characters": ["k" * 10_000, "10,000 bytes; the limit is 1,024"],
    "a key that is long in bytes": ["é" * 600, "1,200 bytes"],
    "a key twice": ["ok", "'ok' comes twice"],
    "no key": [{"path": "x"}, "item 2 has no 'key'"],
    "a key that is no text": [{"key": 7}, "text, not int"],
    "no item": [7, "item 2 is a int"],
    "data that JSON cannot carry": [{"key": "x", "at": {1, 2}}, "'x'.*a value of type set at at"],
    "data with NUL": [{"key": "x", "t": "a\0"}, "'x'.*a text with a NUL character at t"],
}


@pytest.mark.fault(55, 57)
def test_a_wrong_item_is_named_and_none_of_its_company_is_added(app):
    for what, (item, says) in WRONG.items():
        with pytest.raises(UsageError, match=says):
            app.add(["ok", item])
        assert app.query("SELECT COUNT(*) FROM holdfast_items") == [(0,)], what


def test_any_printable_key_names_its_item(app):
    for key in ["k" * 1024, "é" * 512, "a'b\"c\\d", "%(x)s :y {z} $1 ?", "\U0001f600", "line\nbreak\ttab", "NULL", "Ⅷ"]:
        app.add([{"key": key, "n": 1}])
        assert app.states(key) == {"a": "pending"}
        [lease] = app.claim()
        assert lease.key == key


def test_keys_that_differ_only_in_case_or_in_form_are_different_items(app):
    assert app.add(["x", "X", "é", "e\u0301", "x "]).new == 5


def test_a_lower_priority_number_is_claimed_first_and_then_whatever_came_first(app):
    app.add(["late-1", "late-2"], priority=5)
    app.add(["plain-1", "plain-2"])
    app.add(["urgent"], priority=-1)
    leases = app.claim(most=10)
    assert [lease.key for lease in leases] == ["urgent", "plain-1", "plain-2", "late-1", "late-2"]


def test_two_connections_that_add_the_same_keys_at_once_add_each_key_once(app):
    keys = [f"k{n}" for n in range(200)]
    with connected(app) as other:
        one, two = at_once(lambda: app.add(keys), lambda: other.add(list(reversed(keys))))
    assert one.new + two.new == 200
    assert one.unchanged + two.unchanged == 200
    assert app.counts() == {"a": {"pending": 200}} == app.recount()


def test_a_thousand_items_are_one_call(app):
    assert app.add(f"k{n}" for n in range(1000)) == (1000, 0, 0)
    assert len(app.claim(most=2000)) == 1000
