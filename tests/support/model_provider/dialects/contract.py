"""What the server needs to know to speak a dialect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from tests.support.model_provider.asked import Answer, Asked
from tests.support.model_provider.faults import Fault, Refusal


class Dialect(Protocol):
    name: str
    #: The finish reasons it has, as `faults` calls them.
    finishes: tuple[str, ...]

    def read(self, path: str, body: dict[str, Any]) -> Asked | None:
        """What is asked for at this path; None if nothing can be asked there."""

    def reply(self, asked: Asked, answer: Answer) -> dict[str, Any] | bytes:
        """A good reply, whole; bytes are a recording."""

    def events(self, asked: Asked, answer: Answer) -> list[bytes]:
        """A good reply as server-sent events."""

    def error_event(self, asked: Asked, fault: Fault) -> bytes:
        """An error after some of them."""

    def refusal(self, asked: Asked, fault: Fault) -> Refusal | None:
        """An error instead of a reply; None if the dialect has none of this name."""

    def headers(self, fault: Fault | None) -> Mapping[str, str]:
        """What comes with every good reply: how much is left until when."""


def event(data: Any, name: str = "") -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"event: {name}\ndata: {text}\n\n".encode() if name else f"data: {text}\n\n".encode()


def text_of(content: Any) -> str:
    """The words in a prompt, however deep they are wrapped."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in content)
    if isinstance(content, dict):
        return text_of(content.get("content", content.get("parts", content.get("text", ""))))
    return ""
