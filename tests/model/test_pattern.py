"""A pattern says between which keys all that it means must lie, in the order of bytes."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.item import MAX_KEY_BYTES
from holdfast.model.pattern import Pattern

letters = st.sampled_from(["a", "b", "*", "?", "[", "%", "ä", "\U0010ffff"])
texts = st.text(letters, max_size=5)


def fits(pattern: str, key: str) -> bool:
    wild = {"*": ".*", "?": "."}
    return re.fullmatch("".join(wild.get(char, re.escape(char)) for char in pattern), key, re.DOTALL) is not None


@given(texts, texts)
def test_every_key_that_fits_lies_between_low_and_high(pattern, key):
    one = Pattern(pattern)
    if fits(pattern, key):
        assert one.low.encode() <= key.encode() <= one.high.encode()


@given(texts, texts)
def test_between_low_and_high_of_a_beginning_lie_only_keys_that_begin_so(beginning, key):
    one = Pattern(f"{beginning}*")
    if one.low.encode() <= key.encode() <= one.high.encode():
        assert key.startswith(one.low)


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
