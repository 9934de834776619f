"""Our own tables, in the store's database: documents, their chunks, and what connects chunks.

Foreign keys are enforced: PostgreSQL always does, and holdfast's SQLite connections, on which effects run, have
`PRAGMA foreign_keys = ON`; so has every connection made here. The functions that write are effects: each is a function
of this module with arguments that fit into JSON, so that it can be given from a process of its own too. All of it takes
place with the stage, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from examples.documents.chunking import Decision, chunk_id, decide, digest
from examples.documents.embedding import as_bytes, from_bytes
from examples.documents.neighbours import Chunks
from holdfast import RetryLater, store_engine

metadata = sa.MetaData()
documents = sa.Table(
    "documents",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("format", sa.Text),
    sa.Column("pages", sa.Integer),
    sa.Column("markdown", sa.Text),
    # Counted up by every change of its chunks or vectors, so that who computed with older ones can tell.
    sa.Column("revision", sa.Integer, nullable=False, server_default="0"),
    sa.Column("ready", sa.Boolean, nullable=False, server_default=sa.false()),
)
chunks = sa.Table(
    "chunks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("document", sa.ForeignKey("documents.key", ondelete="CASCADE"), nullable=False),
    sa.Column("chunk_index", sa.Integer, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("vector", sa.LargeBinary),
    sa.UniqueConstraint("document", "chunk_index"),
)
links = sa.Table(
    "chunk_connections",
    metadata,
    sa.Column("from_chunk", sa.ForeignKey("chunks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("to_chunk", sa.ForeignKey("chunks.id", ondelete="CASCADE"), primary_key=True, index=True),
    sa.Column("similarity", sa.Float, nullable=False),
    sa.CheckConstraint("from_chunk <> to_chunk"),
)


# Effects --------------------------------------------------------------------------------------------------------------


def save_markdown(connection: Connection, key: str, values: dict[str, Any]) -> None:
    """The document's row; whatever hangs on it stays."""
    if not connection.execute(documents.update().where(documents.c.key == key).values(values)).rowcount:
        connection.execute(documents.insert().values(key=key, **values))


def save_chunks(connection: Connection, key: str, texts: Sequence[str]) -> None:
    """These chunks in place of all others of the document.

    A row that is as it should be stays, with its vector and its connections: a run that comes to the same chunks
    changes nothing, and the stages behind it, which then do not run, have left what fits. Connections of a chunk that
    goes, go with it.
    """
    _lock(connection, [key], for_change=True)
    decision = _decide(connection, key, texts)
    if decision.gone:
        connection.execute(chunks.delete().where(chunks.c.document == key, chunks.c.id.not_in(decision.kept)))
    new = [
        {"id": id_, "document": key, "chunk_index": n, "text": text}
        for n, text in enumerate(texts)
        if (id_ := chunk_id(key, n)) not in decision.kept
    ]
    if new:
        connection.execute(chunks.insert(), new)
    if new or decision.gone:
        _count_up(connection, key, ready=False)


def _decide(connection: Connection, key: str, texts: Sequence[str]) -> Decision:
    there = sa.select(chunks.c.id, chunks.c.chunk_index, chunks.c.text).where(chunks.c.document == key)
    return decide(key, ((id_, n, text) for id_, n, text in connection.execute(there)), texts)


def save_vectors(connection: Connection, key: str, vectors: Sequence[tuple[str, str, str]]) -> None:
    """Vectors for all chunks of the document, each with the digest of the text it was made from; then it is ready."""
    _lock(connection, [key], for_change=True)
    there = connection.execute(sa.select(chunks.c.id, chunks.c.text).where(chunks.c.document == key))
    if {id_: digest(text) for id_, text in there} != {id_: made_from for id_, made_from, _ in vectors}:
        raise RetryLater(after=0, reason="its chunks were changed while their vectors were computed")
    of_id = chunks.update().where(chunks.c.id == sa.bindparam("chunk")).values(vector=sa.bindparam("new_vector"))
    connection.execute(of_id, [{"chunk": id_, "new_vector": as_bytes(vector)} for id_, _, vector in vectors])
    _count_up(connection, key, ready=True)


