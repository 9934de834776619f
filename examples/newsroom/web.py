"""Asking the site and the analyst. What goes wrong is raised as it comes: holdfast reads from the exception what it means."""

from __future__ import annotations

import os
from typing import Any

import httpx

from examples.newsroom.reading import Article
from holdfast import Permanent
from holdfast.providers import prepare

#: No proxy: what is asked here is on this machine, or a site that was named.
client = prepare(httpx.Client(timeout=15, follow_redirects=True, trust_env=False))


def site() -> str:
    return os.environ.get("NEWSROOM_SITE", "http://127.0.0.1:8050").rstrip("/")


def analyst() -> str:
    return os.environ.get("NEWSROOM_ANALYST", f"{site()}/analyst").rstrip("/")


def get(url: str) -> str:
    reply = client.get(url)
    if reply.status_code in (404, 410):
        raise Permanent(f"{url}: the site answers {reply.status_code}, the page is gone")
    return reply.raise_for_status().text


def ask(article: Article, idempotency: str, *, model: str) -> Any:
    """Have the analyst look at an article. This costs money."""
    asked = {"model": model, "title": article.title, "text": "\n".join(article.paragraphs)}
    reply = client.post(f"{analyst()}/analyse", json=asked, headers={"Idempotency-Key": idempotency})
    return reply.raise_for_status().json()
