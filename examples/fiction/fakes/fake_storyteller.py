"""A fake storyteller: the same prompt gives the same text, in every process and at every attempt.

Whether an attempt fails depends on the prompt and on the attempt's number, so a piece that failed may work the next time.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from examples.fiction.models import Phase
from examples.fiction.storyteller import Between, Prompt
from holdfast import Permanent

#: Paragraphs of a text, by its phase.
LENGTHS = {Phase.VISION: 2, Phase.OUTLINE: 3, Phase.SCROLL: 4, Phase.SCENE: 6}

_WHO = (
    "the ferryman",
    "the surveyor's daughter",
    "an old pilot",
    "the archivist",
    "a stranger",
    "the keeper",
    "the twins",
)
_DOES = (
    "counts the lamps along",
    "refuses to speak of",
    "has drawn a map of",
    "was promised",
    "walks back to",
    "hears a bell under",
    "keeps a key to",
    "remembers nothing of",
)
_THINGS = (
    "salt-stair",
    "drowned-library",
    "lamp-road",
    "tide-court",
    "glass-orchard",
    "ninth-bell",
    "ash-ferry",
    "moth-archive",
    "hollow-dyke",
    "paper-king",
    "winter-lock",
    "third-moon",
)
_WHEN = (
    "before the fog lifts",
    "in the year of two winters",
    "while the river is low",
    "on the last day of the fair",
    "after everyone has gone",
    "as the story demands",
)


class NotInTheMood(RuntimeError):
    """This attempt came to nothing; the next one may not."""


@dataclass(frozen=True)
class FakeStoryteller:
    """So many seconds for a paragraph; one attempt in so many fails, none if 0."""

    pace_seconds: float = 0.5
    fail_one_in: int = 6

    def tell(self, prompt: Prompt, between: Between) -> str:
        """The text of a piece."""
        if not prompt.title.strip():
            raise Permanent("there is no title to write about")
        seed = f"{prompt.phase}|{prompt.title}|{prompt.premise}|{prompt.before}"
        chance = random.Random(seed)
        fails_at = self._fails_at(seed, prompt.attempt, LENGTHS[prompt.phase])
        paragraphs = []
        for n in range(LENGTHS[prompt.phase]):
            between()
            if n == fails_at:
                raise NotInTheMood(f"the words would not come, in paragraph {n + 1} of {prompt.title!r}")
            time.sleep(self.pace_seconds)  # this is what being slow means
            paragraphs.append(" ".join(_sentence(chance, is_first=sentence == 0) for sentence in range(3)))
        return f"{prompt.title}\n\n" + "\n\n".join(paragraphs)

    def explain(self, slug: str, attempt: int) -> str:
        """A page of the world bible."""
        if self._fails_at(slug, attempt, 1) is not None:
            raise NotInTheMood(f"nothing comes to mind about {slug!r}")
        time.sleep(self.pace_seconds)
        chance = random.Random(slug)
        about = slug.replace("-", " ")
        return f"The {about}: {chance.choice(_WHO)} {chance.choice(_DOES)} it {chance.choice(_WHEN)}."

    def _fails_at(self, seed: str, attempt: int, length: int) -> int | None:
        """The paragraph in which this attempt fails, if it does."""
        chance = random.Random(f"{seed}|{attempt}")
        if self.fail_one_in and chance.randrange(self.fail_one_in) == 0:
            return chance.randrange(length)
        return None


def _sentence(chance: random.Random, *, is_first: bool) -> str:
    who, does, thing, when = (chance.choice(words) for words in (_WHO, _DOES, _THINGS, _WHEN))
    named = f"[[{thing}]]" if is_first else thing.replace("-", " ")
    return f"{who[0].upper()}{who[1:]} {does} the {named} {when}."
