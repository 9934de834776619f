"""The workers of a store, as of their last heartbeat."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import ClassVar

from holdfast.answers.answer import Answer, Answers
from holdfast.answers.text_tables import shortened, table, to_the_second


class ProgressNote(Answer, frozen=True):
    """What a handler last reported with `ctx.progress` about an item."""

    _brief: ClassVar = ("item", "stage", "done", "total", "note")

    item: str
    stage: str
    done: float
    total: float | None
    note: str


class GuardHold(Answer, frozen=True):
    """A guard that keeps a worker from beginning work of a pipeline."""

    _brief: ClassVar = ("pipeline", "guard", "text")

    pipeline: str
    guard: str
    text: str
    #: None if a worker of an earlier version does not say.
    since: datetime | None
    until: datetime | None


class WorkerError(Answer, frozen=True):
    """The newest failure of an attempt that a worker has made."""

    _brief: ClassVar = ("at", "stage", "item", "error")

    at: datetime
    #: As PIPELINE/STAGE.
    stage: str
    item: str
    #: The beginning of its text.
    error: str


class WorkerStatus(Answer, frozen=True):
    """A worker that is alive, or not yet known to be dead."""

    _brief: ClassVar = ("name", "process", "alive", "in_hand")

    id: str
    name: str
    process: str
    alive: bool
    started_at: datetime
    heartbeat_at: datetime
    #: How long it may be silent before others take over its work.
    lease: timedelta
    #: The stages that it offers, as PIPELINE/STAGE, and the version of its code for each.
    stages: tuple[str, ...]
    versions: Mapping[str, str]
    #: How many items it holds.
    in_hand: int
    #: How many attempts of its own have ended in which state.
    done: Mapping[str, int]
    progress: tuple[ProgressNote, ...]
    guards: tuple[GuardHold, ...]
    #: As of its last heartbeat; None if no attempt of its own has failed.
    last_error: WorkerError | None


class Workers(Answers[WorkerStatus]):
    """The workers of a store."""

    __slots__ = ()

    def lines(self, width: int | None = None) -> list[str]:
        if not self:
            return ["No worker is alive."]
        rows = [
            [
                shortened(one.name, 40),
                one.process,
                "alive" if one.alive else "silent",
                one.in_hand,
                to_the_second(one.started_at),
                to_the_second(one.heartbeat_at),
                shortened(", ".join(one.stages), 60),
            ]
            for one in self
        ]
        head = ["name", "process", "is", "in hand", "since", "last heartbeat", "stages"]
        least = ("since", "process", "last heartbeat")
        return ["workers", *table(head, rows, width=width, indent="  ", least=least)]
