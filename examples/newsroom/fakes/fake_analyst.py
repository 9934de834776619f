"""A fake of the analyst that wants money: keywords, mood and a summary of a text. Only the arithmetic; see fake_server.py."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from examples.newsroom.reading import words_of

#: As under `prices` in holdfast.yaml.
PER_CALL, PER_MILLION_TOKENS = Decimal("0.001"), Decimal("10")
KEYWORDS = 5

_GOOD = frozenset(
    ["approved", "best", "celebrated", "free", "opened", "raised", "record", "repaired", "restored", "welcomed", "won"]
)
_BAD = frozenset(
    ["rejected", "lost", "flooded", "delayed", "postponed", "storm", "hurt", "disappointed", "lowered", "costs"]
)


def tokens(text: str) -> int:
    """A word is a token, and every hundred that are begun count."""
    return 100 * math.ceil(len(text.split()) / 100)


def price(text: str) -> Decimal:
    """What an analysis is charged."""
    return PER_CALL + PER_MILLION_TOKENS * tokens(text) / 1_000_000


def analyse(title: str, text: str) -> dict[str, Any]:
    """The same for the same text."""
    words = words_of(text)
    heading = words_of(title)
    best = sorted(words, key=lambda word: (-words[word] * (1 + heading[word]) * math.log(len(word)), word))[:KEYWORDS]
    good, bad = (sum(words[word] for word in chosen) for chosen in (_GOOD, _BAD))
    sentences = re.split(r"(?<=[.!?])\s+", text.strip())
    told = max(sentences, key=lambda one: (sum(word in best for word in words_of(one)), -len(one)))
    return {"keywords": best, "mood": round((good - bad) / (good + bad), 3) if good + bad else 0.0, "summary": told}
