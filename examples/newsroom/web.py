"""Asking the site and the analyst. What goes wrong is raised as it comes: holdfast reads from the exception what it means."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from holdfast import Permanent

TIMEOUT_SECONDS = 15.0
#: No proxy: what is asked here is on this machine, or a site that was named.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def site() -> str:
    return os.environ.get("NEWSROOM_SITE", "http://127.0.0.1:8050").rstrip("/")


def analyst() -> str:
    return os.environ.get("NEWSROOM_ANALYST", f"{site()}/analyst").rstrip("/")


def open_url(url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Any:
    return _opener.open(urllib.request.Request(url, body, headers or {}), timeout=TIMEOUT_SECONDS)


@dataclass
class Page:
    html: str


def get(url: str) -> Page:
    try:
        with open_url(url, headers={"Accept": "text/html"}) as reply:
            charset = reply.headers.get_content_charset("utf-8")
            return Page(reply.read().decode(charset, "replace"))
    except urllib.error.HTTPError as error:
        if error.code in (404, 410):
            raise Permanent(f"{url}: the site answers {error.code}, the page is gone") from None
        raise
    except HTTPException as error:
        # A server that hangs up in the middle of an answer.
        raise ConnectionError(f"{url}: {type(error).__name__}: {error}") from None


def ask(title: str, text: str, idempotency: str, *, model: str) -> Any:
    """Have the analyst look at a text. This costs money."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency}
    body = json.dumps({"model": model, "title": title, "text": text}).encode()
    with open_url(f"{analyst()}/analyse", body, headers) as reply:
        return json.load(reply)
