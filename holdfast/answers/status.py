"""Status: how many items are in which state at each stage, how long attempts take, what is held up, and the workers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import ClassVar

from holdfast.answers.answer import Answer, named
from holdfast.answers.text_tables import counted, spoken, table, to_the_second
from holdfast.answers.worker import Workers
from holdfast.model.log_lines import printable
from holdfast.model.states import OPEN, State


class Timings(Answer, frozen=True):
    """How long attempts took; None where none has ended. The percentiles are right to about a tenth."""

    _brief: ClassVar = ("count", "mean", "p90", "max")

    count: int
    mean: timedelta | None
    max: timedelta | None
    p50: timedelta | None
    p90: timedelta | None
    p99: timedelta | None


class HoldReason(Answer, frozen=True):
    """Why work of a stage is on hold, and what lets it run."""

    _brief: ClassVar = ("kind", "reason")

    #: `person`, `doubt`, `price` or `version`.
    kind: str
    reason: str
    #: Since when the first of them is, as far as a look at some of them tells.
    since: datetime
    do: str


class Obstacle(Answer, frozen=True):
    """What keeps the work of a stage from beginning, beyond the pace that it is meant to have."""

    _brief: ClassVar = ("reason", "text", "until")

    reason: str
    text: str
    #: The resource that stands still, if it is one.
    resource: str | None
    #: As far as the log tells.
    since: datetime | None
    until: datetime | None


class StageStatus(Answer, frozen=True):
    """A stage of a pipeline."""

    _brief: ClassVar = ("name", "states")

    name: str
    version: str
    #: The stages that it comes after.
    after: tuple[str, ...]
    #: How many items are in which state; those with none are left out.
    states: Mapping[str, int]
    #: How many of those in `retry_later` are due: a worker makes them `pending`. Of all stages together the 1,000 are counted
    #: that have been due for longest.
    due: int
    timings: Timings
    #: Whether it is new, and items that were there before it are still being added to it.
    backfilling: bool
    on_hold: tuple[HoldReason, ...]
    held: Obstacle | None
    #: Since when the next of those that are pending waits.
    pending_since: datetime | None
    #: Whether the stage itself is paused, why, until when, and when it was last paused or resumed.
    paused: bool
    reason: str | None
    paused_until: datetime | None
    paused_at: datetime | None

    def lines(self, width: int | None = None) -> list[str]:
        """What keeps it from going on."""
        lines = []
        if self.held:
            until = f" (until {to_the_second(self.held.until)})" if self.held.until else ""
            lines.append(f"{self.name} waits: {printable(self.held.text)}{until}")
        for one in self.on_hold:
            lines.append(f"{self.name} has work on hold: {printable(one.reason)}; to let it run: {one.do}")
        return [*lines, f"{self.name} is new and is being back-filled"] if self.backfilling else lines


class RemovedStage(Answer, frozen=True):
    """A stage that the pipeline no longer has."""

    _brief: ClassVar = ("name", "states")

    name: str
    version: str
    after: tuple[str, ...]
    states: Mapping[str, int]


class PipelineStatus(Answer, frozen=True):
    """A pipeline with its stages."""

    _brief: ClassVar = ("name", "paused", "stages")

    name: str
    paused: bool
    reason: str | None
    paused_until: datetime | None
    #: When it was last paused or resumed.
    paused_at: datetime | None
    stages: tuple[StageStatus, ...]
    removed: tuple[RemovedStage, ...]

    def stage(self, name: str) -> StageStatus:
        """One of its stages."""
        return named("stage", name, {one.name: one for one in self.stages})

    def lines(self, width: int | None = None) -> list[str]:
        always = (State.PENDING, State.DONE)
        shown = [state for state in State if state in always or any(one.states.get(state) for one in self.stages)]
        rows = [
            [
                one.name,
                *(one.states.get(state, 0) for state in shown),
                *(
                    "-" if took is None else spoken(took)
                    for took in (one.timings.mean, one.timings.p90, one.timings.max)
                ),
            ]
            for one in self.stages
        ]
        head = ["stage", *shown, "mean", "p90", "max"]
        lines = [self.name, *table(head, rows, width=width, indent="  ", least=("max", "p90", "mean"))]
        lines += [f"  {line}" for one in self.stages for line in one.lines()]
        for gone in self.removed:
            if gone.states:
                lines.append(f"  {gone.name} was removed and still holds {counted(gone.states)}")
                if any(gone.states.get(state) for state in OPEN):
                    where = f"--pipeline {self.name} --stage {gone.name}"
                    lines.append(f"    to set its open ones aside: holdfast cancel {where}")
        return lines


class Status(Answer, frozen=True):
    """Every pipeline of a store, its workers, and whether anything can be saved."""

    _brief: ClassVar = ("pipelines", "workers", "cannot_write")

    pipelines: tuple[PipelineStatus, ...]
    workers: Workers
    #: Why nothing can be saved now, a full disk say.
    cannot_write: str | None

    def pipeline(self, name: str) -> PipelineStatus:
        """One of the pipelines."""
        return named("pipeline", name, {one.name: one for one in self.pipelines})

    def lines(self, width: int | None = None) -> list[str]:
        wrong = self.cannot_write
        lines = [printable(f"{wrong[0].upper()}{wrong[1:]}.")] if wrong else []
        if not self.pipelines:
            lines.append("There are no pipelines in this store yet.")
        return [*lines, *(line for one in self.pipelines for line in one.lines(width)), *self.workers.lines(width)]
