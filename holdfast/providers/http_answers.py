"""Answers that wrap an HTTP response: raw responses of a provider's package, responses of a plain HTTP client, and content that
is neither JSON nor text, such as speech. And answers that are none: nothing was sent, or an error is inside.

What was bought is what is inside. Nothing is imported: classes are recognised by their package and by what they offer.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.errors import NotSent, ValueRefused
from holdfast.model import codec
from holdfast.providers.error_reply import error_in

_PACKAGES = frozenset({"openai", "anthropic", "google", "mistralai", "cohere", "litellm"})
_HTTP_CLIENTS = frozenset({"httpx", "httpx2", "requests"})
#: Where an answer of botocore keeps what is read from the connection.
_READ_LATER = ("body", "Body", "stream")
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
        left_out = f"(the first {most} of {len(self.data)} bytes) " if len(self.data) > most else ""
        kept = base64.b64encode(self.data[:most]).decode()
        return f"{left_out}data:{self.type or 'application/octet-stream'};base64,{kept}"


def unwrapped(answer: Any) -> Any:
    """What an answer wraps; the answer itself if it wraps nothing. Nothing is awaited: an async client's raw response that was
    read, in a handler that is sync, is its body."""
    while (inside := _one_layer(answer)) is not answer:
        if inspect.iscoroutine(inside):
            inside.close()
            return unwrapped(_body(answer.http_response))
        answer = inside
    return answer


async def unwrapped_async(answer: Any) -> Any:
    while (inside := _one_layer(answer)) is not answer:
        try:
            answer = await inside if inspect.isawaitable(inside) else inside
        except Exception:
            answer = _body(answer.http_response)
    return answer


def require_sent(answer: Any) -> None:
    """Refuse what a provider's package returns before it has sent anything."""
    kind = type(answer)
    if kind.__name__.endswith("ResponseContextManager") and _is_of(_PACKAGES, kind):
        if inspect.iscoroutine(waiting := getattr(answer, "_api_request", None)):
            waiting.close()
        raise NotSent(f"a {kind.__name__} sends its request in a `with` block: use with_raw_response, or stream=True")


def require_no_error(answer: Any, form: Any) -> None:
    """Refuse an answer of a provider's package that reports an error, although the status is 200: OpenRouter sends such, and
    OpenAI a response that has failed. `form` is its JSON form."""
    if isinstance(form, dict) and _is_of(_PACKAGES, type(answer)):
        for part in (form, *(form.get("choices") or ())):
            if isinstance(part, dict) and isinstance(part.get("error"), dict):
                raise error_in(part, "the answer")


def _is_of(packages: frozenset[str], kind: type) -> bool:
    return not packages.isdisjoint(one.__module__.partition(".")[0] for one in kind.__mro__)


def _one_layer(answer: Any) -> Any:
    """What an answer wraps directly, a coroutine if that has to be awaited."""
    kind = type(answer)
    if isinstance(answer, (bytes, bytearray)):
        return Content(bytes(answer))
    if kind is dict and "ResponseMetadata" in answer:
        return _of_botocore(answer)
    if _is_of(_PACKAGES, kind):
        return _of_package(answer, kind)
    if _is_of(_HTTP_CLIENTS, kind) and hasattr(kind, "raise_for_status"):
        return _body(answer)
    return answer


def wrapped_text(answer: Any, most: int) -> str | None:
    """The text or the bytes of an answer that cannot be kept, for people: up to so many bytes. None if it wraps none. Never
    raises."""
    try:
        inside = unwrapped(answer)
        if isinstance(inside, Content):
            return inside.as_text(most)
        if inside is answer:
            return None
        # JSON may take six bytes for a character.
        return codec.plain_text(inside if isinstance(inside, str) else codec.encode(inside), most // 4)
    except Exception:
        return None


def _of_package(answer: Any, kind: type) -> Any:
    require_sent(answer)
    if hasattr(kind, "parse") and hasattr(kind, "http_request"):
        return _parsed(answer)
    if kind.__name__ in ("HttpResponse", "AsyncHttpResponse") and hasattr(kind, "data"):  # cohere
        return answer.data
    if hasattr(kind, "write_to_file") and hasattr(response := getattr(answer, "response", None), "content"):
        return _body(response)
    return answer


def _of_botocore(answer: dict[str, Any]) -> Any:
    """The body or the stream of events that an answer brings; without one, it is whole."""
    for name in _READ_LATER:
        inside: Any = answer.get(name)
        match type(inside).__name__ if _is_of(frozenset({"botocore"}), type(inside)) else None:
            case "EventStream":
                return inside
            case "StreamingBody":
                data = inside.read()
                said = str(answer.get("contentType") or answer.get("ContentType") or "")
                return _content(data, said, partial(data.decode, "utf-8", "replace"))
    return answer


def _parsed(answer: Any) -> Any:
    """What a raw response says; its text or bytes if its package cannot read it."""
    try:
        return answer.parse()
    except Exception:
        return _body(answer.http_response)


def _body(response: Any) -> Any:
    """What a response brought. One that reports an error raises it, as those of a provider's package do."""
    response.raise_for_status()
    return _content(response.content, str(response.headers.get("content-type") or ""), lambda: response.text)


def _content(data: bytes, said: str, text: Callable[[], Any]) -> Any:
    """The JSON, the text or the bytes of a body, by its media type."""
    kind = said.partition(";")[0].strip().lower()
    if kind.endswith("json") or not kind:
        try:
            return json.loads(data, parse_constant=_refused)
        except ValueError:
            pass
    if kind.startswith(_TEXTS) or kind.endswith(("json", "+xml")) or not data:
        return text()
    return Content(data, kind or None)


def _refused(constant: str) -> Any:
    raise ValueError(f"JSON has no {constant}")
