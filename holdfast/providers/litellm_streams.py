"""How a stream of litellm ended. litellm reports each stream as finished, also one that broke off.

Of most providers it keeps the real reason in an attribute. For Gemini it makes up a reason for every chunk, so the provider's
own chunks are looked at, on their way through its parser.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

_KEPT = ("received_finish_reason", "intermittent_finish_reason")


class Ending:
    """The end of a stream that has not been read yet. Of a stream that is not litellm's it knows nothing."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._is_litellm = any(one.__module__.startswith("litellm.") for one in type(stream).__mro__)
        #: Gemini's candidates by number, and whether each of them had a reason to end.
        self._candidates: dict[int, bool] = {}
        if self._is_litellm:
            self._listen()

    @property
    def is_missing(self) -> bool:
        """Whether the stream, now read, has ended without the provider saying so."""
        if not self._is_litellm:
            return False
        kept = [getattr(self._stream, name) for name in _KEPT if hasattr(self._stream, name)]
        return (bool(kept) and not any(kept)) or not all(self._candidates.values())

    def _listen(self) -> None:
        if getattr(self._stream, "completion_stream", None) is not None:
            self._listen_to(self._stream.completion_stream)
        elif callable(make_call := getattr(self._stream, "make_call", None)):
            # The request is sent when the first chunk is asked for.
            self._stream.make_call = self._listening(make_call)

    def _listening(self, make_call: Callable[..., Any]) -> Callable[..., Any]:
        async def listen_later(made: Any) -> Any:
            return self._listen_to(await made)

        @functools.wraps(make_call)
        def call(*args: Any, **kwargs: Any) -> Any:
            made = make_call(*args, **kwargs)
            return listen_later(made) if inspect.isawaitable(made) else self._listen_to(made)

        return call

    def _listen_to(self, chunks: Any) -> Any:
        parse = getattr(chunks, "chunk_parser", None)
        if parse is not None:

            def parse_and_note(chunk: Any, *args: Any, **kwargs: Any) -> Any:
                self._note(chunk)
                return parse(chunk, *args, **kwargs)

            chunks.chunk_parser = parse_and_note
        return chunks

    def _note(self, chunk: Any) -> None:
        candidates = chunk.get("candidates") if isinstance(chunk, dict) else None
        for candidate in candidates or ():
            number = candidate.get("index") or 0
            self._candidates[number] = self._candidates.get(number, False) or bool(candidate.get("finishReason"))
