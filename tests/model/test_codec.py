"""The one JSON encoder: plain values come back as they went in; what has no JSON form is refused with type and place."""

from __future__ import annotations

import enum
import json
from collections import OrderedDict, UserDict, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ValueRefused
from holdfast.model import codec

pytestmark = pytest.mark.fault(55, 57)

#: On a busy machine a single example may take long; that says nothing about the code.
at_leisure = settings(deadline=None)


def same(one, two):
    """Equal, and of the same types all the way down."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return repr(one) == repr(two)  # also tells 0.0 from -0.0


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
numbers = st.integers(-(2**1000), 2**1000) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=30,
)


@at_leisure
@given(values)
def test_what_is_accepted_comes_back_identical(value):
    encoded = codec.encode(value)
    assert same(codec.decode(encoded), value)
    assert same(json.loads(encoded), value)  # and it is JSON to everybody else


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals() | st.datetimes(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.none(), inner)
        | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


@at_leisure
@given(anything)
def test_any_value_at_all_is_kept_as_its_form_or_refused_with_a_reason(value):
    try:
        encoded = codec.encode(value)
    except ValueRefused as error:
        refusal = str(error)
    else:
        refusal = "it was not refused"
        assert codec.encode(codec.decode(encoded)) == encoded
    assert len(refusal) > 10


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Name(str):
    pass


class Bag(list):
    pass


class Box(dict):
    pass


REFUSED = {
    "set": ({1}, "type set"),
    "frozenset": (frozenset({1}), "type frozenset"),
    "bytes": (b"x", "type bytes"),
    "bytearray": (bytearray(b"x"), "type bytearray"),
    "complex": (1j, "type complex"),
    "object": (object(), "type object"),
    "function": (len, "type builtin_function_or_method"),
    "exception": (ValueError("x"), "type ValueError"),
    "generator": ((n for n in ()), "type generator"),
    "NaN": (float("nan"), "number nan"),
    "Infinity": (float("inf"), "number inf"),
    "-Infinity": (float("-inf"), "number -inf"),
    "NUL": ("a\0b", "NUL"),
    "lone surrogate": ("a\ud800", "lone surrogate"),
    "10**5000": (10**5000, "16,610 bits"),
}
#: These equal what they come back as.
DRESSED = [
    Colour.RED,
    Size.BIG,
    Name("x"),
    Bag([1]),
    Box(a=1),
    OrderedDict(a=1),
    defaultdict(int, a=1),
    UserDict(a=1),
    {Colour.RED: 1},
    {Name("x"): 1},
]


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_faithful_form_is_refused_with_its_type(case):
    value, says = REFUSED[case]
    with pytest.raises(ValueRefused, match=says):
        codec.encode(value)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_refused_with_its_place_however_deep_it_lies(case):
    value, says = REFUSED[case]
    with pytest.raises(ValueRefused, match=rf"{says}.* at pages\[1\]\.body"):
        codec.encode({"ok": 1, "pages": [{"body": "fine"}, {"body": value}]})


@pytest.mark.parametrize("value", DRESSED, ids=repr)
def test_a_value_that_only_wears_another_class_comes_back_equal_and_plain(value):
    """The next stage sees the same thing, whether it runs at once or after a restart."""
    back = codec.decode(codec.encode({"a": value}))
    assert back == {"a": value}
    assert type(back["a"]) in (str, int, list, dict)


@pytest.mark.parametrize("key", [1, None, True, 1.5, b"x", (1, 2)])
def test_an_object_key_that_is_no_text_is_refused(key):
    with pytest.raises(ValueRefused, match=rf"an object key of type {type(key).__name__} at a: keys are text"):
        codec.encode({"a": {key: 1}})


@pytest.mark.parametrize("key", ["a\0", "a\ud800"])
def test_a_key_is_a_text_like_any_other(key):
    with pytest.raises(ValueRefused, match="at a key"):
        codec.encode({"a": {key: 1}})


def test_true_does_not_become_one():
    assert same(codec.decode(codec.encode([True, 1, 1.0, False, 0, -0.0])), [True, 1, 1.0, False, 0, -0.0])


@pytest.mark.parametrize("number", [0, -1, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**400, -(10**400)])
def test_an_integer_of_any_reasonable_length_comes_back(number):
    assert codec.decode(codec.encode([number])) == [number]


@pytest.mark.parametrize("number", [1e308, 5e-324, 0.1, 1e16, 123456789012345680.0, 2.0**70])
def test_a_float_comes_back_as_the_same_float(number):
    assert same(codec.decode(codec.encode(number)), number)


def nested(depth, shape):
    value = 1
    for _ in range(depth):
        value = [value] if shape == "list" else {"a": value}
    return value


@pytest.mark.parametrize("shape", ["list", "object"])
@pytest.mark.parametrize(
    ("depth", "fits"), [(1, True), (99, True), (100, True), (101, False), (5000, False), (200_000, False)]
)
def test_a_hundred_levels_are_deep_enough(shape, depth, fits):
    value = nested(depth, shape)
    if fits:
        assert codec.decode(codec.encode(value)) == value
    else:
        with pytest.raises(ValueRefused, match="nested deeper than 100 levels"):
            codec.encode(value)


def test_many_brackets_beside_each_other_or_in_a_text_are_not_deep():
    value = {"rows": [{"n": [n]} for n in range(500)], "text": "[{" * 500}
    assert codec.decode(codec.encode(value)) == value


def test_a_value_that_contains_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ValueRefused, match="nested deeper"):
        codec.encode(loop)


@pytest.mark.fault(56)
def test_what_is_too_large_is_refused_with_its_size_and_what_to_do():
    with pytest.raises(ValueRefused, match=r"1,002 bytes as JSON; the limit is 1,000: store it elsewhere"):
        codec.encode(["x" * 998], limit=1000)
    assert codec.encode("x" * 998, limit=1000)


@pytest.mark.fault(56)
@pytest.mark.parametrize("value", ["x" * 2000, b"x" * 2000, {"text": "x" * 2000}, {"a": "x" * 600, "b": "x" * 600}])
def test_a_huge_text_is_refused_before_it_is_copied(value, monkeypatch):
    monkeypatch.setattr(codec, "_encode", None)
    with pytest.raises(ValueRefused, match="the limit is 1,000"):
        codec.encode(value, limit=1000)


def test_the_limit_is_in_bytes_and_not_in_characters():
    assert codec.encode("é" * 499, limit=1000)
    with pytest.raises(ValueRefused, match="1,002 bytes"):
        codec.encode("é" * 500, limit=1000)


def test_an_escape_written_out_in_a_text_is_no_nul():
    for value in ["\\u0000", "\\\\u0000", {"\\u0000": ["\\u0000"]}]:
        assert codec.decode(codec.encode(value)) == value


def test_two_readers_never_share_a_list():
    encoded = codec.encode({"a": [1]})
    codec.decode(encoded)["a"].append(2)
    assert codec.decode(encoded) == {"a": [1]}


def test_an_equality_that_lies_is_not_believed():
    class Liar:
        def __eq__(self, other):
            return True

        __hash__ = None

    with pytest.raises(ValueRefused, match="type Liar at a"):
        codec.encode({"a": Liar()})


# Hashes --------------------------------------------------------------------------------------------------------------


def test_the_hash_of_a_value_does_not_depend_on_the_order_of_its_keys():
    assert codec.digest({"a": 1, "b": {"c": 2, "d": 3}}) == codec.digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert codec.digest([1, 2]) != codec.digest([2, 1])


@at_leisure
@given(values, values)
def test_two_values_have_one_hash_only_if_they_are_one_value(one, two):
    if codec.digest(one) == codec.digest(two):
        assert codec.decode(codec.encode(one)) == codec.decode(codec.encode(two))


def test_hashes_tell_true_from_one_and_one_from_one_point_zero():
    assert len({codec.digest(value) for value in (True, 1, 1.0, "1", [1], None, "null")}) == 7


# Error text ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault(58)
@at_leisure
@given(st.text(), st.integers(10, 200))
def test_error_text_is_always_storable_and_never_longer_than_allowed(text, limit):
    plain = codec.plain_text(text, limit)
    assert "\0" not in plain
    plain.encode()
    assert len(plain) <= max(limit, 0) + len("\n[... 1,000,000 characters left out ...]\n")


def test_error_text_that_fits_is_kept_as_it_is():
    assert codec.plain_text("Zeile 1\n\tZeile 2 \U0001f600", 100) == "Zeile 1\n\tZeile 2 \U0001f600"


def test_error_text_loses_only_what_cannot_be_stored():
    assert codec.plain_text("a\0b\ud800c", 100) == "a\ufffdb?c"


@pytest.mark.fault(56, 58)
def test_long_error_text_keeps_its_beginning_and_its_end():
    plain = codec.plain_text("first line\n" + "x" * 100_000 + "\nlast line", 200)
    assert plain.startswith("first line\n")
    assert plain.endswith("\nlast line")
    assert "characters left out" in plain
    assert len(plain) < 300
