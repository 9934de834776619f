"""What a fake local paper has published by a day: a function of the seed, and nothing else.

Articles are added, revised and withdrawn as days go by. Every site has three odd pages: one that the server fails to
deliver, one that the sitemap names and nobody has, and one without an article.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cached_property

from examples.newsroom.fakes.fake_prose import SECTIONS, fake_headline, fake_paragraph

FIRST_DAY = date(2026, 2, 1)
#: Over so many days the articles are published; later nothing changes.
DAYS = 10
PAGES = 300
FEED_LENGTH = 20
#: Which articles are the odd ones.
BROKEN, MISSING, EMPTY = 3, 5, 7


@dataclass(frozen=True)
class FakeArticle:
    """One article, as it is from its first day to its last."""

    number: int
    section: str
    title: str
    first_day: int
    #: On these days it is changed.
    revised_on: tuple[int, ...]
    #: On this day it is taken down, if it is.
    withdrawn_on: int | None
    seed: str = field(repr=False)

    @cached_property
    def path(self) -> str:
        slug = re.sub(r"[^a-z]+", "-", self.title.lower()).strip("-")
        return f"/news/{self.section}/{self.number}-{slug}"

    def is_up(self, day: int) -> bool:
        return self.first_day <= day and (self.withdrawn_on is None or day < self.withdrawn_on)

    def revision(self, day: int) -> int:
        """How often it was changed by that day."""
        return sum(one <= day for one in self.revised_on)

    def changed_on(self, day: int) -> date:
        """The date of its last change by that day."""
        return as_date(max([self.first_day, *(one for one in self.revised_on if one <= day)]))

    def paragraphs(self, day: int) -> list[str]:
        chance = random.Random(f"{self.seed}:{self.number}:text")
        text = [fake_paragraph(self.section, chance) for _ in range(chance.randint(3, 6))]
        for revision in range(1, self.revision(day) + 1):
            later = random.Random(f"{self.seed}:{self.number}:{revision}")
            text[later.randrange(len(text))] = fake_paragraph(self.section, later)
        return text


class FakeSite:
    """All articles of a site, and which of them are there today."""

    def __init__(self, seed: int = 7, pages: int = PAGES, day: int = 0) -> None:
        if pages <= EMPTY:
            raise ValueError(f"a site of {pages} pages has no room for its odd ones: give it {EMPTY + 1} or more")
        self.seed = seed
        self.day = day
        self.articles = [_article(seed, number) for number in range(pages)]
        self._by_path = {one.path: one for one in self.articles}

    def up(self, section: str | None = None) -> list[FakeArticle]:
        """What is up today, in the order in which it was written."""
        return [one for one in self.articles if one.is_up(self.day) and section in (None, one.section)]

    def find(self, path: str) -> FakeArticle | None:
        """The article of an address, whether it is up or not."""
        return self._by_path.get(path)

    def newest(self) -> list[FakeArticle]:
        """What a feed shows: the last to be published, last first."""
        return sorted(self.up(), key=lambda one: (-one.first_day, -one.number))[:FEED_LENGTH]

    def search(self, word: str) -> list[FakeArticle]:
        """The articles that have a word in title or text."""
        wanted = re.compile(rf"\b{re.escape(word.lower())}\b")
        return [one for one in self.up() if wanted.search(f"{one.title} {' '.join(one.paragraphs(self.day))}".lower())]


def as_date(day: int) -> date:
    return FIRST_DAY + timedelta(days=day)


def _article(seed: int, number: int) -> FakeArticle:
    chance = random.Random(f"{seed}:{number}")
    section = SECTIONS[number % len(SECTIONS)]
    title = fake_headline(section, chance)
    if number in (BROKEN, MISSING, EMPTY):
        return FakeArticle(number, section, title, 0, (), None, str(seed))
    # Two thirds are there from the beginning.
    first = 0 if chance.random() < 0.67 else chance.randint(1, DAYS)
    later = range(first + 1, DAYS + 1)
    revised = tuple(sorted(chance.sample(later, 1))) if later and chance.random() < 0.3 else ()
    left = range((revised[-1] if revised else first) + 1, DAYS + 1)
    withdrawn = chance.choice(left) if left and chance.random() < 0.05 else None
    return FakeArticle(number, section, title, first, revised, withdrawn, str(seed))
