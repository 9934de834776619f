"""Where a document is, in the words of its readers: pending, extracting, extracted, saving_markdown, markdown_saved,
chunking, chunked, embedding, embedded, complete, failed.

Nothing of it is stored: it is read from holdfast's stages, so it cannot disagree with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.documents.pipeline import CONNECTIONS, DOCUMENTS
from holdfast import Holdfast, UsageError
from holdfast.answers import StageOfItem

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
    #: Of a document that is ready: whether its connections are being looked for, now or soon.
    finding_connections: bool = False

    @property
    def ready(self) -> bool:
        return self.stage in ("embedded", "complete")

    @property
    def message(self) -> str:
        """A line for its readers."""
        if self.finding_connections:
            return "ready, finding connections…"
        if self.ready:
            return f"ready, but its connections were not found: {self.error}" if self.error else "ready"
        return self.error or self.progress or self.stage.replace("_", " ")


def where_is(app: Holdfast, key: str) -> Where:
    """Where this document is."""
    stages = app.show(key, DOCUMENTS).stages
    passed = [one for one in stages if one.state in _PASSED]
    completed = {WORDS[one.stage][1]: one.ended_at.timestamp() for one in passed if one.ended_at}
    took = {WORDS[one.stage][1]: one.elapsed.total_seconds() if one.elapsed else 0.0 for one in passed}
    bad = next((one for one in stages if one.state in _BAD), None)
    if bad is not None:
        return Where(key, "failed", completed, took, error=bad.error or "")
    running = next((one.stage for one in stages if one.state == "in_progress"), None)
    if running is not None:
        note = app.why(key, DOCUMENTS).progress
        return Where(key, WORDS[running][0], completed, took, progress=note.note if note else "")
    error = next((one.error for one in stages if one.state == "retry_later" and one.error), "")
    stage = list(completed)[-1] if completed else "pending"
    if stage == "embedded" and (connect := _connect_stage(app, key)) is not None:
        if connect.state in _PASSED and connect.ended_at:
            return Where(key, "complete", {**completed, "complete": connect.ended_at.timestamp()}, took)
        is_over = connect.state in _BAD
        why = (connect.error or connect.state or "") if is_over else ""
        return Where(key, stage, completed, took, error=why, finding_connections=not is_over)
    return Where(key, stage, completed, took, error=error or "")


def _connect_stage(app: Holdfast, key: str) -> StageOfItem | None:
    """How the search for its connections stands; None before it is ready."""
    try:
        [stage] = app.show(key, CONNECTIONS).stages
    except UsageError:
        return None
    return stage
