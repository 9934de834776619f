"""What an exception of an HTTP client says about the provider: wait, pay, check your key; and whether the call was charged.
Clients are recognised by their attributes, so that none is imported."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from holdfast.errors import UsageError
from holdfast.model.durations import LONGEST_SECONDS, seconds
from holdfast.model.outcome import CredentialRefused, OutOfCredit, RateLimited

TOO_MANY, UNAVAILABLE, PAY_FIRST, NO_KEY, FORBIDDEN = 429, 503, 402, 401, 403
#: Replies of a gateway that gave up waiting: the provider may have gone on, and charged.
GAVE_UP = frozenset({408, 409, 499, 502, 504, *range(520, 525), 598, 599})
#: The request is wrong; the provider works.
WRONG_REQUEST = frozenset({400, 404, 405, 406, 410, 411, 413, 414, 415, 422})
#: Exceptions raised before anything was sent: no connection, no free connection in the pool, no valid request.
NEVER_SENT = frozenset(
    {
        "ConnectError",
        "ConnectTimeout",
        "PoolTimeout",
        "ProxyError",
        "UnsupportedProtocol",
        "LocalProtocolError",  # httpx
        "InvalidURL",
        "InvalidSchema",
        "MissingSchema",
        "InvalidHeader",
        "InvalidProxyURL",  # requests
        "ClientConnectorError",
        "ClientConnectorDNSError",
        "ClientConnectorSSLError",
        "ClientConnectorCertificateError",  # aiohttp
        "ClientProxyConnectionError",
        "ConnectionTimeoutError",
        "InvalidUrlClientError",
        "NonHttpUrlClientError",
        "NewConnectionError",
        "ConnectTimeoutError",
        "NameResolutionError",  # urllib3
        "URLError",  # urllib: it wraps only what went wrong before the whole request was sent
        "EndpointConnectionError",
        "ProxyConnectionError",  # botocore
        "ConnectionRefusedError",
        "gaierror",
        "SSLCertVerificationError",
    }
)
#: Exceptions raised after a request was sent, with an unknown result.
REPLY_LOST = frozenset(
    {
        "ReadTimeout",
        "ReadError",
        "WriteError",
        "RemoteProtocolError",
        "ChunkedEncodingError",  # httpx, requests
        "ServerDisconnectedError",
        "SocketTimeoutError",
        "ClientOSError",
        "ClientPayloadError",  # aiohttp
        "ReadTimeoutError",
        "ProtocolError",
        "ConnectionClosedError",
        "RemoteDisconnected",
        "IncompleteRead",  # urllib3, botocore
    }
)
#: Clients of providers: their errors come from the provider itself.
_PROVIDERS = frozenset({"openai", "anthropic", "google", "mistralai", "cohere", "litellm", "botocore"})
_KEY_ERRORS = frozenset(
    {
        "authentication_error",
        "permission_error",
        "invalid_api_key",
        "incorrect_api_key",
        "api_key_invalid",
        "permission_denied",
        "unauthenticated",
        "accessdeniedexception",
        "unrecognizedclientexception",
    }
)
#: A larger number of seconds counts from 1970.
_AN_INSTANT = 1e9


def heard(error: BaseException, now: datetime | None = None) -> RateLimited | OutOfCredit | None:
    """Read an exception of httpx, requests, aiohttp, urllib and their like: 429 or 503 with a Retry-After header, 429 without
    one, or 402. None for everything else."""
    if not isinstance(error, Exception):
        return None
    try:
        status, headers = _status(error), _headers(error)
    except Exception:
        return None
    if status == PAY_FIRST:
        return OutOfCredit(f"{type(error).__name__}: the provider answered 402")
    if status not in (TOO_MANY, UNAVAILABLE):
        return None
    after = retry_after(headers.get("retry-after"), now)
    if after is None:
        after = used_up_for(headers, now)
    if after is None and status == UNAVAILABLE:
        return None
    return RateLimited(after, f"{type(error).__name__}: the provider answered {status}")


def not_charged(error: BaseException, before: BaseException | None = None) -> str | None:
    """Why a paid call that raised this was certainly not charged; None if it may have been. `before` is the exception that its
    caller was handling when it made the call, which says nothing about the call.

    An error reply of the provider is free, and so is what was never sent. In doubt are timeouts and broken connections after
    sending, errors within a stream (whose reply has a good status), replies of gateways that gave up, and everything unknown.
    """
    if isinstance(error, (RateLimited, OutOfCredit, CredentialRefused)):
        return "the provider refused it"
    if not isinstance(error, Exception):
        return None
    try:
        # A refused try says nothing about an earlier try.
        if any(type(one).__name__ in REPLY_LOST or _status(one) in GAVE_UP for one in _history(error, before)):
            return None
        status = _status(error)
        if status is not None:
            return f"the provider answered {status}" if status >= 400 else None
        return "it was never sent" if any(type(one).__name__ in NEVER_SENT for one in _causes(error)) else None
    except Exception:
        return None


def key_refused(error: BaseException) -> str | None:
    """What the provider says about a key that it does not accept; None if this is something else. A plain 403 may be about the
    page: only the client of a provider, or the provider's own name for the error, makes it certain."""
    if isinstance(error, CredentialRefused):
        return str(error.reason)
    if not isinstance(error, Exception):
        return None
    try:
        status = _status(error)
        of_provider = type(error).__module__.partition(".")[0] in _PROVIDERS
        # Gemini answers 400 to a key that is wrong or expired.
        if (
            status == NO_KEY
            or (status == FORBIDDEN and of_provider)
            or (status in (400, FORBIDDEN) and _names_the_key(error))
        ):
            return _words(error)
    except Exception:
        return None
    return None


