"""How a run ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from holdfast.answers.answer import Answer
from holdfast.answers.item import Items
from holdfast.answers.status import PipelineStatus
from holdfast.model.states import BAD, State


class FrequentError(Answer, frozen=True):
    """An error that stages of items ended with, as far as they were looked at."""

    _brief: ClassVar = ("pipeline", "stage", "state", "count", "error")

    pipeline: str
    stage: str
    state: str
    error: str
    #: One of the items.
    key: str
    count: int
    #: Whether there are more than were looked at.
    more: bool

    def lines(self, width: int | None = None) -> list[str]:
        often = f"{self.count:,}{' or more' if self.more else ''} × "
        return [f"{often}{self.pipeline}/{self.stage} {self.state}: {self.error} (item {self.key!r})"]


class Summary(Answer, frozen=True):
    """How a run ended: per pipeline and stage, how many items are in which state."""

    pipelines: tuple[PipelineStatus, ...]
    interrupted: bool
    #: How many stages of items ended failed or exhausted.
    failed: int
    #: Their most frequent errors, and the first few of them.
    errors: tuple[FrequentError, ...]
    failures: Items

    @classmethod
    def from_pipelines(
        cls,
        pipelines: Sequence[PipelineStatus],
        *,
        interrupted: bool,
        errors: Iterable[Mapping[str, Any]] = (),
        failures: Items = Items(),  # noqa: B008 - empty, and it stays so
    ) -> Summary:
        states = [stage.states.items() for one in pipelines for stage in one.stages]
        failed = sum(n for counts in states for state, n in counts if state in BAD)
        return cls(tuple(pipelines), interrupted, failed, tuple(map(FrequentError.of, errors)), failures)

    def __repr__(self) -> str:
        return f"<Summary{' (interrupted)' if self.interrupted else ''} {'; '.join(self._counts()) or 'no pipelines'}>"

    def lines(self, width: int | None = None) -> list[str]:
        """A line per stage, and one per error."""
        lines = ["interrupted: not all of the work is done"] if self.interrupted else []
        return [*lines, *self._counts(), *(f"  {line}" for one in self.errors for line in one.lines())]

    def _counts(self) -> list[str]:
        return [f"{one.name}/{stage.name}: {_counted(stage.states)}" for one in self.pipelines for stage in one.stages]


def _counted(states: Mapping[str, int]) -> str:
    return ", ".join(f"{states[state]:,} {state}" for state in State if states.get(state)) or "nothing yet"
