"""Rings: items that wait for each other's end as children, each for the next and the last for the first. None would ever go on.

A ring closes when an item begins to wait, or gets another child while it waits. The transaction that does so walks down from
that item, through children that wait for children of their own, and ends the stages that would wait for themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import islice, pairwise

from holdfast.engine import error_groups
from holdfast.engine.describe_chain import describe_chain
from holdfast.engine.layout import layout
from holdfast.model.faults import Cause
from holdfast.model.pattern import exactly
from holdfast.model.shell import word
from holdfast.model.states import WORDS, State
from holdfast.store import Transaction

#: So many items in a row may wait for each other's end: to find out whether they are a ring, all of them are looked at.
LONGEST = 1000
#: How many rings a check names, and how many items it looks at in one go.
NAMED = 100
CHUNK = 1000

#: By item: the children it waits for, and the stages that wait for each.
Waits = dict[int, dict[int, list[int]]]


def end_wait_cycles(tx: Transaction, items: Sequence[int]) -> dict[int, list[int]]:
    """End the stages of all items in the rings that these, which have begun to wait, belong to; by stage, the items."""
    waits, whole = _waits_below(tx, items)
    ended: dict[int, list[int]] = {}
    for ring in _rings(waits):
        error = f"{describe_chain(tx, ring)} waits for itself"
        for item, child in pairwise(ring):
            _fail(tx, item, waits[item][child], error, ended)
    if not whole:
        error = (
            f"more than {LONGEST:,} items in a row wait for each other's end: whether they are a ring cannot be told"
        )
        for item in items:
            stages = {stage for several in waits.get(item, {}).values() for stage in several}
            _fail(tx, item, sorted(stages - {stage for stage in ended if item in ended[stage]}), error, ended)
    return ended


def find_wait_cycles(tx: Transaction) -> list[str]:
    """Every ring in the store, with what to do: those of before there was anybody to end them. Looks at all parents."""
    waits: Waits = {}
    after: int | None = 0
    while after is not None and layout(tx).ringed:
        parents = [parent for (parent,) in tx.run("parents_after", after=after, most=CHUNK)]
        _gather(tx, parents, waits)
        after = parents[-1] if len(parents) == CHUNK else None
    rings = islice(_rings(waits), NAMED)
    return [
        f"{describe_chain(tx, ring)} waits for itself: {_advice(tx, ring[0], waits[ring[0]][ring[1]][0])}"
        for ring in rings
    ]


def _waits_below(tx: Transaction, items: Sequence[int]) -> tuple[Waits, bool]:
    """Who waits for whom below these items, and whether that is all."""
    waits: Waits = {}
    seen, newest = set(items), sorted(items)
    for _ in range(LONGEST):
        # Two that close a ring together hold what the other one looks at: the second sees what the first has done.
        tx.run("lock_items", items=newest)
        _gather(tx, newest, waits)
        newest = sorted({child for item in newest for child in waits.get(item, ())} - seen)
        seen.update(newest)
        if not newest:
            return waits, True
    return waits, False


def _gather(tx: Transaction, items: Sequence[int], waits: Waits) -> None:
    """Add for those of the items that wait which children they wait for, as far as these have children themselves."""
    known = layout(tx)
    for stage in sorted(known.ringed):
        row, before = known.stages[stage], list(known.parents(stage))
        params = {"stage": stage, "before": before, "needed": len(before), "pipeline": row.pipeline}
        for item, child in tx.run("waits_for", items=list(items), of=row.after_children, **params):
            waits.setdefault(item, {}).setdefault(child, []).append(stage)


def _rings(waits: Waits) -> Iterator[list[int]]:
    """Rings in which each item waits for the next; the first comes again at the end. An item is in one of them at most: once a
    ring has ended, others that wait for its items go on."""
    left = {item: set(children) for item, children in waits.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
            return
        except CycleError as error:
            ring = error.args[1][:0:-1]
            first = ring.index(min(ring))
            yield [*ring[first:], *ring[:first], ring[first]]
            for item in ring:
                del left[item]


def _fail(tx: Transaction, item: int, stages: Iterable[int], error: str, ended: dict[int, list[int]]) -> None:
    for stage in stages:
        unknown = (None, None, None)
        cause = Cause("", "", "an item waits for itself")
        row = (item, stage, WORDS[State.FAILED], 0, None, None, tx.now, *unknown, 0, 1, error, cause.group, None)
        tx.run_rows("insert_outcomes", [row])
        error_groups.enter(tx, [error_groups.Failure(stage, item, cause)])
        tx.count(stage, State.FAILED, 1)
        tx.record("failed", pipeline=layout(tx).stages[stage].pipeline, item=item, stage=stage, attempt=0, error=error)
        ended.setdefault(stage, []).append(item)


def _advice(tx: Transaction, item: int, stage: int) -> str:
    """What a person can do about an item that waits in a ring at a stage."""
    [(_, pipeline, key)] = tx.run("names_of", items=[item])
    this = word(exactly(key))
    return (
        f"`holdfast retry --pipeline {pipeline} --stage {layout(tx).stages[stage].after[0]} --state done --state skipped "
        f"--key {this}` runs the stage before once more, after which the items end failed; "
        f"`holdfast delete --pipeline {pipeline} {this}` removes the item, with its children"
    )
