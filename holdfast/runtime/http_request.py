"""One request over HTTP, with limits on its time and on the machines it may connect to. It follows no redirect.

No proxy is used: the address that was checked is the one that is connected to.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from urllib.parse import SplitResult, unquote

from holdfast.model import urls
from holdfast.runtime.allowed_addresses import SocketAddress, places_of


class HttpFailed(Exception):
    """There is no answer, or no more of it. The text does not name the address; the cause has the details."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """How long a request may take, in parts and in all, and whether it may reach private addresses."""

    connect_seconds: float
    read_seconds: float
    request_seconds: float
    allow_private: bool = False

    def deadline(self) -> float:
        """The end of a request that begins now, on the monotonic clock."""
        return time.monotonic() + self.request_seconds


@contextmanager
def request(
    parts: SplitResult,
    headers: Mapping[str, str],
    body: bytes | None,
    limits: HttpLimits,
    deadline: float,
    check: Callable[[], None] = lambda: None,
) -> Iterator[http.client.HTTPResponse]:
    """The answer to a GET or, with a body, a POST. The connection is closed at the deadline in any case.

    Raises HostRefused or HttpFailed, also if the body of the answer cannot be read.
    """
    host, port = urls.host_of(parts), urls.port_of(parts)
    check()
    places = places_of(host, port, allow_private=limits.allow_private, seconds=limits.connect_seconds)
    line: socket.socket | None = None
    try:
        line = _connect(places, limits, deadline)
        with _cut_at(line, deadline):
            connection = http.client.HTTPConnection(host, port)
            if parts.scheme == "https":
                line = _tls().wrap_socket(line, server_hostname=host)
                connection = http.client.HTTPSConnection(host, port, context=_tls())
            line.settimeout(limits.read_seconds)
            connection.sock = line
            connection.request("GET" if body is None else "POST", urls.target(parts), body, dict(headers))
            with connection.getresponse() as answer:
                if time.monotonic() >= deadline:
                    # Headers that were cut off look like complete ones.
                    raise TimeoutError
                yield answer
    except (OSError, http.client.HTTPException, ValueError, EOFError) as error:
        if time.monotonic() >= deadline:
            raise HttpFailed(f"it took longer than {limits.request_seconds:g} s") from TimeoutError()
        raise HttpFailed(_in_words(error, limits)) from error
    finally:
        if line is not None:
            line.close()


def basic_authorization(parts: SplitResult) -> dict[str, str]:
    """The header for a user name and password in an address, if it has any."""
    if parts.username is None and parts.password is None:
        return {}
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _connect(places: Iterable[SocketAddress], limits: HttpLimits, deadline: float) -> socket.socket:
    trouble: OSError = TimeoutError()
    for family, place in places:
        line = socket.socket(family, socket.SOCK_STREAM)
        try:
            line.settimeout(max(0.001, min(limits.connect_seconds, deadline - time.monotonic())))
            line.connect(place)
            return line
        except OSError as error:
            line.close()
            trouble = error
    raise trouble


@contextmanager
def _cut_at(line: socket.socket, deadline: float) -> Iterator[None]:
    """Limit the total time: the timeout of a socket applies to each read."""
    # A second descriptor of the connection, since the first may be wrapped or closed by then.
    other = socket.socket(fileno=os.dup(line.fileno()))

    def cut() -> None:
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        other.close()


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _in_words(error: BaseException, limits: HttpLimits) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {limits.read_seconds:g} s"
    if isinstance(error, http.client.IncompleteRead):
        return "its body ends too early"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid ({error.verify_message})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {str(error)[:200]}" if str(error) else type(error).__name__
