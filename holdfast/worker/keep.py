"""`ctx.keep`, and what a finished attempt refers to: kept content is there before a commit can refer to it."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.blobs import Blobs
from holdfast.blobs.blobs import Content
from holdfast.blobs.reference import references_in
from holdfast.errors import BlobMissing
from holdfast.worker.sync_or_async import SubSteps, UserCall


def keeping(blobs: Blobs, content: Content, name: str | None, type: str | None) -> SubSteps:
    """Keep content, in a thread if the handler is async; returns the reference."""
    return (yield UserCall(blobs.keep, (content, name, type)))


def require_content(blobs: Blobs, texts: Iterable[str]) -> None:
    """Refuse to refer to content that is not there, and protect what is from a collection before the commit. A handler may
    pass on a reference from an earlier result that has been replaced since."""
    missing = blobs.hold(sha256 for text in texts for sha256 in references_in(text))
    if missing:
        raise BlobMissing(f"it refers to sha256:{missing[0]}, which is not at {blobs.where}: keep the content again")
