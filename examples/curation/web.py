"""Asking web sites, with a limit on everything, and errors that say what to do about them.

Permanent     it is not there, or not for us: asking again does not help
RetryLater    the site said when to come again; that costs no attempt
Unreachable   it did not answer, or badly: try again after a pause
"""

from __future__ import annotations

import http.client
import json
import urllib.request
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from holdfast import Permanent, RetryLater

#: The most that is read of an answer: a sitemap may have 50 MB.
MOST_BYTES = 50_000_000
#: The longest a site may send us away.
LONGEST_SECONDS = 3600.0


class Unreachable(Exception):
    """A site did not answer, or not as it should; the next attempt may have more luck."""


class Web:
    """The web, directly or through a proxy (host:port)."""

    def __init__(self, proxy: str = "", timeout_seconds: float = 10.0) -> None:
        proxies = {"http": proxy, "https": proxy} if proxy else {}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
        self._timeout = timeout_seconds

    def get(self, url: str) -> bytes:
        """What is there. Blocks; no transaction should be open meanwhile."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Permanent(f"{url}: no address of a web page")
        try:
            with self._opener.open(url, timeout=self._timeout) as answer:
                body: bytes = answer.read(MOST_BYTES + 1)
        except HTTPError as error:
            raise _verdict(url, error) from None
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{url}: {type(error).__name__}: {error}") from error
        if len(body) > MOST_BYTES:
            raise Permanent(f"{url}: more than {MOST_BYTES} bytes")
        return body

    def get_json(self, url: str) -> dict[str, Any]:
        try:
            found = json.loads(self.get(url))
        except ValueError as error:
            raise Permanent(f"{url}: not JSON: {error}") from None
        if not isinstance(found, dict):
            raise Permanent(f"{url}: an object was expected")
        return found


def _verdict(url: str, error: HTTPError) -> Exception:
    error.close()
    said = f"{url}: the site answered {error.code} {error.reason}"
    after = error.headers.get("Retry-After", "")
    if error.code in (429, 503) and after.isdecimal():
        return RetryLater(after=min(float(after), LONGEST_SECONDS))
    return Unreachable(said) if error.code in (408, 425, 429) or error.code >= 500 else Permanent(said)
