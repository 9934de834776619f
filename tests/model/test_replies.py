"""What exceptions of HTTP clients say: wait, pay, mind your key; and whether the call was charged. First with exceptions that
look like theirs, then with what the clients themselves raise."""

from __future__ import annotations

import email.message
import itertools
import socket
import urllib.error
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http import HTTPStatus
from typing import Any

import httpx
import pytest
import requests
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.model.outcome import CredentialRefused, OutOfCredit, RateLimited
from holdfast.model.replies import heard, is_wrong_request, key_refused, not_charged, retry_after, used_up_for
from tests.support.clients import CLIENTS, GROUP, SECONDS, STREAMING
from tests.support.moody_server import MoodyServer, NobodyAccepts, nobody_listens

pytestmark = [pytest.mark.fault(63), GROUP]

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


LOOKS = [HTTPStatusError, ClientResponseError, APIStatusError, by_urllib]


@pytest.mark.parametrize("client", LOOKS)
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("name", ["Retry-After", "retry-after", "RETRY-AFTER"])
def test_429_and_503_with_a_time_are_rate_limits(client, status, name):
    told = heard(client(status, {name: "120"}))
    assert isinstance(told, RateLimited)
    assert told.after_seconds == 120
    assert str(status) in told.reason


@pytest.mark.parametrize("client", LOOKS)
def test_429_without_a_time_is_a_rate_limit_and_503_without_one_is_a_failure(client):
    told = heard(client(429))
    assert isinstance(told, RateLimited) and told.after_seconds is None
    assert heard(client(503)) is None


@pytest.mark.parametrize("client", LOOKS)
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
        ValueError("429"),
        Odd(code="429"),
        Odd(status=True),
        Odd(status_code=None, code=429.0),
        Odd(response=429),
        Odd(response={}),
        SystemExit(429),
        KeyboardInterrupt(402),
        Odd(code=lambda: 429),
    ],
)
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
    told = heard(HTTPStatusError(429, {"Retry-After": text}), NOW)
    assert isinstance(told, RateLimited)
    assert told.after_seconds is not None and told.after_seconds > 365 * 86400


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


# What real clients raise, and whether the call was charged -------------------------------------------------------------

FREE = [400, 401, 402, 403, 404, 422, 429, 500, 501, 503, 529]
IN_DOUBT = [408, 409, 499, 502, 504, 520, 521, 522, 523, 524]
clients = pytest.mark.parametrize("client", CLIENTS)


@pytest.fixture(scope="module")
def server() -> Iterator[MoodyServer]:
    with MoodyServer() as server:
        yield server


def raised(call: Callable[[str], Any], url: str) -> Exception:
    try:
        answer = call(url)
    except Exception as error:
        return error
    raise AssertionError(f"it answered {answer!r}")


@pytest.mark.req("P2")
@clients
def test_an_error_reply_of_the_provider_is_free(client, server):
    for status in FREE:
        assert not_charged(raised(CLIENTS[client], f"{server.url}/{status}")) == f"the provider answered {status}"


@pytest.mark.req("P2")
@clients
def test_a_gateway_that_gave_up_leaves_a_doubt_whatever_it_says(client, server):
    for status, body in zip(IN_DOUBT, itertools.cycle(["", "-page", "-key"]), strict=False):
        assert not_charged(raised(CLIENTS[client], f"{server.url}/{status}{body}")) is None


@pytest.mark.req("P2")
@clients
def test_a_connection_that_was_never_made_is_free(client, monkeypatch):
    error = raised(CLIENTS[client], nobody_listens())
    assert not_charged(error) == "it was never sent"
    with NobodyAccepts() as url:
        error = raised(CLIENTS[client], url)
    assert not_charged(error) == "it was never sent"

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert not_charged(raised(CLIENTS[client], "http://nowhere.invalid")) == "it was never sent"


