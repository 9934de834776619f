"""One stream of server-sent events per open tab: the part of the page that follows the store, when its answer has changed.

The question is the page's own and goes through `questions.py`, so that twenty tabs ask it once. A stream waits at least a
second, and at least twenty times what its question took, between two looks. It holds one message at a time: a reader that does
not take it within a few seconds is dropped, and comes back by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.types import Message, Receive, Scope, Send

from holdfast.answers.text_tables import as_text
from holdfast.web.shared_answers import Answered, GaveUp

MOST_STREAMS = 200
SLOW_READER_SECONDS = 10.0
#: A sign of life for proxies; and the end of a stream, after which the browser opens another and is judged anew.
SILENT_SECONDS = 15.0
LONGEST_SECONDS = 600.0
RECONNECT_MS = 2000

Ask = Callable[[], Awaitable[Answered]]


class Streams:
    """The open streams of a server."""

    def __init__(self) -> None:
        self.open = 0
        self._is_over = False

    @property
    def is_full(self) -> bool:
        return self.open >= MOST_STREAMS

    @property
    def is_over(self) -> bool:
        return self._is_over

    def end(self) -> None:
        """End every stream within a second: the server stops."""
        self._is_over = True


class LiveStream:
    """An ASGI response. `seen` is the mark of the answer that the tab shows."""

    def __init__(self, streams: Streams, ask: Ask, render: Callable[[Answered], str], seen: str) -> None:
        self._streams, self._ask, self._render, self._seen = streams, ask, render, seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        self._streams.open += 1
        gone = asyncio.ensure_future(_disconnected(receive))
        telling = asyncio.ensure_future(self._tell(send, headers))
        try:
            await asyncio.wait({gone, telling}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.open -= 1
            for task in (gone, telling):
                task.cancel()
                with suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task

    async def _tell(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        begun = quiet_since = loop.time()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _sent(send, f"retry: {RECONNECT_MS}\n\n")
        while loop.time() - begun < LONGEST_SECONDS and not self._streams.is_over:
            text, pause = await self._next()
            if not text and loop.time() - quiet_since > SILENT_SECONDS:
                text = ": still here\n\n"
            if text:
                await _sent(send, text)
                quiet_since = loop.time()
            await self._wait(pause)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> tuple[str, float]:
        """What there is to say, and how long to wait then."""
        try:
            answered = await self._ask()
        except GaveUp as error:
            return _event("gave-up", {"text": str(error)}), 10.0
        except Exception as error:
            # The page itself says what is wrong once it is loaded again.
            return _event("gave-up", {"text": f"the store cannot be read now ({type(error).__name__})"}), 10.0
        if answered.mark == self._seen:
            return "", answered.fresh_seconds
        self._seen = answered.mark
        return _event("changed", {"mark": answered.mark, "html": self._render(answered)}), answered.fresh_seconds

    async def _wait(self, seconds: float) -> None:
        """In short pieces: a server that stops does not wait for a slow question's pause."""
        until = asyncio.get_running_loop().time() + seconds
        while not self._streams.is_over and (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left, 0.5))


def _event(name: str, data: dict[str, str]) -> str:
    return f"event: {name}\ndata: {as_text(data)}\n\n"


async def _sent(send: Send, text: str) -> None:
    message: Message = {"type": "http.response.body", "body": text.encode(), "more_body": True}
    await asyncio.wait_for(send(message), SLOW_READER_SECONDS)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
