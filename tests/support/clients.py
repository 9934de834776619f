"""One paid call by each of the clients that people use, without retries of their own.

    CLIENTS["openai"](f"{server.url}/429")       # raises what that client raises

The clients of providers take seconds to load, and much memory, which makes every fork slower: they are loaded by the first
call, in the one process that runs tests of GROUP.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import aiohttp
import httpx
import pytest
import requests

#: Long enough for a busy machine to answer, short enough to wait for.
SECONDS = 2.0
GROUP = pytest.mark.together("clients")
_ASK: Any = [{"role": "user", "content": "well?"}]


def load() -> None:
    """Those that take long."""
    import_module("openai")
    import_module("anthropic")


def by_httpx(url: str) -> Any:
    # To read the certificates takes longer than the call.
    return httpx.post(url, json={}, timeout=SECONDS, verify=False).raise_for_status().json()


def by_requests(url: str) -> Any:
    reply = requests.post(url, json={}, timeout=SECONDS)
    reply.raise_for_status()
    return reply.json()


def by_urllib(url: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, data=b"{}"), timeout=SECONDS) as reply:
        return bytes(reply.read())


def by_aiohttp(url: str) -> Any:
    async def ask() -> Any:
        timeout = aiohttp.ClientTimeout(sock_connect=SECONDS, sock_read=SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:
            async with session.post(url, json={}) as reply:
                return await reply.json()

    return asyncio.run(ask())


def by_openai(url: str, stream: bool = False) -> Any:
    import openai

    with openai.OpenAI(api_key="none", base_url=url, max_retries=0, timeout=SECONDS) as client:
        reply: Any = client.chat.completions.create(model="m", messages=_ASK, stream=stream)
        return _text(reply, stream, lambda: reply.choices[0].message.content)


def by_anthropic(url: str, stream: bool = False) -> Any:
    import anthropic

    with anthropic.Anthropic(api_key="none", base_url=url, max_retries=0, timeout=SECONDS) as client:
        reply: Any = client.messages.create(model="m", max_tokens=5, messages=_ASK, stream=stream)
        return _text(reply, stream, lambda: reply.content[0].text)


def _text(reply: Iterable[Any], stream: bool, text: Callable[[], Any]) -> Any:
    return str(list(reply)) if stream else text()


CLIENTS: dict[str, Callable[[str], Any]] = {
    "httpx": by_httpx,
    "requests": by_requests,
    "urllib": by_urllib,
    "aiohttp": by_aiohttp,
    "openai": by_openai,
    "anthropic": by_anthropic,
}
#: The clients of providers, reading a stream.
STREAMING: dict[str, Callable[[str], Any]] = {
    "openai": lambda url: by_openai(url, stream=True),
    "anthropic": lambda url: by_anthropic(url, stream=True),
}