@pytest.mark.req("P2")
def test_waiting_for_a_place_in_the_pool_is_free(server):
    timeout = httpx.Timeout(SECONDS, pool=0.01)
    with httpx.Client(limits=httpx.Limits(max_connections=1), timeout=timeout) as client:
        with client.stream("POST", f"{server.url}/200"):
            error = raised(client.post, f"{server.url}/200")
    assert isinstance(error, httpx.PoolTimeout)
    assert not_charged(error) == "it was never sent"


@pytest.mark.req("P2")
@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "urllib"])  # which raises a plain ValueError
def test_an_address_that_is_none_is_free(client):
    assert not_charged(raised(CLIENTS[client], "nowhere")) == "it was never sent"


@pytest.mark.req("P2")
@clients
@pytest.mark.parametrize("mood", ["hang", "reset", "hang-up", "half"])
def test_a_reply_that_does_not_come_or_breaks_off_leaves_a_doubt(client, mood, server):
    asked = len(server.calls)
    assert not_charged(raised(CLIENTS[client], f"{server.url}/{mood}")) is None
    assert server.calls[asked:] == [mood]


@pytest.mark.req("P2")
@pytest.mark.parametrize("client", STREAMING)
@pytest.mark.parametrize("mood", ["half-stream", "error-in-stream"])
def test_a_stream_that_breaks_off_or_carries_an_error_leaves_a_doubt(client, mood, server):
    error = raised(STREAMING[client], f"{server.url}/{mood}")
    assert not_charged(error) is None
    assert heard(error) is None and key_refused(error) is None


@pytest.mark.req("P2")
@pytest.mark.parametrize(
    "error",
    [
        KeyError("choices"),
        ValueError(),
        TimeoutError(),
        OSError("broken"),
        ConnectionResetError(),
        ExceptionGroup("", [ValueError()]),
        KeyboardInterrupt(),
        SystemExit(429),
        Odd(code=1011),
        Odd(code=7),
        Odd(status=0),
        Odd(response=Bites()),
        Odd(status_code=200),
        Odd(code=429, body={"code": 429}),
        Odd(status=599),
    ],
)
def test_what_nobody_knows_leaves_a_doubt(error):
    assert not_charged(error) is None


@pytest.mark.req("P2")
@pytest.mark.parametrize("ours", [RateLimited(5), OutOfCredit(), CredentialRefused()])
def test_what_the_handler_itself_calls_a_refusal_is_free(ours):
    assert not_charged(ours) == "the provider refused it"


def after(first: str, second: str, call: Callable[[str], Any]) -> Exception:
    """What is raised by somebody who asks another address where one has failed."""

    def ask(_: str) -> Any:
        try:
            return call(first)
        except Exception:
            return call(second)

    return raised(ask, "")


@pytest.mark.req("P2")
@clients
def test_a_refusal_after_a_lost_reply_leaves_a_doubt(client, server):
    """The first provider may have charged, whatever the second one says."""
    for second in (f"{server.url}/429", nobody_listens()):
        assert not_charged(after(f"{server.url}/hang-up", second, CLIENTS[client])) is None
        assert not_charged(after(f"{server.url}/504", second, CLIENTS[client])) is None


@pytest.mark.req("P2")
@clients
def test_a_lost_reply_after_a_refusal_leaves_a_doubt(client, server):
    for first in (f"{server.url}/429", nobody_listens()):
        assert not_charged(after(first, f"{server.url}/hang-up", CLIENTS[client])) is None
        assert not_charged(after(first, f"{server.url}/502", CLIENTS[client])) is None


@pytest.mark.req("P2")
@clients
def test_a_refusal_after_a_refusal_is_free(client, server):
    assert not_charged(after(nobody_listens(), f"{server.url}/429", CLIENTS[client])) == "the provider answered 429"
    assert not_charged(after(f"{server.url}/500", nobody_listens(), CLIENTS[client])) == "it was never sent"


