"""How long providers ask to wait: headers of refusals and of good answers, bodies, words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.model.outcome import RateLimited
from holdfast.providers import verdict
from holdfast.providers.retry_after import retry_after, used_up_for

pytestmark = pytest.mark.fault(63)

at_leisure = settings(deadline=None)
NOW = datetime(2025, 11, 2, 12, 0, 0, tzinfo=UTC)


class Refused(Exception):
    """As aiohttp raises it."""

    def __init__(self, headers: object = None, body: object = None, words: str = "no") -> None:
        super().__init__(words)
        self.status, self.headers, self.body = 429, headers, body


def asked(headers: object = None, body: object = None, words: str = "no") -> float | None:
    told = verdict(Refused(headers, body, words), paid=False, now=NOW)
    assert isinstance(told, RateLimited)
    return told.after_seconds


# Retry-After ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "seconds"), [("120", 120), (" 7 ", 7), ("0", 0), ("1.5", 1.5), (30, 30), ("007", 7)])
def test_a_number_is_seconds(text, seconds):
    assert retry_after(text, NOW) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Sun, 02 Nov 2025 12:02:00 GMT", 120),
        ("Sun, 02 Nov 2025 13:00:00 +0100", 0),
        ("Sun, 02 Nov 2025 07:00:10 -0500", 10),
        ("Sunday, 02-Nov-25 12:00:30 GMT", 30),
        ("Sun Nov  2 12:00:05 2025", 5),
    ],
)
def test_a_date_is_the_time_until_then(text, seconds):
    assert retry_after(text, NOW) == seconds


@pytest.mark.parametrize("text", ["-1", "-1e9", "Sun, 02 Nov 2025 11:59:59 GMT", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_time_that_is_over_is_now(text):
    assert retry_after(text, NOW) == 0


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "soon",
        "nan",
        "inf",
        "-inf",
        "12 seconds",
        "120, 60",
        "0x10",
        "2025-11-02",
        "Mon, 99 Foo 2025 12:00:00 GMT",
        "Mon, 01 Jan 99999 00:00:00 GMT",
        "Wed, 21 Oct 2015 07:28:00 +999999999999",
        b"120",
        [120],
        "\0",
        "9" * 5000 + "x",
    ],
)
def test_nonsense_is_no_time(text):
    assert retry_after(text, NOW) is None


@pytest.mark.parametrize("text", ["99999999999999", "1e300", "9" * 300, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_time_in_the_far_future_is_a_rate_limit_like_any_other(text):
    after = asked({"Retry-After": text})
    assert after is not None and after > 365 * 86400


@at_leisure
@given(
    st.one_of(st.text(), st.text(alphabet="0123456789.-+eE, :GMTSunNov_"), st.floats().map(str), st.integers().map(str))
)
@example("1e400")
@example("Sun, 02 Nov 2025 24:00:00 GMT")
@example("Sun, 02 Nov 2025 12:00:00 -9999")
def test_whatever_a_server_writes_nothing_is_raised_and_nothing_is_negative(text):
    after = retry_after(text, NOW)
    assert after is None or 0 <= after < 1e11
    assert asked({"Retry-After": text}) == after
    used_up_for({"x-ratelimit-remaining": "0", "x-ratelimit-reset": text}, NOW)


@at_leisure
@given(st.integers(0, 10**8))
def test_seconds_and_the_date_of_the_same_moment_say_the_same(seconds):
    date = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert retry_after(str(seconds), NOW) == retry_after(date, NOW) == seconds


# Headers that say how much is left -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}, 30),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW.timestamp()) + 30)}, 30),
        ({"RateLimit-Remaining": "0", "RateLimit-Reset": "7"}, 7),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20ms"}, 0.02),
        ({"x-rate-limit-remaining": 0, "x-rate-limit-reset": 5}, 5),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "Sun, 02 Nov 2025 12:00:09 GMT"}, 9),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "-5"}, 0),
        ({"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "30"}, None),
        ({"X-RateLimit-Reset": "30"}, None),
        ({"X-RateLimit-Remaining": "0"}, None),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "nan"}, None),
        ({}, None),
    ],
)
def test_headers_that_say_that_nothing_is_left_say_for_how_long(headers, seconds):
    found = used_up_for(headers, NOW)
    assert found == pytest.approx(seconds) if seconds is not None else found is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2025-11-02T12:00:30Z",
            },
            30,
        ),
        (
            {
                "anthropic-ratelimit-input-tokens-limit": "80000",
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2025-11-02T12:00:09+00:00",
            },
            9,
        ),
        (
            {"anthropic-ratelimit-tokens-remaining": "7", "anthropic-ratelimit-tokens-reset": "2025-11-02T12:00:30Z"},
            None,
        ),
        # Azure, for limits that it does not count.
        ({"x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "60"}, None),
        (
            {
                "x-ratelimit-limit-tokens": "-1",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "60",
            },
            None,
        ),
    ],
)
def test_headers_of_providers_say_for_how_long_nothing_is_left(headers, seconds):
    assert used_up_for(headers, NOW) == seconds


def test_a_reset_is_the_time_until_the_limit_is_full_and_the_next_request_is_free_earlier():
    """500 requests a minute: the next one after 0.12 s."""
    headers = {
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    assert used_up_for(headers, NOW) == pytest.approx(0.12)
    # A window that begins anew at an instant, as of other services.
    assert used_up_for({"x-ratelimit-limit": "500", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "60"}, NOW) == 60


def test_of_two_limits_that_are_used_up_the_longer_wait_counts():
    headers = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "20ms",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "6s",
    }
    assert used_up_for(headers, NOW) == 6


# What a refusal asks for ---------------------------------------------------------------------------------------------

RETRY_INFO = {
    "error": {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "details": [
            {"@type": "type.googleapis.com/google.rpc.Help"},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36.5s"},
        ],
    }
}
LEFT = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}


@pytest.mark.parametrize(
    ("headers", "body", "words", "seconds"),
    [
        ({"retry-after-ms": "1500", "Retry-After": "2"}, None, "", 1.5),
        ({"retry-after-ms": "soon", "Retry-After": "2"}, None, "", 2),
        ({"Retry-After": "Sun, 02 Nov 2025 12:02:00 GMT"}, None, "", 120),
        ({"Retry-After": "5", **LEFT}, RETRY_INFO, "", 5),
        ({**LEFT}, RETRY_INFO, "", 36.5),
        (LEFT, None, "try again in 7s", 30),
        ({}, None, "Rate limit reached for gpt: Limit 3. Please try again in 6m0s.", 360),
        ({}, None, "Please try again in 1.242s. Visit the page.", 1.242),
        ({}, None, "Please try again in 120ms.", 0.12),
        ({}, None, "Please retry after 26 seconds.", 26),
        ({}, None, "Please retry after a while", None),
        ({"x-ratelimit-reset": "12"}, None, "", 12),
        ({"x-ratelimit-reset": "12", "x-ratelimit-remaining": "3"}, None, "", None),
        ({}, None, "", None),
        (None, None, "", None),
    ],
)
def test_a_refusal_says_how_long_to_wait_in_one_of_several_places(headers, body, words, seconds):
    assert asked(headers, body, words) == seconds
