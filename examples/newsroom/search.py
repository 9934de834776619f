"""Search in the index: the articles that a few words describe best."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from examples.newsroom.reading import words_of
from examples.newsroom.tables import articles, engine_of, postings


class Hit(NamedTuple):
    key: str
    title: str
    summary: str
    found_by: str
    score: float


def search(text: str, most: int = 5, url: str | None = None) -> list[Hit]:
    """The best articles first: those that have most of the words, and among them those that have them most often."""
    score = sa.func.count() + sa.cast(sa.func.sum(postings.c.n), sa.Float) / articles.c.length
    wanted = (
        sa.select(articles.c.key, articles.c.title, articles.c.summary, articles.c.found_by, score.label("score"))
        .join(postings)
        .where(postings.c.word.in_(words_of(text).keys()))
        .group_by(articles.c.key)
        .order_by(sa.desc("score"), articles.c.key)
        .limit(most)
    )
    with engine_of(url).connect() as connection:
        return [Hit(*row) for row in connection.execute(wanted)]
