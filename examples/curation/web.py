"""Asking web sites: one request at a time, with a limit on everything, and errors that say what to do about them.

    Permanent     it is not there, or not for us: asking again does not help
    RetryLater    the site said when to come again; that costs no attempt
    Unreachable   it did not answer, or badly: try again after a pause
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from holdfast import Permanent, RetryLater

#: The most that is read of an answer: a sitemap may have 50 MB.
MOST_BYTES = 50_000_000
MOST_REDIRECTS = 5
#: The longest a site may send us away.
LONGEST_SECONDS = 3600.0
AGENT = "curation-example/1"


class Unreachable(Exception):
    """A site did not answer, or not as it should; the next attempt may have more luck."""


@dataclass(frozen=True)
class Web:
    """The web; `via` names one server that answers for every site, by the Host header."""

    via: str = ""
    timeout_seconds: float = 10.0

    def get(self, url: str) -> bytes:
        """What is there. Blocks; no transaction should be open meanwhile."""
        for _ in range(MOST_REDIRECTS):
            body, elsewhere = self._ask(url)
            if elsewhere is None:
                return body
            url = urljoin(url, elsewhere)
        raise Permanent(f"{url}: more than {MOST_REDIRECTS} redirects")

    def get_json(self, url: str) -> dict[str, Any]:
        try:
            found = json.loads(self.get(url))
        except ValueError as error:
            raise Permanent(f"{url}: not JSON: {error}") from None
        if not isinstance(found, dict):
            raise Permanent(f"{url}: an object was expected")
        return found

    def _ask(self, url: str) -> tuple[bytes, str | None]:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Permanent(f"{url}: no address of a web page")
        place = self.via or parts.netloc.rpartition("@")[2]
        kind = http.client.HTTPConnection if self.via or parts.scheme == "http" else http.client.HTTPSConnection
        connection = kind(place, timeout=self.timeout_seconds)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("GET", target, headers={"Host": parts.netloc.rpartition("@")[2], "User-Agent": AGENT})
            answer = connection.getresponse()
            if answer.status in (301, 302, 303, 307, 308):
                return b"", answer.headers.get("Location", "")
            _judge(url, answer)
            body = answer.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{url}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if len(body) > MOST_BYTES:
            raise Permanent(f"{url}: more than {MOST_BYTES} bytes")
        return body, None


def _judge(url: str, answer: http.client.HTTPResponse) -> None:
    if answer.status == 200:
        return
    said = f"{url}: the site answered {answer.status} {answer.reason}"
    after = answer.headers.get("Retry-After", "")
    if answer.status in (429, 503) and after.isdecimal():
        raise RetryLater(after=min(float(after), LONGEST_SECONDS))
    if answer.status in (408, 425, 429) or answer.status >= 500:
        raise Unreachable(said)
    raise Permanent(said)
