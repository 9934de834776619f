"""Keys, lengths of time, backoff, and what a handler may answer."""

from __future__ import annotations

import random
from datetime import timedelta
from statistics import mean, quantiles

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import DefinitionError, UsageError
from holdfast.model.backoff import Backoff
from holdfast.model.durations import seconds, spoken
from holdfast.model.item import MAX_KEY_BYTES, check_key
from holdfast.model.outcome import RetryLater, Skip

#: On a busy machine a single example may take long; that says nothing about the code.
at_leisure = settings(deadline=None)

# Keys ----------------------------------------------------------------------------------------------------------------


@at_leisure
@given(st.text(min_size=1, max_size=50))
def test_a_key_is_any_text_that_a_database_can_hold(key):
    storable = key.strip() and "\0" not in key and not any("\ud800" <= char <= "\udfff" for char in key)
    if storable:
        assert check_key(key) == key
    else:
        with pytest.raises(UsageError, match="key"):
            check_key(key)


def test_a_key_has_at_most_so_many_bytes():
    assert check_key("k" * MAX_KEY_BYTES)
    with pytest.raises(UsageError, match="1,025 bytes; the limit is 1,024: use a hash of it"):
        check_key("k" * (MAX_KEY_BYTES + 1))


def test_a_long_key_is_not_printed_in_full():
    with pytest.raises(UsageError) as caught:
        check_key("k" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("key", [None, 1, b"x", ["x"], True])
def test_a_key_is_text(key):
    with pytest.raises(UsageError, match=f"a key is text, not {type(key).__name__}"):
        check_key(key)


# Lengths of time -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "length"),
    [
        (0, 0),
        (30, 30),
        (1.5, 1.5),
        ("45", 45),
        ("1.5", 1.5),
        ("45s", 45),
        ("30m", 1800),
        ("1h30m", 5400),
        ("2d", 172800),
        ("250ms", 0.25),
        ("5us", 5e-6),
        (" 10s ", 10),
        ("1.5h", 5400),
        (timedelta(minutes=2), 120),
        ("1d2h3m4s", 93784),
    ],
)
def test_a_length_of_time_is_seconds_or_a_text_with_its_unit(written, length):
    assert seconds(written) == pytest.approx(length)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "  ",
        "m",
        "30 minutes",
        "1h and 30m",
        "-5s",
        "-5",
        -1,
        "5x",
        "5 5",
        "s5",
        None,
        True,
        [],
        {},
        b"5s",
        float("nan"),
        float("inf"),
        "nan",
        "inf",
        "1e999",
        timedelta(-1),
        10**400,
        10**5000,
        -(10**5000),
        "9" * 400 + "s",
    ],
    ids=lambda written: str(type(written)) if isinstance(written, int) else None,
)
def test_what_is_no_length_of_time_is_refused_by_its_name(written):
    with pytest.raises(UsageError, match="lease: "):
        seconds(written, what="lease")


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "0.0 s"),
        (0.42, "0.4 s"),
        (12, "12 s"),
        (59.6, "1 m"),
        (60, "1 m"),
        (200, "3 m 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 m"),
        (86400, "1 d"),
        (90000, "1 d 1 h"),
        (10**7, "115 d 17 h"),
    ],
)
def test_a_length_of_time_is_told_in_two_units(length, text):
    assert spoken(length) == text


# Backoff -------------------------------------------------------------------------------------------------------------

lengths = st.floats(0, 1e6, allow_nan=False)
backoffs = st.builds(Backoff, lengths, st.floats(1, 1e6), lengths)


@pytest.mark.req("J16")
@at_leisure
@given(backoffs, st.integers(1, 10_000), st.integers())
def test_a_delay_lies_between_nothing_and_its_ceiling(backoff, attempt, seed):
    assert 0 <= backoff.delay(attempt, random.Random(seed)) <= backoff.ceiling(attempt) <= backoff.most_seconds


@pytest.mark.req("J16")
@at_leisure
@given(backoffs, st.integers(1, 200))
def test_a_ceiling_never_sinks_from_one_attempt_to_the_next(backoff, attempt):
    assert backoff.ceiling(attempt) <= backoff.ceiling(attempt + 1)


@pytest.mark.req("J16")
def test_ceilings_grow_by_the_factor_up_to_the_most():
    backoff = Backoff(first_seconds=2, factor=3, most_seconds=100)
    assert [backoff.ceiling(attempt) for attempt in (1, 2, 3, 4, 5, 500)] == [2, 6, 18, 54, 100, 100]


@pytest.mark.req("J16")
def test_the_whole_length_of_a_delay_is_drawn_at_random():
    """Full jitter: what failed together does not come back together."""
    rng = random.Random(1)
    drawn = [Backoff(first_seconds=8, factor=1).delay(1, rng) for _ in range(20_000)]
    assert mean(drawn) == pytest.approx(4, abs=0.1)
    assert quantiles(drawn, n=8) == pytest.approx([1, 2, 3, 4, 5, 6, 7], abs=0.15)
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(
    "settings",
    [
        {"first_seconds": -1},
        {"factor": 0.5},
        {"most_seconds": -1},
        {"first_seconds": float("nan")},
        {"factor": float("nan")},
        {"most_seconds": float("nan")},
    ],
)
def test_a_backoff_that_cannot_be_is_refused(settings):
    with pytest.raises(DefinitionError, match="backoff"):
        Backoff(**settings)


# Answers -------------------------------------------------------------------------------------------------------------


def test_an_answer_keeps_its_reason_and_its_length():
    assert Skip("empty page").reason == "empty page"
    later = RetryLater(after="2m", reason="not published")
    assert (later.after_seconds, later.reason) == (120, "not published")


def test_an_answer_with_a_wrong_length_is_an_error_where_it_is_made():
    with pytest.raises(UsageError, match=r"RetryLater\(after=…\)"):
        RetryLater(after="soon")
