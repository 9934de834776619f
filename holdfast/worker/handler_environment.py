"""What a handler's context needs from the process it runs in: a worker, or a child process that asks its worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.blobs import Blobs
from holdfast.engine.memos import MemoWrite
from holdfast.model.stage import PipelineSpec

if TYPE_CHECKING:
    from holdfast.telemetry.spans import Spans


class Surroundings(Protocol):
    def pipeline(self, name: str) -> PipelineSpec | None:
        """A pipeline that this process knows."""
        ...

    @property
    def worker_name(self) -> str: ...

    @property
    def spans(self) -> Spans | None:
        """What makes spans, if the program traces."""
        ...

    @property
    def stopping(self) -> bool: ...

    @property
    def blobs(self) -> Blobs: ...

    def read_result(self, pipeline: str, item: int, stage: str, known: Mapping[int, str]) -> str | None:
        """The result of an earlier stage as JSON text; None if it was skipped."""
        ...

    def note_progress(self, item: int, stage: str, note: dict[str, Any]) -> None: ...

    def remember(self, memos: Sequence[MemoWrite]) -> Future[None]:
        """Write memos in one transaction; the future completes when they are durable. Memos whose lease was lost are
        marked.
        """
        ...

    def count_children(self, item: int, pipeline: str) -> dict[str, int]: ...

    def has_budget(self, stage: int, resource: str | None) -> bool:
        """Whether money that a call of a stage spends counts against a budget; the call may name a resource."""
        ...

    def pause_of(self, resource: str) -> tuple[str, float] | None:
        """Why a call that names this resource must wait now, and for how many seconds. UsageError if there is no such
        resource."""
        ...
