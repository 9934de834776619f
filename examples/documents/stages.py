"""Where a document is, in the words of its readers: pending, extracting, extracted, saving_markdown, markdown_saved,
chunking, chunked, embedding, embedded, complete, failed.

Nothing of it is stored: it is read from holdfast's stages, so it cannot disagree with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.documents.pipeline import CONNECTIONS, DOCUMENTS
from holdfast import Holdfast, UsageError

#: By stage: what it is called while it runs, and when it is done.
WORDS = {
    "extract": ("extracting", "extracted"),
    "save_markdown": ("saving_markdown", "markdown_saved"),
    "chunk": ("chunking", "chunked"),
    "embed": ("embedding", "embedded"),
}
_BAD = ("failed", "exhausted", "cancelled")
_PASSED = ("done", "skipped")


@dataclass(frozen=True)
class Where:
    """Where a document is."""

    key: str
    stage: str
    #: What is done, with the time it ended (in seconds since 1970), in order.
    completed: dict[str, float]
    #: How long each of them took, in seconds.
    took: dict[str, float]
    #: What the running attempt says of itself: `page 132 of 500`.
    progress: str = ""
    error: str = ""

    @property
    def ready(self) -> bool:
        return self.stage in ("embedded", "complete")


def where_is(app: Holdfast, key: str) -> Where:
    """Where this document is."""
    stages = app.show(key, DOCUMENTS)["stages"]
    passed = [one for one in stages if one["state"] in _PASSED]
    completed = {WORDS[one["stage"]][1]: one["ended_at"] / 1e6 for one in passed}
    took = {WORDS[one["stage"]][1]: (one["elapsed_us"] or 0) / 1e6 for one in passed}
    bad = next((one for one in stages if one["state"] in _BAD), None)
    if bad is not None:
        return Where(key, "failed", completed, took, error=bad["error"] or "")
    running = next((one["stage"] for one in stages if one["state"] == "in_progress"), None)
    if running is not None:
        note = app.why(key, DOCUMENTS).get("progress") or {}
        return Where(key, WORDS[running][0], completed, took, progress=note.get("note", ""))
    error = next((one["error"] for one in stages if one["state"] == "retry_later" and one["error"]), "")
    stage = list(completed)[-1] if completed else "pending"
    if stage == "embedded" and (ended := _connected_at(app, key)):
        return Where(key, "complete", {**completed, "complete": ended}, took)
    return Where(key, stage, completed, took, error=error or "")


def _connected_at(app: Holdfast, key: str) -> float:
    """When its connections were found; 0 if they are not."""
    try:
        [stage] = app.show(key, CONNECTIONS)["stages"]
    except UsageError:
        return 0.0
    return float(stage["ended_at"]) / 1e6 if stage["state"] in _PASSED else 0.0
