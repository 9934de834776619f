"""Money is whole millionths: what goes in comes out, sums are exact, and what is no amount is refused."""

from __future__ import annotations

import decimal
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.model import codec, money
from holdfast.model.money import micros, shares, spoken
from holdfast.model.paid_call import CallFacts

pytestmark = pytest.mark.req("J10")

AMOUNTS = {
    "a whole number": (3, 3_000_000),
    "zero": (0, 0),
    "a float": (0.40, 400_000),
    "a float that has no binary form": (0.1, 100_000),
    "a small float": (1e-6, 1),
    "a float in scientific form": (1.5e3, 1_500_000_000),
    "a text": ("0.40", 400_000),
    "a text with blanks around it": (" 7 ", 7_000_000),
    "a text in scientific form": ("25e-2", 250_000),
    "a decimal": (Decimal("0.000001"), 1),
    "a decimal with many zeros": (Decimal("1.2300000000000000000000000000000000000000000"), 1_230_000),
    "minus zero": (-0.0, 0),
    "the most there is": (2**62 // 10**6, 2**62 // 10**6 * 10**6),
}


@pytest.mark.parametrize("name", AMOUNTS)
def test_an_amount_is_read_as_it_is_written(name: str):
    given, exact = AMOUNTS[name]
    read = micros(given)
    assert (read, type(read)) == (exact, int)


@pytest.mark.parametrize("given", ["0.0000001", Decimal("1e-30"), 1e-300, "1e-999999999999", 4.9e-324])
def test_what_is_finer_than_a_millionth_is_rounded_up_and_never_lost(given):
    assert micros(given) == 1
    assert micros("0.4000001") == 400_001


WRONG = {
    "a negative number": (-1, "-1 is negative"),
    "a negative float": (-0.01, "negative"),
    "a negative amount finer than a millionth": ("-0.0000001", "negative"),
    "a negative decimal": (Decimal("-1e-50"), "negative"),
    "not a number": (float("nan"), "nan is not an amount"),
    "infinity": (float("inf"), "inf is not an amount"),
    "minus infinity": (Decimal("-Infinity"), "not an amount"),
    "a signalling NaN": (Decimal("sNaN"), "not an amount"),
    "a word": ("forty cents", "'forty cents' is not an amount"),
    "a text with a currency": ("$1", "not an amount"),
    "a comma for a point": ("0,40", "not an amount"),
    "an empty text": ("", "not an amount"),
    "nothing": (None, "None is not an amount"),
    "a truth value": (True, "True is not an amount"),
    "a list": ([1], "not an amount"),
    "a complex number": (1j, "not an amount"),
    "a fraction": (Fraction(1, 3), "not an amount"),
    "too much": (2**62, "too large"),
    "an exponent beyond reason": ("1e999999999", "too large"),
    "an integer longer than Python writes": (10**5000, "too large"),
    "a negative integer longer than Python writes": (-(10**5000), "negative"),
    "a text of a million digits": ("9" * 100_000, "too large"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_amount_is_refused_and_the_error_names_it(name: str):
    given, says = WRONG[name]
    with pytest.raises(UsageError, match=says) as raised:
        micros(given, what="item 'x', stage 'a': cost")
    assert str(raised.value).startswith("item 'x', stage 'a': cost: ")
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "context",
    [
        decimal.Context(prec=2),
        decimal.Context(prec=3, rounding=decimal.ROUND_DOWN),
        decimal.Context(traps=[decimal.Inexact, decimal.Rounded, decimal.FloatOperation]),
        decimal.Context(traps=[]),
        decimal.Context(Emin=-2, Emax=2),
    ],
)
def test_the_context_of_the_users_own_decimals_changes_nothing(context: decimal.Context):
    with decimal.localcontext(context):
        assert [micros(one) for one in (0.4, "123.456789", Decimal("0.123456"), 7)] == [
            400_000,
            123_456_789,
            123_456,
            7_000_000,
        ]
        assert str(money.decimal(123_456_789)) == "123.456789"
        assert spoken(1_234_567_890_000) == "1,234,567.89"
        with pytest.raises(UsageError, match="not an amount"):
            micros("forty")


@given(st.integers(0, 2**62 // 10**6 * 10**6))
def test_every_amount_comes_back_from_its_decimal_and_from_its_text(value: int):
    assert micros(money.decimal(value)) == value
    assert micros(str(money.decimal(value))) == value
    assert Fraction(money.decimal(value)) * 10**6 == value


@given(st.lists(st.decimals(0, 10**6, places=6, allow_nan=False), max_size=50))
def test_a_sum_of_amounts_is_the_amount_of_the_sum(amounts: list[Decimal]):
    assert sum(micros(one) for one in amounts) == sum(Fraction(one) for one in amounts) * 10**6


@given(st.floats(0, 1e12, allow_nan=False))
def test_a_float_costs_what_its_text_says(amount: float):
    assert micros(amount) == micros(repr(amount))
    assert 0 <= micros(amount) - Fraction(repr(amount)) * 10**6 < 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00"),
        (400_000, "0.40"),
        (1_000_000, "1.00"),
        (1, "0.000001"),
        (12_345, "0.012345"),
        (1_234_567_890_000, "1,234,567.89"),
        (100_000_000_000_000_000_000, "100,000,000,000,000.00"),
    ],
)
def test_money_is_spoken_with_two_digits_or_as_many_as_there_are(value: int, text: str):
    assert spoken(value) == text


@given(st.integers(0, 10**15), st.integers(1, 300))
def test_shares_add_up_to_the_whole_and_differ_by_a_millionth_at_most(whole: int, n: int):
    parts = shares(whole, n)
    assert (len(parts), sum(parts)) == (n, whole)
    assert parts == sorted(parts, reverse=True)
    assert parts[0] - parts[-1] <= 1


def test_the_facts_of_a_call_are_those_of_each_of_its_items_and_its_tokens_are_shared():
    facts = CallFacts.read({"model": "small", "tokens_in": 7, "region": "eu"}, where="here")
    assert facts.shares(1) == [facts]
    assert facts.shares(2) == [
        CallFacts("small", 4, text='{"model":"small","tokens_in":4,"region":"eu"}'),
        CallFacts("small", 3, text='{"model":"small","tokens_in":3,"region":"eu"}'),
    ]


def test_every_number_of_tokens_of_a_call_is_shared_by_its_items_to_the_last_one():
    whole = {"tokens_in": 7, "tokens_out": 5, "tokens_cached": 4, "tokens_reasoning": 1, "tokens_cache_write": 2}
    parts = CallFacts.read(whole, where="here").shares(3)
    for name, n in whole.items():
        told = [codec.decode(one.text)[name] for one in parts]
        assert (sum(told), max(told) - min(told)) in {(n, 0), (n, 1)}, name
        assert name not in CallFacts._fields or [getattr(one, name) for one in parts] == told


def test_a_number_of_tokens_that_an_answer_leaves_open_is_none():
    facts = CallFacts.read({"tokens_in": 7, "tokens_cached": None, "tokens_reasoning": None}, where="here")
    assert facts[1:5] == (7, 0, 0, 0)
    assert [one[1:] for one in facts.shares(2)] == [
        (4, 0, 0, 0, '{"tokens_in":4,"tokens_cached":null,"tokens_reasoning":null}'),
        (3, 0, 0, 0, '{"tokens_in":3,"tokens_cached":null,"tokens_reasoning":null}'),
    ]
    with pytest.raises(UsageError, match="tokens_cached -1 is not a whole number of zero or more"):
        CallFacts.read({"tokens_cached": -1}, where="here")
