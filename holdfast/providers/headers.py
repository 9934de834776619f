"""The headers of providers' responses, as they arrive: `listening()` in the caller, `report()` in a prepared client.

A context variable connects the two, so it works across sync and async code and in threads that inherit the context
(`asyncio.to_thread`), and calls that run at the same time do not hear each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from holdfast.providers.error_reply import lower


class Heard:
    """What was heard inside one `listening()`."""

    def __init__(self) -> None:
        #: Of the latest response, by their names in lower case; empty before the first.
        self.headers: Mapping[str, str] = {}


_HEARD: ContextVar[Heard | None] = ContextVar("holdfast_heard", default=None)


@contextmanager
def listening() -> Iterator[Heard]:
    """Hear the response headers of prepared clients that are used inside the block."""
    heard = Heard()
    token = _HEARD.set(heard)
    try:
        yield heard
    finally:
        _HEARD.reset(token)


def report(headers: Any) -> None:
    """Called by a prepared client for each response. Never raises: it runs within the user's call."""
    heard = _HEARD.get()
    if heard is None:
        return
    try:
        found = lower(headers)
    except Exception:
        return
    if found:
        heard.headers = found
