"""A text in chunks that make sense by themselves, the names they keep, and which of those that are there may stay."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from semantic_text_splitter import MarkdownSplitter

#: A chunk grows until it has the first, and never beyond the second, number of characters.
CHARACTERS = (900, 1400)
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://holdfast.invalid/examples/documents/chunks")


def split(markdown: str) -> list[str]:
    """Cut at headings, paragraphs and sentences, in this order of preference."""
    return MarkdownSplitter(CHARACTERS).chunks(markdown)


def chunk_id(document: str, index: int) -> str:
    """The same chunk of the same document has the same id in every run."""
    return str(uuid.uuid5(_NAMESPACE, f"{document}#{index}"))


class Decision(NamedTuple):
    """What becomes of the chunks of a document: `made`, `kept` or `replaced`, and why."""

    verb: str
    why: str
    #: The ids of those that stay; how many go, and how many are new.
    kept: frozenset[str]
    gone: int
    new: int


def decide(document: str, there: Iterable[tuple[str, int, str]], texts: Sequence[str]) -> Decision:
    """Keep each chunk (id, index, text) that is as it should be, with its vector and its connections; replace the others."""
    wanted = {chunk_id(document, n): (n, text) for n, text in enumerate(texts)}
    present = list(there)
    kept = frozenset(id_ for id_, n, text in present if wanted.get(id_) == (n, text))
    gone, new = len(present) - len(kept), len(wanted) - len(kept)
    if not present:
        return Decision("made", "there were none", kept, gone, new)
    if not gone and not new:
        return Decision("kept", "they are what the text comes to", kept, gone, new)
    why = f"{gone} of {len(present)} are not what the text comes to, which has {len(wanted)}"
    return Decision("replaced", why, kept, gone, new)


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
