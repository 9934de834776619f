"""Fetch: one GET or POST over HTTP with limits on everything: time, size, redirects, and the machines it may connect to.

An unchanged document is not read again: the request has the ETag and Last-Modified of the last answer, and if the server does
not support them, a hash of the content decides. The body is saved before it is read, so that no server is kept waiting.
"""

from __future__ import annotations

import hashlib
import http.client
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import IO, Any
from urllib.parse import SplitResult, urljoin

from holdfast.model import urls
from holdfast.runtime.allowed_addresses import HostRefused
from holdfast.runtime.http_request import HttpFailed, HttpLimits, basic_authorization, request
from holdfast.sources import readers
from holdfast.sources.contract import Reader, SourceFailed
from holdfast.sources.inflate import PIECE, inflated, unpacked

CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
REQUEST_SECONDS = 120.0
REDIRECTS = 5
MAX_BYTES = 50 * 1000 * 1000
#: Larger bodies are kept on disk while they are read.
IN_MEMORY_BYTES = 1024 * 1024

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BUSY = frozenset({429, 503})

#: The options of every source that fetches.
OPTIONS: Mapping[str, Reader] = {
    "headers": readers.headers,
    "allow_private": readers.flag,
    "max_bytes": readers.size,
    "request_timeout": readers.some_time,
}


@dataclass(frozen=True, slots=True)
class Policy(HttpLimits):
    """The limits of a fetch."""

    connect_seconds: float = CONNECT_SECONDS
    read_seconds: float = READ_SECONDS
    request_seconds: float = REQUEST_SECONDS
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_bytes: int = MAX_BYTES
    redirects: int = REDIRECTS

    @classmethod
    def of(cls, settings: Mapping[str, Any], *, max_bytes: int = MAX_BYTES) -> Policy:
        total = settings.get("request_timeout", REQUEST_SECONDS)
        return cls(
            headers=settings.get("headers", {}),
            max_bytes=settings.get("max_bytes", max_bytes),
            allow_private=settings.get("allow_private", False),
            connect_seconds=min(CONNECT_SECONDS, total),
            read_seconds=min(READ_SECONDS, total),
            request_seconds=total,
        )


@dataclass(slots=True)
class Document:
    """A complete body, and what identifies this version of it."""

    url: str
    file: IO[bytes]
    size: int
    links: str
    #: The encoding of a text, if the server names one.
    charset: str | None
    #: For the next `fetch` of it, once all of it was used.
    notes: dict[str, str]

    def __enter__(self) -> Document:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def fetch(
    url: str,
    policy: Policy,
    *,
    home: str | None = None,
    known: Mapping[str, Any] | None = None,
    check: Callable[[], None] = lambda: None,
    accept: str = "*/*",
    body: bytes | None = None,
) -> Document | None:
    """The document at a URL, or None if it is unchanged since `known` was noted. Every failure is SourceFailed.

    With a body, which is JSON, the request is a POST. The body and the headers of the policy are sent only to the origin of
    `home`, the address that a person wrote.
    """
    known = known or {}
    deadline = policy.deadline()
    first = _split(home or url)
    at = url
    for _ in range(policy.redirects + 1):
        parts = _split(at)
        sent = _headers(parts, first, policy, known if body is None else {}, accept)
        if body is not None:
            _check_origin(parts, first)
            if "content-type" not in map(str.lower, sent):
                sent["Content-Type"] = "application/json"
        with _asked(parts, sent, body, policy, deadline, check) as answer:
            if answer.status in _REDIRECTS and body is not None:
                raise SourceFailed(
                    f"{urls.shown(at)} redirects a POST, which is not sent on: write the address it leads to"
                )
            if answer.status in _REDIRECTS:
                at = _redirected(at, answer.getheader("Location"))
                continue
            if answer.status == 304 and known:
                return None
            if answer.status != 200:
                raise SourceFailed(
                    f"{urls.shown(at)} answered {answer.status} {answer.reason[:100]}",
                    status=answer.status,
                    retry_after=_retry_after(answer) if answer.status in _BUSY else None,
                )
            return _read(at, answer, policy, known, deadline, check)
    raise SourceFailed(f"{urls.shown(url)} redirects more than {policy.redirects} times")


# Asking ---------------------------------------------------------------------------------------------------------------


def _split(url: str) -> SplitResult:
    try:
        parts = urls.split(url)
        urls.origin(parts)
    except ValueError as error:
        raise SourceFailed(f"{urls.shown(url)}: {error}") from None
    return parts


