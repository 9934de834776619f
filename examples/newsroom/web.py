"""Talking to the site and to the analyst. What goes wrong is raised as it comes: holdfast reads a status of 429 or 503 with
Retry-After from the exception, lets everybody wait, and spends no attempt."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from holdfast import Permanent

TIMEOUT_SECONDS = 15.0
LOCAL = "http://127.0.0.1:8050"
#: For ever: asking again changes nothing.
GONE = (404, 410)
#: No proxy: what is asked here is on this machine, or a site that was named.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def site() -> str:
    return os.environ.get("NEWSROOM_SITE", LOCAL).rstrip("/")


def analyst() -> str:
    return os.environ.get("NEWSROOM_ANALYST", f"{site()}/analyst").rstrip("/")


def get(url: str) -> dict[str, Any]:
    """A page: its text, and what the server says of it."""
    try:
        with _open(urllib.request.Request(url, headers={"Accept": "text/html"}), timeout=TIMEOUT_SECONDS) as reply:
            charset = reply.headers.get_content_charset("utf-8")
            return {"html": reply.read().decode(charset, "replace"), "etag": reply.headers.get("ETag")}
    except urllib.error.HTTPError as error:
        if error.code in GONE:
            raise Permanent(f"{url}: the site answers {error.code}, the page is gone") from None
        raise
    except HTTPException as error:
        # A server that hangs up in the middle of an answer.
        raise ConnectionError(f"{url}: {type(error).__name__}: {error}") from None


def ask(title: str, text: str, idempotency: str) -> dict[str, Any]:
    """Have the analyst look at a text. This costs money."""
    body = json.dumps({"title": title, "text": text}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency}
    request = urllib.request.Request(f"{analyst()}/analyse", body, headers)
    with _open(request, timeout=TIMEOUT_SECONDS) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def control(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Change the local site (`{"day": 2, "pages.down": True}`); return how it stands."""
    body = None if changes is None else json.dumps(changes).encode()
    try:
        with _open(urllib.request.Request(f"{site()}/control", body), timeout=TIMEOUT_SECONDS) as reply:
            told: dict[str, Any] = json.load(reply)
    except urllib.error.HTTPError as error:
        raise ValueError(json.load(error)["error"]) from None
    return told


def alerts() -> list[dict[str, Any]]:
    """What the local site was told by holdfast."""
    with _open(f"{site()}/alerts", timeout=TIMEOUT_SECONDS) as reply:
        told: list[dict[str, Any]] = json.load(reply)
    return told
