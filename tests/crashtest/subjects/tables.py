"""The user's tables of the pipelines here, in the database that HOLDFAST_URL names."""

from __future__ import annotations

import os
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from tests.support.own_tables import engine_of

metadata = sa.MetaData()
documents = sa.Table("documents", metadata, sa.Column("key", sa.Text, primary_key=True), sa.Column("parts", sa.Integer))
chunks = sa.Table(
    "chunks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("document", sa.ForeignKey("documents.key"), nullable=False),
    sa.Column("text", sa.Text),
    sa.Column("vector", sa.Text),
)
#: Rows that anybody may write.
notes = sa.Table(
    "notes", metadata, sa.Column("document", sa.Text), sa.Column("n", sa.Integer), sa.Column("text", sa.Text)
)


def create(url: str) -> None:
    """Make the tables in a copy of the store."""
    engine, _ = engine_of(url)
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(notes.insert(), {"document": "v.epub", "n": 0, "text": "from before"})
    engine.dispose()


def own_engine() -> Engine:
    """A connection that a handler makes by itself."""
    return engine_of(os.environ["HOLDFAST_URL"])[0]


def save_document(connection: Connection, key: str, parts: int) -> None:
    connection.execute(documents.insert(), {"key": key, "parts": parts})


def save_chunks(connection: Connection, key: str, texts: list[str]) -> None:
    connection.execute(chunks.delete().where(chunks.c.document == key))
    rows: list[dict[str, Any]] = [{"id": f"{key}/{n}", "document": key, "text": text} for n, text in enumerate(texts)]
    connection.execute(chunks.insert(), rows)


def save_vector(connection: Connection, chunk: str, vector: str) -> None:
    connection.execute(chunks.update().where(chunks.c.id == chunk).values(vector=vector))
