"""Matrix: items × stages, as counts by state for stretches of items in the order they were added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from holdfast.answers.answer import Answer
from holdfast.answers.text_tables import counted, table


class MatrixCell(Answer, frozen=True):
    """The items of a stretch at one stage. Those that are in no state have not begun it."""

    _brief: ClassVar = ("stage", "states")

    stage: str
    states: Mapping[str, int]


class MatrixStretch(Answer, frozen=True):
    """Items that were added one after another."""

    _brief: ClassVar = ("items", "after")

    #: The place before the first of them: `app.items(after=…)` begins with it.
    after: str
    #: The last of them.
    until: str
    items: int
    #: In the order of the pipeline.
    stages: tuple[MatrixCell, ...]


class Matrix(Answer, frozen=True):
    """A pipeline's items by stretches, and the states of each stretch at each stage."""

    _brief: ClassVar = ("pipeline", "items", "stretches")

    pipeline: str
    stages: tuple[str, ...]
    items: int
    stretches: tuple[MatrixStretch, ...]

    def lines(self, width: int | None = None) -> list[str]:
        if not self.items:
            return ["There are no items in this pipeline."]
        rows = [
            [f"{one.after} on", one.items, *(counted(cell.states) or "-" for cell in one.stages)]
            for one in self.stretches
        ]
        return table(["after", "items", *self.stages], rows, width=width)
