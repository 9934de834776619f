"""What exceptions of HTTP clients say: wait, or pay. By their looks: no client is imported, here or there."""

from __future__ import annotations

import email.message
import urllib.error
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http import HTTPStatus

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.model.outcome import OutOfCredit, RateLimited
from holdfast.model.replies import heard, retry_after, used_up_for

pytestmark = pytest.mark.fault(63)

at_leisure = settings(deadline=None)
NOW = datetime(2025, 11, 2, 12, 0, 0, tzinfo=UTC)


class Response:
    """As httpx and requests have it."""

    def __init__(self, status: int, headers: object = None) -> None:
        self.status_code = status
        self.headers = headers


class HTTPStatusError(Exception):
    """As httpx, requests and the clients built on them raise it."""

    def __init__(self, status: int, headers: object = None) -> None:
        super().__init__(f"answered {status}")
        self.response = Response(status, headers)


class ClientResponseError(Exception):
    """As aiohttp raises it: there is no response any more."""

    def __init__(self, status: int, headers: object = None) -> None:
        super().__init__(f"answered {status}")
        self.status = status
        self.headers = headers


class APIStatusError(HTTPStatusError):
    """As clients of language models raise it: both."""

    def __init__(self, status: int, headers: object = None) -> None:
        super().__init__(status, headers)
        self.status_code = status


def by_urllib(status: int, headers: object = None) -> urllib.error.HTTPError:
    message = email.message.Message()
    for name, value in (headers or {}).items():  # type: ignore[attr-defined]
        message[name] = value
    return urllib.error.HTTPError("http://localhost", status, "no", message, None)


CLIENTS = [HTTPStatusError, ClientResponseError, APIStatusError, by_urllib]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("name", ["Retry-After", "retry-after", "RETRY-AFTER"])
def test_429_and_503_with_a_time_are_rate_limits(client, status, name):
    told = heard(client(status, {name: "120"}))
    assert isinstance(told, RateLimited)
    assert told.after_seconds == 120
    assert str(status) in told.reason


@pytest.mark.parametrize("client", CLIENTS)
def test_429_without_a_time_is_a_rate_limit_and_503_without_one_is_a_failure(client):
    told = heard(client(429))
    assert isinstance(told, RateLimited) and told.after_seconds is None
    assert heard(client(503)) is None


@pytest.mark.parametrize("client", CLIENTS)
def test_402_is_out_of_credit(client):
    told = heard(client(402, {"Retry-After": "5"}))
    assert isinstance(told, OutOfCredit)
    assert "402" in told.reason


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 408, 500, 502, 504, 529])
def test_everything_else_is_a_failure_like_any_other(status):
    assert heard(HTTPStatusError(status, {"Retry-After": "5"})) is None


class Odd(Exception):
    """An exception with attributes that have nothing to do with HTTP."""

    def __init__(self, **attributes: object) -> None:
        super().__init__("odd")
        for name, value in attributes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("429"), Odd(code="429"), Odd(status=True), Odd(status_code=None, code=429.0), Odd(response=429), Odd(response={}),  # noqa: E501
        SystemExit(429), KeyboardInterrupt(402), Odd(code=lambda: 429),
    ],
)  # fmt: skip
def test_what_only_looks_like_a_status_is_none(error):
    assert heard(error) is None


def test_a_status_may_be_an_enumeration():
    assert isinstance(heard(Odd(status=HTTPStatus.TOO_MANY_REQUESTS)), RateLimited)


class Bites:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError("the response has been read already")


def test_an_exception_that_bites_is_a_failure_like_any_other():
    assert heard(Odd(response=Bites())) is None
    assert heard(HTTPStatusError(429, Bites())) is None or heard(HTTPStatusError(429, Bites())).after_seconds is None  # type: ignore[union-attr]


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
    [None, "", "soon", "nan", "inf", "-inf", "12 seconds", "120, 60", "0x10", "2025-11-02", "Mon, 99 Foo 2025 12:00:00 GMT",
     "Mon, 01 Jan 99999 00:00:00 GMT", "Wed, 21 Oct 2015 07:28:00 +999999999999", b"120", [120], "\0", "9" * 5000 + "x"],
)  # fmt: skip
def test_nonsense_is_no_time(text):
    assert retry_after(text, NOW) is None


@pytest.mark.parametrize("text", ["99999999999999", "1e300", "9" * 300, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_time_in_the_far_future_is_a_rate_limit_like_any_other(text):
    told = heard(HTTPStatusError(429, {"Retry-After": text}), NOW)
    assert isinstance(told, RateLimited)
    assert told.after_seconds is not None and told.after_seconds > 365 * 86400


@at_leisure
@given(st.one_of(st.text(), st.text(alphabet="0123456789.-+eE, :GMTSunNov_"), st.floats().map(str), st.integers().map(str)))
@example("1e400")
@example("Sun, 02 Nov 2025 24:00:00 GMT")
@example("Sun, 02 Nov 2025 12:00:00 -9999")
def test_whatever_a_server_writes_nothing_is_raised_and_nothing_is_negative(text):
    after = retry_after(text, NOW)
    assert after is None or 0 <= after < 1e11
    told = heard(HTTPStatusError(429, {"Retry-After": text}), NOW)
    assert isinstance(told, RateLimited) and told.after_seconds == after
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


def test_a_429_without_a_time_takes_it_from_the_headers_that_say_how_much_is_left():
    told = heard(HTTPStatusError(429, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}), NOW)
    assert isinstance(told, RateLimited) and told.after_seconds == 30


def test_retry_after_counts_before_the_headers_that_say_how_much_is_left():
    headers = {"Retry-After": "5", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}
    told = heard(HTTPStatusError(429, headers), NOW)
    assert isinstance(told, RateLimited) and told.after_seconds == 5
