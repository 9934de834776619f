"""Matrix: how many items of a pipeline are in which state at which stage, stretch by stretch in the order they were added.

It reads everything that the pipeline has, in pieces that are short transactions of their own; the caller may rest between them.
Work that moves meanwhile may be counted twice or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.engine.layout import layout
from holdfast.model.facts import Facts
from holdfast.model.layout import StageRow
from holdfast.model.states import State
from holdfast.store import Store, Transaction

#: How many numbers of items, and how much of a queue, one transaction reads.
PIECE = 20_000
#: Below and above all priorities and numbers.
_LOW, _HIGH = -(2**31), 2**31 - 1
_LAST = 2**63 - 1


class Stretches(NamedTuple):
    """The numbers of a pipeline's items, divided into stretches of equal width."""

    first: int
    last: int
    width: int

    def begin(self, place: int) -> int:
        return self.first + place * self.width

    @property
    def number(self) -> int:
        return (self.last - self.first) // self.width + 1 if self.width else 0


Cells = Counter[tuple[int, int, str]]


def matrix(store: Store, pipeline: str, most: int, on_step: Callable[[float], None] | None = None) -> Facts:
    """Count in at most `most` stretches; `on_step` gets the share that is counted, between two transactions."""
    stages, stretches = store.read(lambda tx: _bounds(tx, pipeline, most))
    cells: Cells = Counter()
    items: Counter[int] = Counter()
    pieces = list(_pieces(stretches, stages))
    for number, piece in enumerate(pieces):
        place: tuple[int, int] | None = (_LOW, 0)
        while place is not None:
            place = store.read(lambda tx, at=place, piece=piece: piece(tx, stretches, cells, items, at))  # type: ignore[misc]
            if on_step is not None:
                on_step((number + (place is None)) / len(pieces))
    return {
        "pipeline": pipeline,
        "stages": [row.name for row in stages],
        "items": sum(items.values()),
        "stretches": [
            _told(stretches, place, stages, items, cells) for place in range(stretches.number) if items[place]
        ],
    }


def _bounds(tx: Transaction, pipeline: str, most: int) -> tuple[list[StageRow], Stretches]:
    known = layout(tx)
    row = known.pipeline(pipeline)
    [(first, last)] = tx.run("matrix_bounds", pipeline=row.id)
    stages = known.of_pipeline(pipeline)
    if first is None:
        return stages, Stretches(0, -1, 0)
    return stages, Stretches(first, last, -(-(last - first + 1) // most))


#: Reads one piece from a place on, and returns where to go on; None at its end.
Piece = Callable[[Transaction, Stretches, Cells, Counter[int], tuple[int, int]], tuple[int, int] | None]


def _pieces(stretches: Stretches, stages: list[StageRow]) -> Iterator[Piece]:
    if not stretches.number or not stages:
        return
    numbers = [row.id for row in stages]
    yield _in_progress(numbers)
    for row in stages:
        yield _waiting(row.id)
    for after in range(stretches.first - 1, stretches.last, PIECE):
        yield _by_item(stages[0].pipeline, numbers, after, min(after + PIECE, stretches.last))


def _by_item(pipeline: int, stages: list[int], after: int, until: int) -> Piece:
    def read(tx: Transaction, by: Stretches, cells: Cells, items: Counter[int], at: tuple[int, int]) -> None:
        given = {"first": by.first, "width": by.width, "after": after, "until": until}
        items.update(dict(tx.run("matrix_items", pipeline=pipeline, **given)))
        for stretch, stage, state, n in tx.run("matrix_outcomes", stages=stages, **given):
            cells[stretch, stage, state] += n
        for statement, state in (("matrix_delayed", State.RETRY_LATER), ("matrix_held", State.ON_HOLD)):
            _open(cells, state, tx.run(statement, stages=stages, **given))

    return read


def _in_progress(stages: list[int]) -> Piece:
    def read(tx: Transaction, by: Stretches, cells: Cells, items: Counter[int], at: tuple[int, int]) -> None:
        _open(cells, State.IN_PROGRESS, tx.run("matrix_leased", stages=stages, first=by.first, width=by.width))

    return read


def _waiting(stage: int) -> Piece:
    def read(
        tx: Transaction, by: Stretches, cells: Cells, items: Counter[int], at: tuple[int, int]
    ) -> tuple[int, int] | None:
        place = {"stage": stage, "priority": at[0], "item": at[1]}
        found = tx.run("matrix_next_waiting", **place, most=PIECE)
        last = found[0] if found else (_HIGH, _LAST)
        ends = {"last_priority": last[0], "last_item": last[1]}
        rows = tx.run("matrix_waiting", **place, **ends, first=by.first, width=by.width)
        _open(cells, State.PENDING, [(stretch, stage, before, n) for stretch, before, n in rows])
        return (last[0], last[1]) if found else None

    return read


def _open(cells: Cells, state: State, rows: list[tuple[int, int, str | None, int]]) -> None:
    """Count open work, and not the outcomes that it is about to replace."""
    for stretch, stage, before, n in rows:
        cells[stretch, stage, state.value] += n
        if before is not None:
            cells[stretch, stage, before] -= n


def _told(by: Stretches, place: int, stages: list[StageRow], items: Counter[int], cells: Cells) -> Facts:
    states = [state.value for state in State]
    return {
        "after": str(by.begin(place) - 1),
        "until": str(min(by.begin(place + 1) - 1, by.last)),
        "items": items[place],
        "stages": [
            {"stage": row.name, "states": {name: n for name in states if (n := cells[place, row.id, name]) > 0}}
            for row in stages
        ],
    }
