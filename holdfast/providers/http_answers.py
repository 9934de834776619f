"""Answers that wrap an HTTP response: raw responses of a provider's package, responses of a plain HTTP client, and content that
is neither JSON nor text, such as speech.

What was bought is what is inside. Nothing is imported: classes are recognised by their package and by what they offer.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from holdfast.errors import NotSent, ValueRefused
from holdfast.model import codec

_PACKAGES = frozenset({"openai", "anthropic", "google", "mistralai", "cohere", "litellm"})
_HTTP_CLIENTS = frozenset({"httpx", "httpx2", "requests"})
_TEXTS = ("text/", "application/xml", "application/x-ndjson", "application/jsonl")


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes that a call returned, and their media type if it is known."""

    data: bytes
    type: str | None = None
    #: Why they could not be kept as content.
    trouble: str = ""

    def model_dump(self, **_: Any) -> Any:
        raise ValueRefused(self.trouble or "JSON has no bytes")

    def as_text(self, most: int) -> str:
        """For people: text as it is, everything else in base64, or so many bytes of it."""
        if self.type is None and len(self.data) <= most // 4:
            try:
                text = self.data.decode()
            except UnicodeDecodeError:
                text = "\0"
            if all(one.isprintable() or one in "\r\n\t" for one in text):
                return text
        return f"data:{self.type or 'application/octet-stream'};base64,{base64.b64encode(self.data[:most]).decode()}"


def unwrapped(answer: Any) -> Any:
    """What an answer wraps, one layer; the answer itself if it wraps nothing. Of an async client it may have to be awaited."""
    kind = type(answer)
    if isinstance(answer, (bytes, bytearray)):
        return Content(bytes(answer))
    packages = {one.__module__.partition(".")[0] for one in kind.__mro__}
    if not packages.isdisjoint(_PACKAGES):
        return _of_package(answer, kind)
    if not packages.isdisjoint(_HTTP_CLIENTS) and hasattr(kind, "raise_for_status"):
        return _body(answer)
    return answer


def wrapped_text(answer: Any, most: int) -> str | None:
    """The text or the bytes of an answer that cannot be kept, for people: up to so many bytes. None if it wraps none. Never
    raises."""
    try:
        inside = answer
        while (further := unwrapped(inside)) is not inside:
            inside = further
        if inspect.iscoroutine(inside):
            inside.close()
            return None
        if isinstance(inside, Content):
            return inside.as_text(most)
        if inside is answer:
            return None
        # JSON may take six bytes for a character.
        return codec.plain_text(inside if isinstance(inside, str) else codec.encode(inside), most // 4)
    except Exception:
        return None


def _of_package(answer: Any, kind: type) -> Any:
    if kind.__name__.endswith("ResponseContextManager"):
        if inspect.iscoroutine(waiting := getattr(answer, "_api_request", None)):
            waiting.close()
        raise NotSent(f"a {kind.__name__} sends its request in a `with` block: use with_raw_response, or stream=True")
    if hasattr(kind, "parse") and hasattr(kind, "http_request"):
        return _parsed(answer)
    if kind.__name__ in ("HttpResponse", "AsyncHttpResponse") and hasattr(kind, "data"):  # cohere
        return answer.data
    if hasattr(kind, "write_to_file") and hasattr(response := getattr(answer, "response", None), "content"):
        return _body(response)
    return answer


def _parsed(answer: Any) -> Any:
    """What a raw response says; its text or bytes if its package cannot read it."""
    try:
        found = answer.parse()
    except Exception:
        return _body(answer.http_response)
    return _parsed_later(found, answer) if inspect.isawaitable(found) else found


async def _parsed_later(found: Awaitable[Any], answer: Any) -> Any:
    try:
        return await found
    except Exception:
        return _body(answer.http_response)


def _body(response: Any) -> Any:
    """What a response brought. One that reports an error raises it, as those of a provider's package do."""
    response.raise_for_status()
    data, said = response.content, str(response.headers.get("content-type") or "")
    kind = said.partition(";")[0].strip().lower()
    if kind.endswith("json") or not kind:
        try:
            return json.loads(data)
        except ValueError:
            pass
    if kind.startswith(_TEXTS) or kind.endswith(("json", "+xml")) or not data:
        return response.text
    return Content(data, kind or None)
