"""Wait cycles: items that wait for each other as children, in a cycle. None of them would ever continue.

A cycle closes when an item begins to wait, or gets another child while it waits. The transaction that does so walks down from
that item, through children that wait for children of their own, and fails the stages that would wait for themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import islice, pairwise

from holdfast.engine import error_groups
from holdfast.engine.describe_chain import describe_chain
from holdfast.engine.finish_leases import write_outcomes
from holdfast.engine.layout import layout, record
from holdfast.model.error_fingerprint import Cause
from holdfast.model.key_pattern import exactly
from holdfast.model.shell_quoting import word
from holdfast.model.states import WORDS, State
from holdfast.store import Transaction

#: The longest chain of items that wait for each other: all of them are read to find out whether they form a cycle.
LONGEST = 1000
#: How many cycles a check names, and how many items it reads at a time.
NAMED = 100
CHUNK = 1000

#: By item: the children it waits for, and the stages that wait for each.
Waits = dict[int, dict[int, list[int]]]


def end_wait_cycles(tx: Transaction, items: Sequence[int]) -> dict[int, list[int]]:
    """Fail the waiting stages of all items in cycles with these, which have begun to wait; return the items by stage."""
    waits, whole = _waits_below(tx, items)
    ended: dict[int, list[int]] = {}
    for cycle in _cycles(waits):
        error = f"{describe_chain(tx, cycle)} waits for itself"
        for item, child in pairwise(cycle):
            _fail(tx, item, waits[item][child], error, ended)
    if not whole:
        error = (
            f"more than {LONGEST:,} items in a row wait for each other: whether they form a cycle cannot be determined"
        )
        for item in items:
            stages = {stage for several in waits.get(item, {}).values() for stage in several}
            _fail(tx, item, sorted(stages - {stage for stage in ended if item in ended[stage]}), error, ended)
    return ended


def find_wait_cycles(tx: Transaction) -> list[str]:
    """Every cycle in the store, with what to do: versions without this check left them. Reads all parents."""
    waits: Waits = {}
    after: int | None = 0
    while after is not None and layout(tx).may_wait_in_cycle:
        parents = [parent for (parent,) in tx.run("parents_after", after=after, most=CHUNK)]
        _gather(tx, parents, waits)
        after = parents[-1] if len(parents) == CHUNK else None
    cycles = islice(_cycles(waits), NAMED)
    return [
        f"{describe_chain(tx, cycle)} waits for itself: {_advice(tx, cycle[0], waits[cycle[0]][cycle[1]][0])}"
        for cycle in cycles
    ]


def _waits_below(tx: Transaction, items: Sequence[int]) -> tuple[Waits, bool]:
    """Which items wait for which below these, and whether the search was complete."""
    waits: Waits = {}
    seen, newest = set(items), sorted(items)
    for _ in range(LONGEST):
        # Two transactions that close a cycle together lock what the other one reads: the second sees what the first did.
        tx.run("lock_items", items=newest)
        _gather(tx, newest, waits)
        newest = sorted({child for item in newest for child in waits.get(item, ())} - seen)
        seen.update(newest)
        if not newest:
            return waits, True
    return waits, False


def _gather(tx: Transaction, items: Sequence[int], waits: Waits) -> None:
    """Add, for the items that wait, the children they wait for that have children themselves."""
    known = layout(tx)
    for stage in sorted(known.may_wait_in_cycle):
        row, before = known.stages[stage], list(known.parents(stage))
        params = {"stage": stage, "before": before, "needed": len(before), "pipeline": row.pipeline}
        for item, child in tx.run("waits_for", items=list(items), of=row.after_children, **params):
            waits.setdefault(item, {}).setdefault(child, []).append(stage)


def _cycles(waits: Waits) -> Iterator[list[int]]:
    """Cycles in which each item waits for the next; the first is repeated at the end. An item is in at most one of them: once
    a cycle has ended, others that wait for its items continue."""
    left = {item: set(children) for item, children in waits.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
            return
        except CycleError as error:
            cycle = error.args[1][:0:-1]
            first = cycle.index(min(cycle))
            yield [*cycle[first:], *cycle[:first], cycle[first]]
            for item in cycle:
                del left[item]


def _fail(tx: Transaction, item: int, stages: Iterable[int], error: str, ended: dict[int, list[int]]) -> None:
    for stage in stages:
        unknown = (None, None, None)
        cause = Cause("", "", "an item waits for itself")
        row = (item, stage, WORDS[State.FAILED], 0, None, None, tx.now, *unknown, 0, 1, error, None, None, cause.group)
        write_outcomes(tx, "insert_outcomes", [row])
        error_groups.enter(tx, [error_groups.Failure(stage, item, cause)])
        tx.count(stage, State.FAILED, 1)
        record(tx, "failed", item, stage, attempt=0, error=error)
        ended.setdefault(stage, []).append(item)


def _advice(tx: Transaction, item: int, stage: int) -> str:
    """What a person can do about an item that waits in a cycle at a stage."""
    [(_, pipeline, key)] = tx.run("names_of", items=[item])
    this = word(exactly(key))
    return (
        f"`holdfast retry --pipeline {pipeline} --stage {layout(tx).stages[stage].after[0]} --state done --state skipped "
        f"--key {this}` runs the stage before once more, after which the items end failed; "
        f"`holdfast delete --pipeline {pipeline} {this}` removes the item, with its children"
    )