def _headers(
    parts: SplitResult, first: SplitResult, policy: Policy, known: Mapping[str, Any], accept: str
) -> dict[str, str]:
    sent = {"User-Agent": "holdfast", "Accept": accept, "Accept-Encoding": "gzip", "Connection": "close"}
    if urls.origin(parts) == urls.origin(first):
        # Secrets are not sent to a server that we are redirected to.
        sent |= basic_authorization(first)
        own = {name.lower() for name in policy.headers}
        sent = {name: value for name, value in sent.items() if name.lower() not in own} | dict(policy.headers)
    if known.get("etag"):
        sent["If-None-Match"] = str(known["etag"])
    if known.get("modified"):
        sent["If-Modified-Since"] = str(known["modified"])
    return sent


def _check_origin(parts: SplitResult, first: SplitResult) -> None:
    if urls.origin(parts) != urls.origin(first):
        raise SourceFailed(f"{urls.shown(parts.geturl())} is at another origin, where no body is sent")


@contextmanager
def _asked(
    parts: SplitResult,
    headers: Mapping[str, str],
    body: bytes | None,
    policy: Policy,
    deadline: float,
    check: Callable[[], None],
) -> Iterator[http.client.HTTPResponse]:
    """An answer whose body can be read."""
    try:
        with request(parts, headers, body, policy, deadline, check) as answer:
            yield answer
    except HostRefused as refused:
        raise SourceFailed(f"{urls.host_of(parts)} {refused}") from None
    except HttpFailed as failed:
        raise SourceFailed(f"{urls.shown(parts.geturl())}: {failed}") from None


def _redirected(at: str, location: str | None) -> str:
    if not location:
        raise SourceFailed(f"{urls.shown(at)} redirects to nowhere")
    try:
        # Headers are decoded as Latin-1; a server that sends UTF-8 is understood too.
        with suppress(UnicodeError):
            location = location.encode("latin-1").decode()
        return urljoin(at, location)
    except ValueError:
        raise SourceFailed(f"{urls.shown(at)} redirects to something that is no URL") from None


# Reading --------------------------------------------------------------------------------------------------------------


def _read(
    url: str,
    answer: http.client.HTTPResponse,
    policy: Policy,
    known: Mapping[str, Any],
    deadline: float,
    check: Callable[[], None],
) -> Document | None:
    where = urls.shown(url)
    chunks: Iterable[bytes] = _body(answer, where, policy.max_bytes, deadline, check)
    coding = (answer.getheader("Content-Encoding") or "identity").strip().lower()
    if coding in ("gzip", "x-gzip"):
        chunks = inflated(chunks, where)
    elif coding != "identity":
        raise SourceFailed(f"{where}: its body is encoded as {coding[:40]!r}, which nobody asked for")
    # Closed by the document, or below.
    file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115
    digest, size = hashlib.blake2b(digest_size=16), 0
    try:
        for piece in unpacked(chunks, where):
            size += len(piece)
            if size > policy.max_bytes:
                raise _too_large(where, policy.max_bytes)
            digest.update(piece)
            file.write(piece)
        notes = {"hash": digest.hexdigest()}
        for name, header in (("etag", "ETag"), ("modified", "Last-Modified")):
            value = answer.getheader(header)
            if value and len(value) <= 500 and value.isprintable() and value.isascii():
                notes[name] = value
        if known.get("hash") == notes["hash"]:
            file.close()
            return None
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return Document(url, file, size, answer.getheader("Link") or "", answer.headers.get_content_charset(), notes)


def _body(
    answer: http.client.HTTPResponse, where: str, most: int, deadline: float, check: Callable[[], None]
) -> Iterator[bytes]:
    size = 0
    while chunk := answer.read1(PIECE):
        size += len(chunk)
        if size > most:
            raise _too_large(where, most)
        check()
        yield chunk
    if time.monotonic() >= deadline:
        # A body without a length ends with the connection, even if that was cut.
        raise TimeoutError
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)


def _too_large(where: str, most: int) -> SourceFailed:
    return SourceFailed(f"{where} sends more than {most:,} bytes; if that is right, set max_bytes")


def _retry_after(answer: http.client.HTTPResponse) -> float | None:
    """Seconds, from a number or a date."""
    given = (answer.getheader("Retry-After") or "").strip()
    if given.isascii() and given.isdigit() and len(given) < 10:
        return float(given)
    try:
        date = parsedate_to_datetime(given)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
