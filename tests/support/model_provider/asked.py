"""What a request asks for, and what it gets, in no dialect in particular."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

#: Instructions to the server inside of a prompt or a model's name.
MARKER = re.compile(r"\[\[.*?\]\]")
_MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class Price:
    """Per million tokens."""

    tokens_in: Decimal
    cached: Decimal
    tokens_out: Decimal
    #: For what is written to a cache, where that is counted.
    written: Decimal | None = None


#: The models there are, and their prices. Another model is not found.
PRICES = {
    "gpt-5-mini": Price(Decimal("0.25"), Decimal("0.025"), Decimal(2)),
    "gpt-4o-mini-tts": Price(Decimal("0.6"), Decimal("0.6"), Decimal(12)),
    "text-embedding-3-small": Price(Decimal("0.02"), Decimal("0.02"), Decimal(0)),
    "claude-haiku-4-5": Price(Decimal(1), Decimal("0.1"), Decimal(5), Decimal("1.25")),
    "gemini-2.5-flash": Price(Decimal("0.3"), Decimal("0.03"), Decimal("2.5")),
    "gemini-embedding-001": Price(Decimal("0.15"), Decimal("0.15"), Decimal(0)),
    "mistral-small-latest": Price(Decimal("0.1"), Decimal("0.01"), Decimal("0.3")),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as its dialect reads it."""

    route: str
    model: str
    prompt: str
    stream: bool = False
    #: Parts of the body that shape the answer (`stream_options`, `encoding_format`, …).
    body: dict[str, Any] | None = None

    @property
    def plain_model(self) -> str:
        return MARKER.sub("", self.model)

    def option(self, name: str) -> Any:
        return (self.body or {}).get(name)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, and everything that was counted for it."""

    text: str
    #: All that was read, with what came from a cache.
    tokens_in: int
    cached: int
    #: All that was written, with what was only thought.
    tokens_out: int
    reasoning: int
    #: `stop`, `length`, `filter`, or `blocked` (the prompt itself was refused, after it was read).
    finish: str = "stop"

    def amount(self, model: str) -> Decimal:
        price = PRICES[model]
        written = 0 if price.written is None else self.written
        fresh = self.tokens_in - self.cached - written
        read = fresh * price.tokens_in + self.cached * price.cached + written * (price.written or 0)
        return (read + self.tokens_out * price.tokens_out) / _MILLION

    @property
    def written(self) -> int:
        """What of the input was put into a cache, where the provider has a price for that."""
        return self.tokens_in // 8

    def pieces(self) -> list[str]:
        """The text as a stream brings it."""
        return re.findall(r"\S+\s*", self.text)

    def first_half(self) -> Answer:
        """What is written when a stream breaks off in the middle."""
        return replace(self, tokens_out=self.tokens_out // 2, reasoning=0)


def answer_to(asked: Asked, finish: str = "stop") -> Answer:
    """The same for the same question: a text, and tokens that all differ from each other and from 0."""
    question = " ".join(MARKER.sub("", asked.prompt).split())
    read = 40 + len(question)
    if asked.route in ("embeddings", "embed"):
        return Answer("", read, 0, 0, 0)
    text = "" if finish == "blocked" else f"Réponse — {question[:60]} — “naïve” 終"
    thought = 7 if text and asked.route in ("chat", "responses", "generate") else 0
    return Answer(text, read, read // 4, len(text.split()) + thought, thought, finish)


def speech_of(text: str) -> bytes:
    """A recording: bytes that are no text, and differ from text to text."""
    return b"\xff\xfb\x90\x00" + bytes(range(256)) + text.encode()


def vector_of(text: str) -> list[float]:
    """An embedding: eight numbers that a 32 bit float holds exactly."""
    return [((len(text) * (place + 3)) % 17 - 8) / 16 for place in range(8)]
