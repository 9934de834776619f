"""A text in chunks that make sense by themselves, and the names they keep."""

from __future__ import annotations

import hashlib
import uuid

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


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
