"""Which chunks are about the same: nearest neighbours by the angle between vectors.

What connects two documents depends on these two alone, and on neither's order of arrival: the best few pairs that are
alike enough. So whoever is embedded last finds what the other could not, and the end is always the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from examples.documents.embedding import Vectors

#: Pairs less alike than this are not worth a connection, nor are more than so many between two documents.
ALIKE = 0.55
MOST_PER_PAIR = 5


class Pair(NamedTuple):
    from_chunk: str
    to_chunk: str
    similarity: float


class Chunks(NamedTuple):
    """The embedded chunks of one document, in order."""

    ids: Sequence[str]
    vectors: Vectors


def connections(key: str, own: Chunks, others: dict[str, Chunks]) -> list[Pair]:
    """The pairs between a document and others, and inside the document. In each the chunk of the first key is first."""
    found = _between(own, own, apart=2)
    for other, chunks in sorted(others.items()):
        if other != key:
            found += _between(own, chunks) if key < other else _between(chunks, own)
    return found


def _between(first: Chunks, second: Chunks, apart: int = 0) -> list[Pair]:
    alike = first.vectors @ second.vectors.T
    if apart:
        # Inside a document: each pair once, and never neighbours, which share their subject anyway.
        alike = np.triu(alike, k=apart)
    rows, columns = np.nonzero(alike >= ALIKE)
    found = zip(rows.tolist(), columns.tolist(), strict=True)
    pairs = [Pair(first.ids[i], second.ids[j], round(float(alike[i, j]), 4)) for i, j in found]
    return sorted(pairs, key=lambda pair: (-pair.similarity, pair.from_chunk, pair.to_chunk))[:MOST_PER_PAIR]


def nearest(wanted: Vectors, vectors: Vectors, most: int) -> list[tuple[int, float]]:
    """The rows most like a vector, best first."""
    alike = vectors @ wanted
    return [(int(i), float(alike[i])) for i in np.argsort(-alike, kind="stable")[:most]]
