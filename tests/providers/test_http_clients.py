"""Verdicts on exceptions of HTTP clients, and whether the call was charged. First with exceptions that look like theirs, then
with what the clients themselves raise against a local server."""

from __future__ import annotations

import email.message
import itertools
import socket
import urllib.error
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import httpx
import pytest
import requests

from holdfast.errors import BadRequest, ContentFiltered, InDoubt, InputTooLong, NotSent
from holdfast.model.outcome import CredentialRefused, OutOfCredit, Overloaded, RateLimited
from holdfast.providers import Verdict, verdict
from holdfast.providers.verdicts import is_free
from tests.support.clients import CLIENTS, GROUP, SECONDS, STREAMING
from tests.support.moody_server import MoodyServer, NobodyAccepts, nobody_listens

pytestmark = [pytest.mark.fault(63), GROUP]


def heard(error: BaseException) -> Verdict | None:
    """What an unpaid handler hears."""
    return verdict(error, paid=False)


def free(error: BaseException, before: BaseException | None = None) -> type[Verdict] | None:
    """The verdict on a paid call, if it is certainly not charged."""
    found = verdict(error, before=before)
    return type(found) if found is not None and is_free(found, error) else None


def key_refused(error: BaseException) -> str | None:
    found = verdict(error)
    return found.reason if isinstance(found, CredentialRefused) else None


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
@pytest.mark.parametrize("status", [429, 503, 529])
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
    """Of a paid call; a page that wants money says nothing about the provider."""
    told = verdict(client(402, {"Retry-After": "5"}))
    assert isinstance(told, OutOfCredit)
    assert "402" in told.reason
    assert heard(client(402, {"Retry-After": "5"})) is None


@pytest.mark.parametrize("status", [200, 400, 401, 402, 403, 404, 408, 409, 413, 422, 500, 501, 502, 504, 520])
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


# What real clients raise, and whether the call was charged -------------------------------------------------------------

FREE: dict[int, type[Verdict]] = {
    400: BadRequest,
    401: CredentialRefused,
    402: OutOfCredit,
    404: BadRequest,
    413: InputTooLong,
    422: BadRequest,
    425: Overloaded,
    429: RateLimited,
    500: Overloaded,
    501: BadRequest,
    503: Overloaded,
    529: Overloaded,
}
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
    for status, means in FREE.items():
        assert free(raised(CLIENTS[client], f"{server.url}/{status}")) is means


@pytest.mark.req("P2")
@clients
def test_a_gateway_that_gave_up_leaves_a_doubt_whatever_it_says(client, server):
    for status, body in zip(IN_DOUBT, itertools.cycle(["", "-page", "-key"]), strict=False):
        assert free(raised(CLIENTS[client], f"{server.url}/{status}{body}")) is None


@pytest.mark.req("P2")
@clients
def test_a_connection_that_was_never_made_is_free(client, monkeypatch):
    error = raised(CLIENTS[client], nobody_listens())
    assert free(error) is NotSent
    with NobodyAccepts() as url:
        error = raised(CLIENTS[client], url)
    assert free(error) is NotSent

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert free(raised(CLIENTS[client], "http://nowhere.invalid")) is NotSent


@pytest.mark.req("P2")
def test_waiting_for_a_place_in_the_pool_is_free(server):
    timeout = httpx.Timeout(SECONDS, pool=0.01)
    with httpx.Client(limits=httpx.Limits(max_connections=1), timeout=timeout) as client:
        with client.stream("POST", f"{server.url}/200"):
            error = raised(client.post, f"{server.url}/200")
    assert isinstance(error, httpx.PoolTimeout)
    assert free(error) is NotSent


@pytest.mark.req("P2")
@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "urllib"])  # which raises a plain ValueError
def test_an_address_that_is_none_is_free(client):
    assert free(raised(CLIENTS[client], "nowhere")) is NotSent


@pytest.mark.req("P2")
@clients
@pytest.mark.parametrize("mood", ["hang", "reset", "hang-up", "half"])
def test_a_reply_that_does_not_come_or_breaks_off_leaves_a_doubt(client, mood, server):
    asked = len(server.calls)
    assert free(raised(CLIENTS[client], f"{server.url}/{mood}")) is None
    assert server.calls[asked:] == [mood]


@pytest.mark.req("P2")
@pytest.mark.parametrize("client", STREAMING)
@pytest.mark.parametrize("mood", ["half-stream", "error-in-stream"])
def test_a_stream_that_breaks_off_or_carries_an_error_leaves_a_doubt(client, mood, server):
    error = raised(STREAMING[client], f"{server.url}/{mood}")
    assert free(error) is None
    assert (isinstance(verdict(error), InDoubt) and "busy" in str(verdict(error))) or mood == "half-stream"


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
    assert free(error) is None


@pytest.mark.req("P2")
@pytest.mark.parametrize(
    "ours",
    [
        RateLimited(5),
        Overloaded(),
        OutOfCredit(),
        CredentialRefused(),
        InputTooLong(),
        ContentFiltered(),
        BadRequest(),
        NotSent(),
    ],
)
def test_what_the_handler_itself_calls_a_refusal_is_free(ours):
    assert verdict(ours) is verdict(ours, paid=False) is ours
    assert is_free(ours, ours)
    assert not is_free(InDoubt(), InDoubt())


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
        assert free(after(f"{server.url}/hang-up", second, CLIENTS[client])) is None
        assert free(after(f"{server.url}/504", second, CLIENTS[client])) is None


@pytest.mark.req("P2")
@clients
def test_a_lost_reply_after_a_refusal_leaves_a_doubt(client, server):
    for first in (f"{server.url}/429", nobody_listens()):
        assert free(after(first, f"{server.url}/hang-up", CLIENTS[client])) is None
        assert free(after(first, f"{server.url}/502", CLIENTS[client])) is None


@pytest.mark.req("P2")
@clients
def test_a_refusal_after_a_refusal_is_free(client, server):
    assert free(after(nobody_listens(), f"{server.url}/429", CLIENTS[client])) is RateLimited
    assert free(after(f"{server.url}/500", nobody_listens(), CLIENTS[client])) is NotSent


@pytest.mark.req("P2")
@clients
def test_what_had_failed_before_the_call_says_nothing_about_it(client, server):
    before = raised(CLIENTS[client], f"{server.url}/hang-up")
    try:
        raise before
    except Exception:
        error = raised(CLIENTS[client], f"{server.url}/429")
    assert free(error) is None
    assert free(error, before) is RateLimited


@pytest.mark.req("P2")
def test_a_cache_that_has_nothing_says_nothing_about_the_call(server):
    def ask(url: str) -> Any:
        try:
            return {}[url]
        except KeyError:
            return CLIENTS["httpx"](url)

    assert free(raised(ask, f"{server.url}/429")) is RateLimited
    assert free(raised(ask, nobody_listens())) is NotSent


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
@pytest.mark.parametrize("error", [SystemExit(401), KeyboardInterrupt(), Odd(response=Bites()), ValueError("401")])
def test_what_is_no_reply_has_no_verdict(error):
    assert verdict(error) is None
