"""A pattern says between which keys all that it means must lie, in the order of bytes."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.item import MAX_KEY_BYTES
from holdfast.model.key_pattern import Pattern, exactly
from holdfast.store.sqlite_dialect import SQLiteDialect

letters = st.sampled_from(["a", "b", "*", "?", "[", "]", "[*]", "[?]", "[[]", "%", "ä", "\U0010ffff"])
texts = st.lists(letters, max_size=5).map("".join)


def fits(pattern: str, key: str) -> bool:
    wild = {"*": ".*", "?": ".", "[*]": "[*]", "[?]": "[?]", "[[]": r"\["}
    parts = re.findall(r"\[[*?[]\]|.", pattern, re.DOTALL)
    return re.fullmatch("".join(wild.get(part, re.escape(part)) for part in parts), key, re.DOTALL) is not None


@given(texts, texts)
def test_a_key_has_a_pattern_that_means_it_and_no_other(key, other):
    one = Pattern(exactly(key))
    assert one.is_plain and (one.low, one.high) == (key, key)
    assert fits(exactly(key), other) is (key == other)


@given(texts, texts)
def test_sqlite_and_a_plain_reading_agree_on_what_fits(pattern, key):
    with closing(sqlite3.connect(":memory:")) as database:
        [(fit,)] = database.execute("SELECT ? GLOB ?", (key, SQLiteDialect().glob_pattern(pattern)))
    assert bool(fit) is fits(pattern, key)


@given(texts, texts)
def test_every_key_that_fits_lies_between_low_and_high(pattern, key):
    one = Pattern(pattern)
    if fits(pattern, key):
        assert one.low.encode() <= key.encode() <= one.high.encode()


@given(texts, texts)
def test_between_low_and_high_of_a_beginning_lie_only_keys_that_begin_so(beginning, key):
    one = Pattern(f"{exactly(beginning)}*")
    if one.low.encode() <= key.encode() <= one.high.encode():
        assert key.startswith(beginning)


def test_the_longest_key_that_can_be_is_below_the_end():
    for beginning in ("", "a", "\U0010ffff"):
        left = MAX_KEY_BYTES - len(beginning.encode())
        key = beginning + "\U0010ffff" * (left // 4)
        assert key.encode() <= Pattern(f"{beginning}*").high.encode()


def test_a_plain_pattern_means_one_key_and_a_narrow_one_those_that_begin_alike():
    assert [Pattern(text).is_plain for text in ("a", "", "a*", "?", "*a")] == [True, True, False, False, False]
    assert [Pattern(text).is_narrow for text in ("a", "", "a*", "?", "*a")] == [True, True, True, False, False]
    assert (Pattern("a").low, Pattern("a").high) == ("a", "a")
    assert Pattern() == Pattern("*")
