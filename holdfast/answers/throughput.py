"""Throughput: how many attempts ended when, how, how long they ran, and how long their work had waited."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import ClassVar

from holdfast.answers.answer import Answer, Answers
from holdfast.answers.text_tables import spoken, table

_BARS = "▁▂▃▄▅▆▇█"


class ThroughputPoint(Answer, frozen=True):
    """The attempts that ended within one span of time. Percentiles are right to about a tenth, and None without attempts."""

    _brief: ClassVar = ("begins_at", "attempts")

    begins_at: datetime
    attempts: int
    #: How many were `done`, `skipped`, `retried`, `failed`, `exhausted`, `handed_back` or `lost`.
    outcomes: Mapping[str, int]
    run_p50: timedelta | None
    run_p95: timedelta | None
    #: From the moment the work was ready until a worker claimed it.
    wait_p50: timedelta | None
    wait_p95: timedelta | None


class StageThroughput(Answer, frozen=True):
    """The attempts of a stage, in all and over time."""

    _brief: ClassVar = ("pipeline", "stage", "attempts")

    pipeline: str
    stage: str
    #: How long a point stands for. The last one is not over yet.
    span: timedelta
    attempts: int
    outcomes: Mapping[str, int]
    run_p50: timedelta | None
    run_p95: timedelta | None
    wait_p50: timedelta | None
    wait_p95: timedelta | None
    points: tuple[ThroughputPoint, ...]

    @property
    def per_minute(self) -> float:
        """How many attempts ended in a minute, since the first of them in this time: what has begun ten minutes ago is not slow
        because nothing was done before."""
        return self.ended_per_minute()

    def ended_per_minute(self, *outcomes: str) -> float:
        """The same of attempts with these outcomes, or with any."""
        begun = next((n for n, point in enumerate(self.points) if point.attempts), None)
        if begun is None:
            return 0.0
        count = sum(self.outcomes.get(name, 0) for name in outcomes) if outcomes else self.attempts
        return count / ((len(self.points) - begun) * self.span.total_seconds() / 60)

    @property
    def bars(self) -> str:
        """The attempts over time, as a line of bars."""
        most = max([point.attempts for point in self.points], default=0)
        if not most:
            return ""
        return "".join(_BARS[-(-point.attempts * (len(_BARS) - 1) // most)] for point in self.points)


class Throughput(Answers[StageThroughput]):
    """Every stage, in the order of its pipeline."""

    __slots__ = ()

    def lines(self, width: int | None = None) -> list[str]:
        if not self:
            return ["There are no stages in this store yet."]
        head = ["stage", "attempts", "per minute", "run p50", "p95", "wait p50", "p95 "]
        rows = [
            [
                f"{one.pipeline}.{one.stage}",
                one.attempts,
                f"{one.per_minute:.1f}",
                *(
                    "-" if took is None else spoken(took)
                    for took in (one.run_p50, one.run_p95, one.wait_p50, one.wait_p95)
                ),
            ]
            for one in self
        ]
        lines = table(head, rows, width=width)
        for one in self:
            if one.bars:
                lines += ["", f"{one.pipeline}.{one.stage}, a bar for {spoken(one.span)}:", one.bars]
        return lines