def save_connections(
    connection: Connection, key: str, revisions: dict[str, int], pairs: Sequence[tuple[str, str, float]]
) -> None:
    """What connects a document with others, computed from these revisions of them.

    Every document is held as it is until the commit, so no chunk can go meanwhile. If this one was changed since, all
    of it was in vain. If another one was, that one's own search is still to come, and finds what there is between them.
    """
    now = _lock(connection, [key, *revisions])
    if now.get(key) != revisions.get(key):
        raise RetryLater(after=0, reason="it was processed anew while its connections were computed")
    same = [other for other, revision in revisions.items() if now.get(other) == revision]
    of_these = connection.execute(sa.select(chunks.c.id, chunks.c.document).where(chunks.c.document.in_(same)))
    home = dict(map(tuple, of_these))
    mine = sa.select(chunks.c.id).where(chunks.c.document == key).scalar_subquery()
    theirs = sa.select(chunks.c.id).where(chunks.c.document.in_(same)).scalar_subquery()
    for one, two in ((links.c.from_chunk, links.c.to_chunk), (links.c.to_chunk, links.c.from_chunk)):
        connection.execute(links.delete().where(one.in_(mine), two.in_(theirs)))
    new = [
        {"from_chunk": one, "to_chunk": two, "similarity": alike}
        for one, two, alike in pairs
        if one in home and two in home
    ]
    if new:
        connection.execute(links.insert(), new)


def _lock(connection: Connection, keys: Sequence[str], *, for_change: bool = False) -> dict[str, int]:
    """Hold these documents as they are, always in the same order; the revisions of those that are ready. On SQLite the
    whole file is held already."""
    rows = connection.execute(
        sa.select(documents.c.key, documents.c.revision, documents.c.ready)
        .where(documents.c.key.in_(set(keys)))
        .order_by(documents.c.key)
        .with_for_update(read=not for_change)
    )
    return {key: revision for key, revision, ready in rows if ready}


def _count_up(connection: Connection, key: str, *, ready: bool) -> None:
    connection.execute(
        documents.update().where(documents.c.key == key).values(revision=documents.c.revision + 1, ready=ready)
    )


# Questions ------------------------------------------------------------------------------------------------------------


def texts_of(url: str, key: str) -> list[tuple[str, str]]:
    """The chunks of a document, in order: id and text."""
    wanted = sa.select(chunks.c.id, chunks.c.text).where(chunks.c.document == key).order_by(chunks.c.chunk_index)
    with store_engine(url).connect() as connection:
        return [(id_, text) for id_, text in connection.execute(wanted)]


def decision_on(url: str, key: str, texts: Sequence[str]) -> Decision:
    """What `save_chunks` will do with the chunks of a document, and why."""
    with store_engine(url).connect() as connection:
        return _decide(connection, key, texts)


def embedded(url: str) -> tuple[dict[str, int], dict[str, Chunks]]:
    """Every document that is ready: its revision, and its chunks with their vectors. One statement, one moment."""
    wanted = (
        sa.select(documents.c.key, documents.c.revision, chunks.c.id, chunks.c.vector)
        .join(chunks, chunks.c.document == documents.c.key)
        .where(documents.c.ready)
        .order_by(documents.c.key, chunks.c.chunk_index)
    )
    revisions: dict[str, int] = {}
    rows: dict[str, list[tuple[str, bytes]]] = {}
    with store_engine(url).connect() as connection:
        for key, revision, id_, vector in connection.execute(wanted):
            revisions[key] = revision
            rows.setdefault(key, []).append((id_, bytes(vector)))
    return revisions, {
        key: Chunks([id_ for id_, _ in found], from_bytes([vector for _, vector in found]))
        for key, found in rows.items()
    }
