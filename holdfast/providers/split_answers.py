"""An answer to several inputs, taken apart: embeddings of OpenAI, Mistral, Gemini, Cohere and litellm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def parts_of(answer: Any, n: int) -> list[Any] | None:
    """The parts of an answer in its JSON form, in the order of the inputs; None if it does not have one for each of them."""
    if not isinstance(answer, Mapping):
        return None
    found = answer.get("data", answer.get("embeddings"))
    if isinstance(found, Mapping):  # cohere has a list for each type of number
        found = next((one for one in found.values() if isinstance(one, list)), None)
    if not isinstance(found, list) or len(found) != n:
        return None
    if all(isinstance(one, Mapping) and isinstance(one.get("index"), int) for one in found):
        return sorted(found, key=lambda one: one["index"])
    return found