@pytest.mark.req("P2")
@clients
def test_what_had_failed_before_the_call_says_nothing_about_it(client, server):
    before = raised(CLIENTS[client], f"{server.url}/hang-up")
    try:
        raise before
    except Exception:
        error = raised(CLIENTS[client], f"{server.url}/429")
    assert not_charged(error) is None
    assert not_charged(error, before) == "the provider answered 429"


@pytest.mark.req("P2")
def test_a_cache_that_has_nothing_says_nothing_about_the_call(server):
    def ask(url: str) -> Any:
        try:
            return {}[url]
        except KeyError:
            return CLIENTS["httpx"](url)

    assert not_charged(raised(ask, f"{server.url}/429")) == "the provider answered 429"
    assert not_charged(raised(ask, nobody_listens())) == "it was never sent"


# Whose fault it is ---------------------------------------------------------------------------------------------------


@pytest.mark.req("P2")
@clients
def test_401_is_a_key_that_is_refused(client, server):
    said = key_refused(raised(CLIENTS[client], f"{server.url}/401-key"))
    assert said is not None
    if client not in ("urllib", "aiohttp"):  # which do not keep what the provider says
        assert "invalid x-api-key" in said or "Incorrect API key provided" in said


@pytest.mark.req("P2")
@pytest.mark.parametrize("client", ["httpx", "requests", "openai", "anthropic"])
def test_403_with_the_error_of_a_provider_is_a_key_that_is_refused(client, server):
    assert key_refused(raised(CLIENTS[client], f"{server.url}/403-key")) is not None


@pytest.mark.req("P2")
@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_403_to_the_client_of_a_provider_is_a_key_that_is_refused(client, server):
    assert key_refused(raised(CLIENTS[client], f"{server.url}/403")) is not None


@pytest.mark.req("P2")
@pytest.mark.parametrize("client", ["httpx", "requests", "urllib", "aiohttp"])
def test_a_page_that_forbids_is_no_key_that_is_refused(client, server):
    """Whatever words the page uses."""
    assert key_refused(raised(CLIENTS[client], f"{server.url}/403-page")) is None
    assert key_refused(raised(CLIENTS[client], f"{server.url}/403")) is None


@pytest.mark.req("P2")
def test_400_with_the_name_of_a_bad_key_is_a_key_that_is_refused():
    """As Gemini answers."""
    body = {"error": {"code": 400, "status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]}}
    assert key_refused(Odd(code=400, status="INVALID_ARGUMENT", details=body)) is not None
    assert key_refused(Odd(code=400, status="INVALID_ARGUMENT", details={"error": {"code": 400}})) is None


@pytest.mark.req("P2")
def test_a_body_that_nobody_has_read_is_left_unread(server):
    with httpx.Client(timeout=SECONDS) as client:
        for status, refused in ((401, True), (403, False)):
            with client.stream("POST", f"{server.url}/{status}-key") as reply:
                error = raised(lambda _, reply=reply: reply.raise_for_status(), "")
                assert (key_refused(error) is not None) is refused
                assert not reply.is_stream_consumed
    with requests.post(f"{server.url}/403-key", stream=True, timeout=SECONDS) as unread:
        assert key_refused(raised(lambda _: unread.raise_for_status(), "")) is None
        assert unread.raw.tell() == 0


@pytest.mark.req("P2")
@clients
def test_a_wrong_request_is_told_from_a_provider_in_trouble(client, server):
    told = {
        status: is_wrong_request(raised(CLIENTS[client], f"{server.url}/{status}"))
        for status in (400, 404, 422, 429, 500)
    }
    assert told == {400: True, 404: True, 422: True, 429: False, 500: False}


@pytest.mark.req("P2")
@pytest.mark.parametrize("error", [SystemExit(401), KeyboardInterrupt(), Odd(response=Bites()), ValueError("401")])
def test_what_is_no_reply_refuses_no_key_and_blames_no_request(error):
    assert key_refused(error) is None
    assert not is_wrong_request(error)
