"""A rate is read as it is written, and its bucket never gives more than rate × window + burst, in whatever window."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.model.rate import Bucket, Rate

pytestmark = pytest.mark.req("J14", "V11")

at_leisure = settings(deadline=None)

NOW = 1_800_000_000 * 10**9
SECOND = 10**9

READ = {
    "10/s": 10,
    "60/min": 1,
    "60/m": 1,
    "60/minute": 1,
    "1000/hour": 1000 / 3600,
    "1_000/h": 1000 / 3600,
    "500/day": 500 / 86400,
    "0.5/s": 0.5,
    " 10 / S ": 10,
}


@pytest.mark.parametrize("text", READ)
def test_a_rate_is_so_many_per_time(text):
    assert Rate.read(text).per_second == pytest.approx(READ[text])


def test_a_rate_remembers_how_it_was_written():
    assert Rate.read(" 60/Min ").text == "60/min"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "10",
        "10/",
        "/s",
        "ten/s",
        "10/fortnight",
        "-1/s",
        "10/s/s",
        "1e3/s",
        "1,000/s",
        "inf/s",
        "nan/s",
        10,
        10.0,
        None,
        True,
        ["10/s"],
    ],
)
def test_what_is_no_rate_is_refused_with_an_example(wrong):
    with pytest.raises(UsageError, match=r"^gemini: rate: .* is not a rate; write it like '10/s', '60/min'"):
        Rate.read(wrong, what="gemini: rate")


@pytest.mark.parametrize("wrong", ["0/s", "0.0/day", "0.000001/day", "1_000_000_001/s", "9" * 400 + "/s"])
def test_a_rate_is_more_than_none_and_not_absurd(wrong):
    """One that is too small has a next turn that no database could hold."""
    with pytest.raises(UsageError, match="must be one a year at least, and a billion a second at most"):
        Rate.read(wrong)


@pytest.mark.parametrize(("text", "burst"), [("10/s", 10), ("2.5/s", 3), ("60/min", 1), ("1/day", 1)])
def test_without_a_burst_a_second_may_come_at_once_and_one_at_least(text, burst):
    assert Rate.read(text).default_burst == burst


# The bucket ----------------------------------------------------------------------------------------------------------

RATES = st.sampled_from(["20/s", "3/s", "0.7/s", "60/min", "7/hour", "1/day", "12345/s"]).map(Rate.read)
BURSTS = st.integers(1, 50)
#: Waits as parts of what one costs: none, less than one, about one, many.
GAPS = st.lists(st.one_of(st.just(0.0), st.floats(0, 2), st.floats(0.999, 1.001), st.floats(0, 100)), max_size=80)


def takes(bucket: Bucket, moments: list[int], weights: list[float]) -> list[tuple[int, float]]:
    """Who comes at these moments takes what fits, and nothing else."""
    used_until, taken = 0, []
    for now, n in zip(moments, weights, strict=False):
        if bucket.fits(used_until, now, n):
            used_until = bucket.take(used_until, now, n)
            taken.append((now, n))
    return taken


def most_in_any_window(taken: list[tuple[int, float]], bucket: Bucket) -> float:
    """By how much the worst window is over rate × window + burst; windows begin and end with a take."""
    worst = float("-inf")
    for first in range(len(taken)):
        total = 0.0
        for at, n in taken[first:]:
            total += n
            worst = max(worst, total - (at - taken[first][0]) / bucket.interval_ns - bucket.burst)
    return worst


@at_leisure
@given(RATES, BURSTS, GAPS)
def test_in_no_window_more_calls_than_the_rate_and_a_burst_allow(rate, burst, gaps):
    bucket = Bucket.of(rate, burst)
    moments = [NOW + round(gap * bucket.interval_ns) for gap in accumulate(gaps)]
    assert most_in_any_window(takes(bucket, moments, [1] * len(moments)), bucket) < 1e-3


@at_leisure
@given(RATES, BURSTS, GAPS, st.data())
def test_weights_count_as_much_as_they_weigh(rate, burst, gaps, data):
    bucket = Bucket.of(rate, burst)
    moments = [NOW + round(gap * bucket.interval_ns) for gap in accumulate(gaps)]
    weights = [data.draw(st.floats(0, burst)) for _ in moments]
    assert most_in_any_window(takes(bucket, moments, weights), bucket) < 1e-3


@at_leisure
@given(RATES, BURSTS)
def test_a_bucket_that_was_never_used_gives_its_burst_at_once_and_no_more(rate, burst):
    bucket = Bucket.of(rate, burst)
    assert len(takes(bucket, [NOW] * (burst + 5), [1] * (burst + 5))) == burst


@at_leisure
@given(RATES, BURSTS, st.integers(0, 60), st.floats(0, 1))
def test_who_comes_when_the_bucket_said_is_let_in_and_who_comes_before_is_not(rate, burst, ahead, n):
    bucket = Bucket.of(rate, burst)
    used_until = NOW
    for _ in range(ahead):
        used_until = bucket.take(used_until, NOW, 1)
    free_at = bucket.free_at(used_until, n)
    assert bucket.fits(used_until, max(free_at, NOW), n)
    # A nanosecond for each of a burst is forgiven: takes are rounded up.
    early = free_at - max(burst + 2, round(bucket.interval_ns * 1e-6))
    if early > NOW and n > 0:
        assert not bucket.fits(used_until, early, n)


@at_leisure
@given(RATES, BURSTS)
def test_who_always_comes_when_the_bucket_said_gets_all_that_is_allowed(rate, burst):
    bucket = Bucket.of(rate, burst)
    used_until, now, count = 0, NOW, 0
    for _ in range(200):
        now = max(now, bucket.free_at(used_until))
        used_until = bucket.take(used_until, now, 1)
        count += 1
    # What is rounded goes up: less than a nanosecond for each.
    assert count * (1 + 1 / bucket.interval_ns) >= (now - NOW) / bucket.interval_ns + burst - 1e-3


def test_what_is_more_than_a_burst_goes_when_nothing_is_outstanding_and_all_of_it_is_waited_for():
    bucket = Bucket.of(Rate.read("10/s"), 10)
    assert bucket.fits(0, NOW, 35)
    used_until = bucket.take(0, NOW, 35)
    assert near(bucket.free_at(used_until, 1), 2.6)
    assert near(bucket.free_at(used_until, 35), 3.5)
    assert not bucket.fits(used_until, NOW + round(3.4 * SECOND), 35)
    assert bucket.fits(used_until, bucket.free_at(used_until, 35), 35)


def test_what_was_used_beyond_what_was_expected_is_taken_later_and_what_was_not_used_comes_back():
    bucket = Bucket.of(Rate.read("10/s"), 10)
    used_until = bucket.take(0, NOW, 10)
    assert near(bucket.free_at(bucket.settle(used_until, NOW, 5), 10), 1.5)
    assert bucket.fits(bucket.settle(used_until, NOW, -4), NOW, 4)
    assert not bucket.fits(bucket.settle(used_until, NOW, -4), NOW, 5)


def test_what_comes_back_late_fills_no_more_than_the_bucket():
    """A refund after the bucket has refilled by itself must not let two bursts through."""
    bucket = Bucket.of(Rate.read("10/s"), 10)
    later = NOW + 60 * SECOND
    used_until = bucket.settle(bucket.take(0, NOW, 10), later, -10)
    assert bucket.fits(used_until, later, 10)
    assert not bucket.fits(bucket.take(used_until, later, 10), later, 1)


@pytest.mark.parametrize("n", [1e9, 1e15, 2.0**53, 1e300])
def test_whoever_takes_far_too_much_stops_the_others_for_a_day_at_most(n):
    bucket = Bucket.of(Rate.read("100000/min"), 1667)
    for used_until in (bucket.take(0, NOW, n), bucket.settle(bucket.take(0, NOW, 1), NOW, n)):
        assert NOW < used_until <= NOW + 86_400 * SECOND
    assert bucket.settle(NOW, NOW, -n) > -(2**63)


def test_half_the_pace_is_half_the_rate():
    rate = Rate.read("10/s")
    assert Bucket.of(rate, 1, 0.5).interval_ns == 2 * Bucket.of(rate, 1).interval_ns


def near(moment: int, seconds: float) -> bool:
    return abs(moment - NOW - seconds * SECOND) <= 100
