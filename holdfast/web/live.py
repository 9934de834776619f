"""One stream of server-sent events per open tab: the part of the page that follows the store, when its answer has changed.

The question is the page's own and goes through `questions.py`, so that twenty tabs ask it once. A stream waits at least a
second, and at least twenty times what its question took, between two looks. In between it says that it is there, and of when
the answer is: a tab that hears nothing shows that. It holds one message at a time: a reader that does not take it within a few
seconds is dropped, and comes back by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

from starlette.types import Message, Receive, Scope, Send

from holdfast.answers.text_tables import as_text, iso
from holdfast.web.rendering import answered_at
from holdfast.web.shared_answers import Answered, GaveUp

MOST_STREAMS = 200
SLOW_READER_SECONDS = 10.0
#: No stream is silent for longer, beside its questions: a tab that hears nothing for 15 s (holdfast.js) says so.
SILENT_SECONDS = 5.0
#: The end of a stream, after which the browser opens another and is judged anew.
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
        #: What the tab shows, if the last look had an answer.
        self._last: Answered | None = None

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
        begun = quiet_since = look_at = loop.time()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _sent(send, f"retry: {RECONNECT_MS}\n\n")
        while loop.time() - begun < LONGEST_SECONDS and not self._streams.is_over:
            text = ""
            if loop.time() >= look_at:
                text, pause = await self._next()
                look_at = loop.time() + pause
            if not text and loop.time() - quiet_since >= SILENT_SECONDS:
                text = self._ping()
            if text:
                await _sent(send, text)
                quiet_since = loop.time()
            # In short pieces: a server that stops does not wait for a slow question's pause.
            await asyncio.sleep(min(max(0.0, look_at - loop.time()), 0.5))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> tuple[str, float]:
        """What there is to say, and how long to wait then."""
        try:
            answered = await self._ask()
        except GaveUp as error:
            self._last = None
            return _event("gave-up", {"text": str(error)}), 10.0
        except Exception as error:
            # The page itself says what is wrong once it is loaded again.
            self._last = None
            return _event("gave-up", {"text": f"the store cannot be read now ({type(error).__name__})"}), 10.0
        is_back, self._last = self._last is None, answered
        if answered.mark == self._seen:
            return self._ping() if is_back else "", answered.fresh_seconds
        self._seen = answered.mark
        changed = {"mark": answered.mark, "html": self._render(answered), **_times(answered)}
        return _event("changed", changed), answered.fresh_seconds

    def _ping(self) -> str:
        return _event("ping", {} if self._last is None else _times(self._last))


def _times(answered: Answered) -> dict[str, str]:
    """Of when the answer is, and what the time is here: the clock of the browser may be wrong."""
    return {"at": iso(answered_at(answered)), "now": iso(datetime.now(UTC))}


def _event(name: str, data: dict[str, str]) -> str:
    return f"event: {name}\ndata: {as_text(data)}\n\n"


async def _sent(send: Send, text: str) -> None:
    message: Message = {"type": "http.response.body", "body": text.encode(), "more_body": True}
    await asyncio.wait_for(send(message), SLOW_READER_SECONDS)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
