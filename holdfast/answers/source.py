"""Sources: when they were and will be looked at, what that look found, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Self

from holdfast.answers.answer import Answer, Answers
from holdfast.answers.from_facts import read
from holdfast.answers.text_tables import counted, shortened, table, to_the_second
from holdfast.model.log_lines import printable


class SourceStatus(Answer, frozen=True):
    """A source of a pipeline."""

    _brief: ClassVar = ("pipeline", "source", "looking", "error")

    pipeline: str
    source: str
    active: bool
    #: Whether a worker is looking at it now, and the id of that worker.
    looking: bool
    worker: str | None
    #: When it is looked at next; None for never again.
    due_at: datetime | None
    looked_at: datetime | None
    failures: int
    error: str | None
    #: What the last look found.
    counts: Mapping[str, int] | None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        return read(cls, facts, worker=None if facts["worker"] is None else format(facts["worker"], "x"))

    def lines(self, width: int | None = None) -> list[str]:
        counts = ", ".join(f"{n:,} {what}" for what, n in (self.counts or {}).items())
        result = f"failed: {self.error}" if self.error else counts or "is being looked at by a worker"
        return [f"{self.pipeline}/{printable(self.source)}: {printable(result)}"]


class Sources(Answers[SourceStatus]):
    """Every source of a store."""

    __slots__ = ()

    def lines(self, width: int | None = None) -> list[str]:
        if not self:
            return ["There are no sources."]
        rows = [
            [
                shortened(f"{one.pipeline}/{one.source}", 60),
                "is looked at" if one.looking else "active" if one.active else "retired",
                to_the_second(one.looked_at),
                to_the_second(one.due_at),
                shortened(f"failed: {one.error}" if one.error else counted(one.counts or {}), 100),
            ]
            for one in self
        ]
        return table(["source", "is", "last look", "next look", "last result"], rows, width=width)


class SourceList(Answers[SourceStatus]):
    """Sources, with the result of their last look."""

    __slots__ = ()
