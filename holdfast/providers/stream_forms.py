"""How the chunks of each provider become one answer, in the form that the provider has without streaming.

A stream that ends without saying so has lost the rest of its answer, and an error inside it comes after tokens were paid for:
both leave the call in doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from holdfast.errors import InDoubt
from holdfast.providers.error_reply import error_in

Chunk = dict[str, Any]
#: Parts of a delta that are repeated or replaced, not continued.
_WHOLE = frozenset({"role", "id", "type", "index", "finish_reason", "stop_reason", "object", "model"})


class Assembly(Protocol):
    def add(self, chunk: Chunk) -> None: ...

    def answer(self) -> Any: ...


def form_of(first: Any) -> Callable[[], Assembly] | None:
    """What puts a stream together that begins with this chunk; None if it is not known."""
    if not isinstance(first, dict):
        return None
    kind = first.get("type")
    if isinstance(kind, str):
        if kind.startswith("response.") or kind == "error":
            return _Events
        if kind in ("message_start", "ping"):
            return _Messages
        if kind == "message-start":
            return _Cohere
    if isinstance(first.get("event_type"), str):
        return _Events
    if "candidates" in first or "usage_metadata" in first or "usageMetadata" in first:
        return _Gemini
    if isinstance(first.get("choices"), list):
        return _Completions
    if "messageStart" in first:
        return _Converse
    return None


def _broken(chunk: Any, otherwise: str) -> InDoubt:
    return error_in(chunk, "the stream", otherwise)


def unfinished() -> InDoubt:
    return InDoubt("the stream ended before the answer was complete")


class _Completions:
    """Chat completions of OpenAI, and of those who speak like it (Mistral, litellm); legacy completions as well."""

    def __init__(self) -> None:
        self._top: Chunk = {}
        self._choices: dict[int, Chunk] = {}

    def add(self, chunk: Chunk) -> None:
        if isinstance(chunk.get("error"), dict):
            raise _broken(chunk, "")
        for name, value in chunk.items():
            if name != "choices" and value is not None:
                self._top[name] = value
        for choice in chunk.get("choices") or ():
            into = self._choices.setdefault(choice.get("index") or 0, {})
            merge(into, {("message" if name == "delta" else name): value for name, value in choice.items()})

    def answer(self) -> Any:
        choices = [self._choices[index] for index in sorted(self._choices)]
        if not any(choice.get("finish_reason") for choice in choices):
            raise unfinished()
        for choice in choices:
            message = choice.get("message")
            if isinstance(message, dict):
                message.setdefault("role", "assistant")
                message.setdefault("content", None)
                for call in message.get("tool_calls") or ():
                    call.pop("index", None)
        kind = str(self._top.get("object", "")).removesuffix(".chunk")
        return {**self._top, "object": kind, "choices": choices}


class _Events:
    """Responses of OpenAI, and the first chat API of cohere: the last event has the whole answer."""

    def __init__(self) -> None:
        self._answer: Any = None

    def add(self, event: Chunk) -> None:
        kind = event.get("type") or event.get("event_type")
        if kind in ("error", "response.failed"):
            raise _broken(event, str(kind))
        if kind in ("response.completed", "response.incomplete", "response.cancelled", "stream-end"):
            self._answer = event.get("response")

    def answer(self) -> Any:
        if self._answer is None:
            raise unfinished()
        return self._answer


class _Messages:
    """Messages of Anthropic."""

    def __init__(self) -> None:
        self._message: Chunk = {}
        self._blocks: dict[int, Chunk] = {}
        self._inputs: dict[int, str] = {}
        self._is_over = False

    def add(self, event: Chunk) -> None:
        match event.get("type"):
            case "error":
                raise _broken(event, "error")
            case "message_start":
                self._message = dict(event.get("message") or {})
            case "content_block_start":
                self._blocks[event["index"]] = dict(event.get("content_block") or {})
            case "content_block_delta":
                self._continue(event["index"], event.get("delta") or {})
            case "message_delta":
                self._message |= event.get("delta") or {}
                counts = {name: value for name, value in (event.get("usage") or {}).items() if value is not None}
                self._message["usage"] = {**(self._message.get("usage") or {}), **counts}
            case "message_stop":
                self._is_over = True

    def _continue(self, index: int, delta: Chunk) -> None:
        block = self._blocks.setdefault(index, {})
        kind = delta.get("type")
        if kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + (delta.get("partial_json") or "")
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
        elif kind == "signature_delta":
            block["signature"] = delta.get("signature")
        else:
            for name, value in delta.items():
                if name != "type" and isinstance(value, str):
                    block[name] = (block.get(name) or "") + value

    def answer(self) -> Any:
        if not self._is_over:
            raise unfinished()
        for index, text in self._inputs.items():
            self._blocks[index]["input"] = _parsed(text)
        return {**self._message, "content": [self._blocks[index] for index in sorted(self._blocks)]}


class _Gemini:
    """Chunks of google-genai: each is an answer with the next parts. Its counts are sums so far."""

    def __init__(self) -> None:
        self._top: Chunk = {}
        self._candidates: dict[int, Chunk] = {}

    def add(self, chunk: Chunk) -> None:
        if isinstance(chunk.get("error"), dict):
            raise _broken(chunk, "")
        for name, value in chunk.items():
            if name != "candidates" and value is not None:
                self._top[name] = value
        for candidate in chunk.get("candidates") or ():
            into = self._candidates.setdefault(candidate.get("index") or 0, {"content": {"parts": []}})
            for name, value in candidate.items():
                if name != "content" and value is not None:
                    into[name] = value
            content = candidate.get("content") or {}
            into["content"].setdefault("role", content.get("role") or "model")
            for part in content.get("parts") or ():
                _add_part(into["content"]["parts"], part)

    def answer(self) -> Any:
        candidates = [self._candidates[index] for index in sorted(self._candidates)]
        if not all(one.get("finish_reason") or one.get("finishReason") for one in candidates) or not self._top:
            raise unfinished()
        return {**self._top, "candidates": candidates}


class _Cohere:
    """Events of cohere's second chat API."""

    def __init__(self) -> None:
        self._answer: Chunk = {}
        self._message: Chunk = {}
        self._is_over = False

    def add(self, event: Chunk) -> None:
        delta = event.get("delta") or {}
        message = delta.get("message") or {}
        index = event.get("index") or 0
        match event.get("type"):
            case "message-start":
                self._answer["id"] = event.get("id")
                self._message["role"] = message.get("role") or "assistant"
            case "message-end":
                if delta.get("error"):
                    raise _broken({"message": delta["error"]}, "")
                self._is_over = True
                self._answer |= {name: value for name, value in delta.items() if value is not None}
            case _:
                self._continue(index, message)

    def _continue(self, index: int, message: Chunk) -> None:
        for name, value in message.items():
            if isinstance(value, dict):  # one of several, by its index
                merge(self._message, {name: [{**value, "index": index}]})
            elif value:
                merge(self._message, {name: value})

    def answer(self) -> Any:
        if not self._is_over:
            raise unfinished()
        for parts in self._message.values():
            for part in parts if isinstance(parts, list) else ():
                part.pop("index", None)
        return {**self._answer, "message": self._message}


