"""Our own tables, in the store's database: articles, and which words occur in them how often.

A plain inverted index, so that the same statements work on SQLite and PostgreSQL. In PostgreSQL they lie in a schema of
their own, `newsroom`, or the one that NEWSROOM_SCHEMA names. The functions that write are effects: all of it takes place
with the stage, or not at all.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.schema import CreateSchema

from holdfast import store_engine

DEFAULT_URL = "sqlite:///holdfast.db"


class Tables:
    """The tables in a schema (PostgreSQL) or in the file (None)."""

    def __init__(self, schema: str | None) -> None:
        self.metadata = sa.MetaData(schema=schema)
        self.articles = sa.Table(
            "articles", self.metadata,
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
        )  # fmt: skip
        article = sa.ForeignKey(f"{schema}.articles.key" if schema else "articles.key", ondelete="CASCADE")
        self.postings = sa.Table(
            "postings", self.metadata,
            sa.Column("word", sa.Text, primary_key=True),
            sa.Column("article", article, primary_key=True, index=True),
            sa.Column("n", sa.Integer, nullable=False),
        )  # fmt: skip


def tables_of(dialect: str) -> Tables:
    """The tables where this kind of database has them."""
    return _tables(None if dialect == "sqlite" else os.environ.get("NEWSROOM_SCHEMA", "newsroom"))


_tables = functools.cache(Tables)


def engine_of(url: str | None = None) -> Engine:
    """A connection of our own to the store's database."""
    return store_engine(url or os.environ.get("HOLDFAST_URL") or DEFAULT_URL)


def create(url: str | None = None) -> Tables:
    """Make the tables, where they are not there yet."""
    engine = engine_of(url)
    own = tables_of(engine.dialect.name)
    with engine.begin() as connection:
        if own.metadata.schema:
            connection.execute(CreateSchema(own.metadata.schema, if_not_exists=True))
        own.metadata.create_all(connection)
    return own


# Effects --------------------------------------------------------------------------------------------------------------


def save_article(connection: Connection, key: str, row: dict[str, Any], words: dict[str, int]) -> None:
    """This article, and these words in place of all others of it."""
    forget_article(connection, key)
    own = tables_of(connection.dialect.name)
    connection.execute(own.articles.insert().values(key=key, length=sum(words.values()), **row))
    if words:
        found = [{"word": word, "article": key, "n": n} for word, n in sorted(words.items())]
        connection.execute(own.postings.insert(), found)


def forget_article(connection: Connection, key: str) -> None:
    """Its words go with it."""
    articles = tables_of(connection.dialect.name).articles
    connection.execute(articles.delete().where(articles.c.key == key))
