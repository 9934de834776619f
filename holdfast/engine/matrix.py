"""Matrix: how many items of a pipeline are in which state at which stage, stretch by stretch in the order they were added.

It reads everything that the pipeline has, in pieces that are short transactions of their own; the caller may rest between them.
Work that moves meanwhile may be counted twice or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

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


#: By stretch, stage and state.
Cells = Counter[tuple[int, int, str]]
#: A place in a queue: a priority and an item.
Place = tuple[int, int]


class Counted(NamedTuple):
    """What one transaction has counted, and from where to go on; None at the end."""

    cells: Cells
    #: By stretch.
    items: Counter[int]
    next: Place | None = None


def matrix(store: Store, pipeline: str, most: int, on_step: Callable[[float], None] | None = None) -> Facts:
    """Count in at most `most` stretches; `on_step` gets the share that is counted, between two transactions."""
    stages, stretches, begins = store.read(lambda tx: _bounds(tx, pipeline, most))
    cells: Cells = Counter()
    items: Counter[int] = Counter()
    pieces = list(_pieces(stretches, stages, begins))
    for number, piece in enumerate(pieces):
        place: Place | None = (_LOW, 0)
        while place is not None:
            # Added up here: the transaction may have to run again.
            counted = store.read(partial(piece, at=place))
            cells.update(counted.cells)
            items.update(counted.items)
            place = counted.next
            if on_step is not None:
                on_step((number + (place is None)) / len(pieces))
    return {
        "pipeline": pipeline,
        "stages": [row.name for row in stages],
        "items": sum(items.values()),
        "stretches": [_told(stretches, n, stages, items, cells) for n in range(stretches.number) if items[n]],
    }


def _bounds(tx: Transaction, pipeline: str, most: int) -> tuple[list[StageRow], Stretches, list[int]]:
    """Also before which numbers the pieces begin: one row may have a number far above the rest."""
    known = layout(tx)
    row = known.pipeline(pipeline)
    [(first, last)] = tx.run("matrix_bounds", pipeline=row.id)
    stages = known.of_pipeline(pipeline)
    if first is None:
        return stages, Stretches(0, -1, 0), []
    begins = [first - 1]
    while begins[-1] + PIECE < last:
        [(item,)] = tx.run("matrix_next_item", after=begins[-1] + PIECE)
        begins.append(item - 1)
    return stages, Stretches(first, last, -(-(last - first + 1) // most)), begins


def _pieces(by: Stretches, stages: list[StageRow], begins: list[int]) -> Iterator[Callable[..., Counted]]:
    if not by.number or not stages:
        return
    numbers = [row.id for row in stages]
    yield partial(_in_progress, by=by, stages=numbers)
    for row in stages:
        yield partial(_waiting, by=by, stage=row.id)
    for after in begins:
        until = min(after + PIECE, by.last)
        yield partial(_by_item, by=by, pipeline=stages[0].pipeline, stages=numbers, after=after, until=until)


def _by_item(
    tx: Transaction, *, by: Stretches, pipeline: int, stages: list[int], after: int, until: int, at: Place
) -> Counted:
    given = {"first": by.first, "width": by.width, "after": after, "until": until}
    cells: Cells = Counter()
    for stretch, stage, state, n in tx.run("matrix_outcomes", stages=stages, **given):
        cells[stretch, stage, state] += n
    for statement, open_state in (("matrix_delayed", State.RETRY_LATER), ("matrix_held", State.ON_HOLD)):
        cells.update(_open(open_state, tx.run(statement, stages=stages, **given)))
    return Counted(cells, Counter(dict(tx.run("matrix_items", pipeline=pipeline, **given))))


def _in_progress(tx: Transaction, *, by: Stretches, stages: list[int], at: Place) -> Counted:
    rows = tx.run("matrix_leased", stages=stages, first=by.first, width=by.width)
    return Counted(_open(State.IN_PROGRESS, rows), Counter())


def _waiting(tx: Transaction, *, by: Stretches, stage: int, at: Place) -> Counted:
    place = {"stage": stage, "priority": at[0], "item": at[1]}
    found = tx.run("matrix_next_waiting", **place, most=PIECE)
    last = found[0] if found else (_HIGH, _LAST)
    ends = {"last_priority": last[0], "last_item": last[1]}
    rows = tx.run("matrix_waiting", **place, **ends, first=by.first, width=by.width)
    cells = _open(State.PENDING, [(stretch, stage, before, n) for stretch, before, n in rows])
    return Counted(cells, Counter(), (last[0], last[1]) if found else None)


def _open(state: State, rows: Iterable[tuple[Any, ...]]) -> Cells:
    """Open work, without the outcomes that it is about to replace."""
    cells: Cells = Counter()
    for stretch, stage, before, n in rows:
        cells[stretch, stage, state.value] += n
        if before is not None:
            cells[stretch, stage, before] -= n
    return cells


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