def is_wrong_request(error: BaseException) -> bool:
    """Whether only this request was wrong and the provider works."""
    try:
        return isinstance(error, Exception) and _status(error) in WRONG_REQUEST
    except Exception:
        return False


def _causes(error: BaseException) -> list[BaseException]:
    """The error and those it wraps. Not those it followed: an earlier try of the client may have failed differently."""
    return _linked(error, lambda one: (one.__cause__, getattr(one, "reason", None), *one.args[:1]))


def _history(error: BaseException, before: BaseException | None) -> list[BaseException]:
    """The error, those it wraps and those it followed, up to the call."""
    return _linked(error, lambda one: (one.__cause__, one.__context__), [before] if before is not None else [])


def _linked(
    error: BaseException, links: Callable[[BaseException], Iterable[object]], without: Sequence[BaseException] = ()
) -> list[BaseException]:
    found: list[BaseException] = []
    todo: list[object] = [error]
    while todo and len(found) < 20:
        one = todo.pop()
        if isinstance(one, BaseException) and not any(one is other for other in (*found, *without)):
            found.append(one)
            todo += links(one)
    return found


def _names_the_key(error: BaseException) -> bool:
    text = _body(error).replace("'", '"').lower()
    return text[:1] in ("{", "[") and any(f'"{name}"' in text for name in _KEY_ERRORS)


def _words(error: BaseException) -> str:
    """What the exception and the provider say."""
    lines, body = str(error).splitlines(), _body(error)
    said = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return f"{said}: {body[:1000]}" if body[:1] == "{" and body not in str(error) else said


def _body(error: BaseException) -> str:
    """The body of a reply, as far as its client has read it. Nothing is read here, since that could take long."""
    body = getattr(error, "body", None) or getattr(error, "details", None)
    body = body or getattr(getattr(error, "response", None), "_content", None)
    return (body.decode(errors="replace") if isinstance(body, bytes) else str(body or ""))[:10_000].strip()


def retry_after(value: object, now: datetime | None = None) -> float | None:
    """Seconds to wait from a Retry-After header: a number of seconds, or a date. Never negative."""
    if value is None:
        return None
    text = str(value).strip()
    try:
        asked = float(text)
        return min(max(0.0, asked), LONGEST_SECONDS) if math.isfinite(asked) else None
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max(0.0, (moment - (now or datetime.now(UTC))).total_seconds()), LONGEST_SECONDS)


def used_up_for(headers: Mapping[str, Any], now: datetime | None = None) -> float | None:
    """Seconds until the limit in a provider's headers is reset, if they say that nothing is left (`X-RateLimit-Remaining: 0`);
    None if they do not."""
    told = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    for prefix in ("x-ratelimit", "ratelimit", "x-rate-limit"):
        for suffix in ("", "-requests", "-tokens"):
            if told.get(f"{prefix}-remaining{suffix}") == "0":
                return _reset(told.get(f"{prefix}-reset{suffix}"), now or datetime.now(UTC))
    return None


def _reset(text: str | None, now: datetime) -> float | None:
    """When a limit is reset: seconds from now, an instant since 1970, or a length like `6m0s`."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        try:
            return seconds(text)
        except UsageError:
            return retry_after(text, now)
    if not math.isfinite(number):
        return None
    return min(max(0.0, number - now.timestamp() if number > _AN_INSTANT else number), LONGEST_SECONDS)


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    places = [(response, "status_code"), (response, "status"), (error, "status_code"), (error, "status")]
    if not hasattr(
        error, "body"
    ):  # else `code` is the provider's own code of an error, which may be a number within a stream
        places.append((error, "code"))
    for holder, name in places:
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
            return value
    return None


def _headers(error: BaseException) -> dict[str, Any]:
    response = getattr(error, "response", None)
    for holder in (response, error):
        headers: Any = getattr(holder, "headers", None) or getattr(holder, "hdrs", None)
        if hasattr(headers, "items"):
            return {str(name).lower(): value for name, value in headers.items()}
    return {}
