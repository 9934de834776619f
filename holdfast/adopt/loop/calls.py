"""Calls of a loop's handler: one for each claimed row."""

from __future__ import annotations

import msgspec

from holdfast.adopt.loop.job import Job
from holdfast.runtime.call import Call, Paces

#: A thread keeps its connection for the next row if the handler took less than this.
QUICK_SECONDS = 0.001
#: The weight of a new duration in the moving average.
WEIGHT = 0.2


class RowCall(Call, msgspec.Struct, eq=False):
    """One call of the handler, for one row."""

    job: Job
    loop_name: str
    timeout_seconds: float | None
    kind: int = 0
    started: float = 0.0
    abandoned: bool = False
    is_being_saved: bool = False
    _end: bytearray = msgspec.field(default_factory=bytearray(1).copy)

    @property
    def label(self) -> str:
        return f"{self.loop_name}: row {self.job.key!r}"


class HandlerPace(Paces):
    """How long the handler takes. No call counts as quick: a row's outcome is saved before the next call begins."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def learn(self, seconds: float) -> None:
        self._mean = seconds if self._mean is None else self._mean + WEIGHT * (seconds - self._mean)

    def pace(self, kind: int) -> float | None:
        return self._mean
