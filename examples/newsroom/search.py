"""Search in the index: the articles that a few words describe best, by BM25."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from examples.newsroom.reading import words_of
from examples.newsroom.tables import articles, engine_of, postings

#: How soon more of the same word counts for nothing, and how much a long article has to make up for.
SATURATION, LENGTH_WEIGHT = 1.5, 0.75

#: An article, its length, a word, and how often that occurs in it.
Posting = tuple[str, int, str, int]


@dataclass(frozen=True)
class Hit:
    key: str
    title: str
    summary: str
    found_by: str
    score: float


def search(text: str, most: int = 5, url: str | None = None) -> list[Hit]:
    """The best articles first."""
    wanted = list(words_of(text))
    columns = (articles.c.key, articles.c.length, postings.c.word, postings.c.n)
    with engine_of(url).connect() as connection:
        count, mean = connection.execute(sa.select(sa.func.count(), sa.func.avg(articles.c.length))).one()
        rows = connection.execute(sa.select(*columns).join(postings).where(postings.c.word.in_(wanted))).all()
        scores = _scores([(*row,) for row in rows], count, float(mean or 1))
        best = sorted(scores, key=lambda key: (-scores[key], key))[:most]
        found = {row.key: row for row in connection.execute(articles.select().where(articles.c.key.in_(best)))}
    return [Hit(key, found[key].title, found[key].summary, found[key].found_by, scores[key]) for key in best]


def _scores(rows: Sequence[Posting], count: int, mean: float) -> dict[str, float]:
    articles_with: dict[str, int] = {}
    for _, _, word, _ in rows:
        articles_with[word] = articles_with.get(word, 0) + 1
    scores: dict[str, float] = {}
    for key, length, word, n in rows:
        rare = math.log(1 + (count - articles_with[word] + 0.5) / (articles_with[word] + 0.5))
        long = 1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length / mean
        scores[key] = scores.get(key, 0.0) + rare * n * (SATURATION + 1) / (n + SATURATION * long)
    return scores
