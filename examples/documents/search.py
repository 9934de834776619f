"""Search by meaning, and the chunks that a chunk is connected with."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from examples.documents.embedding import embed, from_bytes
from examples.documents.neighbours import nearest
from examples.documents.tables import chunks, documents, links
from holdfast import store_engine


class Hit(NamedTuple):
    document: str
    title: str
    chunk_index: int
    similarity: float
    text: str
    #: Where its connections lead: document, index, similarity.
    connected: list[tuple[str, int, float]]


def search(url: str, words: str, most: int = 5) -> list[Hit]:
    """The chunks of all ready documents that are most about these words."""
    with store_engine(url).connect() as connection:
        rows = connection.execute(
            sa.select(
                chunks.c.id, chunks.c.document, documents.c.title, chunks.c.chunk_index, chunks.c.text, chunks.c.vector
            )
            .join(documents, documents.c.key == chunks.c.document)
            .where(documents.c.ready)
            .order_by(chunks.c.document, chunks.c.chunk_index)
        ).all()
        if not rows:
            return []
        best = nearest(embed([words])[0], from_bytes([bytes(row.vector) for row in rows]), most)
        return [
            Hit(row.document, row.title, row.chunk_index, round(alike, 3), row.text, _connected(connection, row.id))
            for row, alike in ((rows[n], alike) for n, alike in best)
        ]


def _connected(connection: sa.Connection, chunk: str) -> list[tuple[str, int, float]]:
    other = sa.case((links.c.from_chunk == chunk, links.c.to_chunk), else_=links.c.from_chunk)
    found = connection.execute(
        sa.select(chunks.c.document, chunks.c.chunk_index, links.c.similarity)
        .join(chunks, chunks.c.id == other)
        .where(sa.or_(links.c.from_chunk == chunk, links.c.to_chunk == chunk))
        .order_by(links.c.similarity.desc(), chunks.c.id)
        .limit(3)
    )
    return [(document, n, alike) for document, n, alike in found]
