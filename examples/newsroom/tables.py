"""Our own tables, in the store's database: articles, and which words occur in them how often.

A plain inverted index, so that the same statements work on SQLite and PostgreSQL. The functions that write are effects:
all of it takes place with the stage, or not at all.
"""

from __future__ import annotations

import os
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from holdfast import store_engine

metadata = sa.MetaData()
articles = sa.Table(
    "articles",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("section", sa.Text, nullable=False),
    sa.Column("published", sa.Text, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("keywords", sa.Text, nullable=False),
    sa.Column("mood", sa.Float, nullable=False),
    sa.Column("found_by", sa.Text, nullable=False),
    #: How many words there are in it.
    sa.Column("length", sa.Integer, nullable=False),
)
postings = sa.Table(
    "postings",
    metadata,
    sa.Column("word", sa.Text, primary_key=True),
    sa.Column("article", sa.ForeignKey("articles.key", ondelete="CASCADE"), primary_key=True, index=True),
    sa.Column("n", sa.Integer, nullable=False),
)


def engine_of(url: str | None = None) -> Engine:
    """A connection of our own to the store's database."""
    return store_engine(url or os.environ.get("HOLDFAST_URL") or "sqlite:///holdfast.db")


def create(url: str | None = None) -> list[str]:
    """Make the tables, where they are not there yet; return their names."""
    metadata.create_all(engine_of(url))
    return list(metadata.tables)


# Effects --------------------------------------------------------------------------------------------------------------


def save_article(connection: Connection, key: str, row: dict[str, Any], words: dict[str, int]) -> None:
    """This article, and these words in place of all others of it."""
    forget_article(connection, key)
    connection.execute(articles.insert().values(key=key, length=sum(words.values()), **row))
    if words:
        found = [{"word": word, "article": key, "n": n} for word, n in sorted(words.items())]
        connection.execute(postings.insert(), found)


def forget_article(connection: Connection, key: str) -> None:
    """Its words go with it."""
    connection.execute(articles.delete().where(articles.c.key == key))
