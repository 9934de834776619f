"""The storyteller: whoever writes the text of a phase, or a page of the world bible. Slow, and not always in the mood.

Texts name things in [[double brackets]]: those are what the world bible must explain.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from examples.fiction.models import Phase

_NAMED = re.compile(r"\[\[([a-z0-9-]+)\]\]")

#: Called between paragraphs; raises if there is a reason not to go on.
Between = Callable[[], None]


@dataclass(frozen=True)
class Prompt:
    """All that a text depends on."""

    phase: Phase
    title: str
    premise: str
    #: The text this one starts from.
    before: str
    attempt: int = 1


class Storyteller(Protocol):
    """Raises if an attempt comes to nothing; the next one may not."""

    def tell(self, prompt: Prompt, between: Between) -> str:
        """The text of a piece."""

    def explain(self, slug: str, attempt: int) -> str:
        """A page of the world bible."""


def things_named(text: str) -> list[str]:
    """What the world bible must explain, each once, in the order of the text."""
    return list(dict.fromkeys(_NAMED.findall(text)))
