"""Whether a request was sent, and whether an answer to it was lost: what the chain of an exception says.

A refused try says nothing about an earlier try of the same call, so the whole chain counts: causes, and the exceptions
that were being handled when the next one was raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from holdfast.providers.error_reply import library_of, lower, status_of

#: Statuses of a gateway that gave up waiting: the provider may have continued, and charged.
GAVE_UP = frozenset({408, 409, 424, 499, 502, 504, *range(520, 525), 598, 599})
#: Exceptions raised before anything was sent: no connection, no free connection in the pool, no valid request.
NEVER_SENT = frozenset(
    {
        # httpx, httpx2
        "ConnectError",
        "ConnectTimeout",
        "PoolTimeout",
        "ProxyError",
        "UnsupportedProtocol",
        "LocalProtocolError",
        "InvalidURL",
        # requests
        "InvalidSchema",
        "MissingSchema",
        "InvalidHeader",
        "InvalidProxyURL",
        "URLRequired",
        # aiohttp
        "ClientConnectorError",
        "ClientConnectorDNSError",
        "ClientConnectorSSLError",
        "ClientConnectorCertificateError",
        "ClientProxyConnectionError",
        "ClientHttpProxyError",
        "ConnectionTimeoutError",
        "InvalidUrlClientError",
        "NonHttpUrlClientError",
        # urllib3
        "NewConnectionError",
        "ConnectTimeoutError",
        "NameResolutionError",
        "EmptyPoolError",
        "ClosedPoolError",
        "LocationParseError",
        "LocationValueError",
        "URLSchemeUnknown",
        "ProxySchemeUnknown",
        # urllib: it wraps only what went wrong before the whole request was sent
        "URLError",
        # botocore
        "EndpointConnectionError",
        "ProxyConnectionError",
        "NoRegionError",
        "UnknownEndpointError",
        # the standard library
        "ConnectionRefusedError",
        "gaierror",
        "SSLCertVerificationError",
    }
)
#: Exceptions raised after a request was sent, with an unknown result.
REPLY_LOST = frozenset(
    {
        # httpx, httpx2
        "ReadTimeout",
        "ReadError",
        "WriteError",
        "WriteTimeout",
        "CloseError",
        "RemoteProtocolError",
        "DecodingError",
        # requests
        "ChunkedEncodingError",
        "ContentDecodingError",
        # aiohttp
        "ServerDisconnectedError",
        "ServerTimeoutError",
        "SocketTimeoutError",
        "ClientOSError",
        "ClientPayloadError",
        "ClientConnectionResetError",
        "UploadAbortedError",
        # urllib3
        "ReadTimeoutError",
        "ProtocolError",
        "DecodeError",
        "IncompleteRead",
        "InvalidChunkLength",
        # botocore
        "ConnectionClosedError",
        "ResponseStreamingError",
        "HTTPClientError",
        # the standard library
        "RemoteDisconnected",
        "BadStatusLine",
    }
)
#: Raised by sockets and event loops, where a client did not give them a name of its own.
_BARE = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
_LONGEST_CHAIN = 30


class _Link(NamedTuple):
    error: BaseException
    #: Whether an exception that wraps it says that nothing was sent.
    is_covered: bool


def causes(error: BaseException) -> list[BaseException]:
    """The error and those it wraps. Not those it followed: an earlier try of the client may have failed differently."""
    found: list[BaseException] = []
    todo: list[object] = [error]
    while todo and len(found) < _LONGEST_CHAIN:
        one = todo.pop(0)
        if isinstance(one, BaseException) and not any(one is other for other in found):
            found.append(one)
            todo += [one.__cause__, getattr(one, "reason", None), *one.args[:1]]
            if library_of(one) == "litellm":  # which raises its own errors without `from`
                todo.append(one.__context__)
    return found


def was_never_sent(error: BaseException) -> bool:
    return any(type(one).__name__ in NEVER_SENT for one in causes(error))


def was_retried(error: BaseException) -> bool:
    """Whether the client had tried before, and does not tell how that ended: the packages of OpenAI and Anthropic count their
    retries in a header of the request, botocore in what it says of the response."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return bool(response.get("ResponseMetadata", {}).get("RetryAttempts"))
    try:
        request = getattr(error, "request", None) or getattr(getattr(error, "response", None), "request", None)
    except Exception:  # httpx raises where it has none
        return False
    return lower(getattr(request, "headers", None)).get("x-stainless-retry-count", "0").strip() != "0"


def lost_reply(error: BaseException, before: BaseException | None = None) -> BaseException | None:
    """The error in the chain after which the provider may have acted and charged; None if there is none. `before` is what
    the caller was handling when it made the call, which says nothing about the call."""
    for one, is_covered in _history(error, before):
        if type(one).__name__ in REPLY_LOST:
            return one
        if isinstance(one, _BARE) and one is not error and not is_covered:
            return one
        status = status_of(one)
        if status is not None and (status in GAVE_UP or status < 400) and type(one).__name__ not in NEVER_SENT:
            return one
    return None


def _history(error: BaseException, before: BaseException | None) -> Iterator[_Link]:
    """The error, those it wraps and those it followed, up to the call."""
    seen: list[BaseException] = [] if before is None else [before]
    todo = [_Link(error, False)]
    while todo and len(seen) < _LONGEST_CHAIN:
        link = todo.pop()
        one = link.error
        if any(one is other for other in seen):
            continue
        seen.append(one)
        yield link
        says_so = type(one).__name__ in NEVER_SENT
        if one.__context__ is not None:
            todo.append(_Link(one.__context__, says_so))
        if one.__cause__ is not None:
            todo.append(_Link(one.__cause__, says_so or link.is_covered))
