"""Streams of answers: read to their end, closed on every way out, and put together to the answer that the same call would have
given without streaming."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from holdfast.errors import UsageError, ValueRefused
from holdfast.model import codec
from holdfast.providers.litellm_streams import Ending
from holdfast.providers.stream_forms import Assembly, form_of, unfinished

_LIBRARIES = ("openai.", "anthropic.", "google.genai.", "mistralai.", "cohere.", "litellm.", "botocore.eventstream.")
#: What the stream helpers of OpenAI and Anthropic, which are used in a `with` block, give at the end.
_FINAL = ("get_final_message", "get_final_completion", "get_final_response")


def is_stream(value: Any) -> bool:
    """Whether a call returned a stream of its answer, sync or async: a generator, or a stream of a provider's package."""
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return True
    kind = type(value)
    is_read = hasattr(kind, "__next__") or hasattr(kind, "__anext__") or kind.__name__ == "EventStream"
    return _is_of_package(value) and (is_read or _is_helper(value))


def assemble(stream: Any) -> Any:
    """Read a sync stream to its end, and return its answer in JSON form."""
    if _is_helper(stream):
        if not hasattr(type(stream), "__enter__"):
            raise _is_async(stream)
        with stream as opened:
            return codec.plain(getattr(opened, _final(opened))())
    if not hasattr(stream, "__next__") and not hasattr(stream, "__iter__"):
        raise _is_async(stream)
    assembling, ending = _Assembling(is_of_package=_is_of_package(stream)), Ending(stream)
    try:
        for chunk in stream:
            assembling.add(chunk)
        if ending.is_missing:
            raise unfinished()
        return assembling.answer()
    finally:
        for closing in _closings(stream, "close"):
            with suppress(Exception):
                closing()


async def assemble_async(stream: Any) -> Any:
    """The same for an async stream, or for a sync one in a thread."""
    if _is_helper(stream) and hasattr(type(stream), "__aenter__"):
        async with stream as opened:
            return codec.plain(await getattr(opened, _final(opened))())
    if not hasattr(stream, "__aiter__"):
        return await asyncio.to_thread(assemble, stream)
    assembling, ending = _Assembling(is_of_package=_is_of_package(stream)), Ending(stream)
    try:
        async for chunk in stream:
            assembling.add(chunk)
        if ending.is_missing:
            raise unfinished()
        return assembling.answer()
    finally:
        for closing in _closings(stream, "aclose", "close"):
            with suppress(Exception):
                if inspect.isawaitable(waiting := closing()):
                    await waiting


class _Assembling:
    """The first chunk that says something says what kind of stream it is."""

    def __init__(self, *, is_of_package: bool) -> None:
        self._is_of_package = is_of_package
        self._assembly: Assembly | None = None
        self._others: list[Any] = []

    def add(self, chunk: Any) -> None:
        try:
            form = codec.plain(_event(chunk))
        except ValueRefused:
            form = chunk
        if isinstance(form, dict) and isinstance(data := form.get("data"), dict):  # mistralai
            form = data
        if self._assembly is None and (kind := form_of(form)) is not None:
            self._assembly = kind()
        if self._assembly is not None and isinstance(form, dict):
            self._assembly.add(form)
        else:
            self._others.append(form)

    def answer(self) -> Any:
        if self._assembly is not None:
            return self._assembly.answer()
        if self._others and all(isinstance(one, str) for one in self._others):
            return {"text": "".join(self._others)}
        if self._others and all(isinstance(one, bytes) for one in self._others):
            return b"".join(self._others)
        if self._is_of_package and not self._others:
            raise unfinished()  # a connection that was closed, or a reply that is no stream at all
        return self._others


def _event(chunk: Any) -> Any:
    """Bedrock wraps the events of a model that is invoked, as JSON."""
    wrapped = chunk.get("chunk") if isinstance(chunk, dict) else None
    if isinstance(wrapped, dict) and isinstance(wrapped.get("bytes"), bytes):
        try:
            return json.loads(wrapped["bytes"])
        except ValueError:
            pass
    return chunk


def _is_of_package(value: Any) -> bool:
    """Whether a provider's package made this value. google-genai and cohere return generators."""
    frame = getattr(value, "gi_frame", None) or getattr(value, "ag_frame", None)
    modules = [str(frame.f_globals.get("__name__"))] if frame else [one.__module__ for one in type(value).__mro__]
    return any(f"{one}.".startswith(_LIBRARIES) for one in modules)


def _is_helper(value: Any) -> bool:
    return type(value).__name__.endswith("StreamManager")


def _final(opened: Any) -> str:
    return next((name for name in _FINAL if hasattr(opened, name)), _FINAL[0])


def _closings(stream: Any, *names: str) -> Iterator[Any]:
    """What closes a stream, and the one that it reads from (litellm)."""
    for one in (stream, getattr(stream, "completion_stream", None)):
        if (name := next((name for name in names if hasattr(one, name)), None)) is not None:
            yield getattr(one, name)


def _is_async(stream: Any) -> UsageError:
    return UsageError(f"a stream of type {type(stream).__name__} is async: make the call from an async handler")