class _Converse:
    """Events of Bedrock's `converse_stream`."""

    def __init__(self) -> None:
        self._message: Chunk = {}
        self._blocks: dict[int, Chunk] = {}
        self._answer: Chunk = {}
        self._is_over = False

    def add(self, event: Chunk) -> None:
        for name, value in event.items():
            match name:
                case "messageStart":
                    self._message["role"] = value.get("role")
                case "contentBlockStart":
                    merge(self._block(value), value.get("start") or {})
                case "contentBlockDelta":
                    self._continue(self._block(value), value.get("delta") or {})
                case "messageStop":
                    self._is_over = True
                    self._answer |= value
                case "metadata":
                    self._answer |= value

    def _block(self, event: Chunk) -> Chunk:
        return self._blocks.setdefault(event.get("contentBlockIndex") or 0, {})

    def _continue(self, block: Chunk, delta: Chunk) -> None:
        reasoning = delta.get("reasoningContent")
        if isinstance(reasoning, dict) and "redactedContent" not in reasoning:
            delta = {"reasoningContent": {"reasoningText": reasoning}}
        elif "citation" in delta:
            delta = {"citations": [delta["citation"]]}
        merge(block, delta)

    def answer(self) -> Any:
        if not self._is_over:
            raise unfinished()
        for block in self._blocks.values():
            if isinstance(tool := block.get("toolUse"), dict):
                tool["input"] = _parsed(tool.get("input") or "")
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return {"output": {"message": {**self._message, "content": content}}, **self._answer}


def merge(into: Chunk, delta: Chunk) -> None:
    """Add a delta: texts are continued, entries of lists are found by their index, what is null says nothing."""
    for name, value in delta.items():
        before = into.get(name)
        if value is None:
            into.setdefault(name, None)
        elif before is None or name in _WHOLE:
            into[name] = _entries(value) if isinstance(value, list) else value
        elif isinstance(value, str) and isinstance(before, str):
            into[name] = before + value
        elif isinstance(value, dict) and isinstance(before, dict):
            merge(before, value)
        elif isinstance(value, list) or isinstance(before, list):
            into[name] = _as_list(before)
            for entry in _as_list(value):
                _add_entry(into[name], entry)
        else:
            into[name] = value


def _as_list(value: Any) -> list[Any]:
    """Mistral's content is a text or a list of parts."""
    if isinstance(value, list):
        return value
    return [{"type": "text", "text": value}] if value else []


def _entries(value: list[Any]) -> list[Any]:
    entries: list[Any] = []
    for entry in value:
        _add_entry(entries, entry)
    return entries


def _add_entry(entries: list[Any], entry: Any) -> None:
    if isinstance(entry, dict) and isinstance(index := entry.get("index"), int):
        for one in entries:
            is_same = isinstance(one, dict) and one.get("index") == index
            # Mistral gives every call of a tool the index 0, and an id of its own.
            if is_same and entry.get("id") in (None, "", "null", one.get("id")):
                merge(one, {name: value for name, value in entry.items() if name != "id"})
                return
    entries.append(dict(entry) if isinstance(entry, dict) else entry)


def _add_part(parts: list[Any], part: Chunk) -> None:
    """Texts of one kind are one part; a signature belongs to the end of its part."""
    told = {name: value for name, value in part.items() if value is not None}
    last = parts[-1] if parts else {}
    plain = {"text", "thought", "thought_signature", "thoughtSignature"}
    is_text = "text" in told and "text" in last and not (told.keys() | last.keys()) - plain
    is_signed = "thought_signature" in last or "thoughtSignature" in last
    if is_text and not is_signed and told.get("thought") == last.get("thought"):
        parts[-1] = {**last, **told, "text": last["text"] + told["text"]}
    elif told:
        parts.append(told)


def _parsed(text: str) -> Any:
    """The input of a tool. It may be cut off where the answer reached its limit: then it is kept as text."""
    try:
        return msgspec.json.decode(text) if text.strip() else {}
    except msgspec.DecodeError:
        return text
