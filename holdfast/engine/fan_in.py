"""Fan-in: begin a stage once all its predecessors have passed and all children it waits for have ended. The item is locked
while deciding."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.engine.layout import layout
from holdfast.engine.wait_cycles import end_wait_cycles
from holdfast.model.states import State
from holdfast.store import Transaction


def begin_if_ready(tx: Transaction, stage: int, items: Sequence[int]) -> list[int]:
    """Begin a stage for the items that are ready for it, and return them. An item that would wait for itself fails."""
    if not items:
        return []
    begun, held = _begin(tx, stage, items)
    if held and stage in layout(tx).may_wait_in_cycle:
        for ended, those in end_wait_cycles(tx, sorted(held)).items():
            begin_waiting_parents(tx, ended, those)
    return begun


def begin_waiting_parents(tx: Transaction, stage: int, items: Iterable[int]) -> None:
    """Items have ended at a stage: begin the stages of their parents that waited for this."""
    row = layout(tx).stages[stage]
    waiting_stages = layout(tx).awaiting_children_of(row.pipeline_name)
    if not waiting_stages or not (ended := list(items)):
        return
    # A transaction that makes one of them a child locks it until the commit: either that one sees that the child has
    # ended, or this one sees the parent.
    tx.run("lock_items", items=ended)
    parents = tx.run("parents_of", items=ended)
    for waiting in waiting_stages:
        if mine := sorted(parent for parent, pipeline in parents if pipeline == waiting.pipeline):
            _begin(tx, waiting.id, mine)


def _begin(tx: Transaction, stage: int, items: Sequence[int]) -> tuple[list[int], Collection[int]]:
    """Begin a stage for the items that are ready for it; return these, and those with children that have not ended."""
    before = layout(tx).parents(stage)
    # A separate statement: the next one must see what others committed while this one waited for the locks.
    tx.run("lock_items", items=list(items))
    held = open_children(tx, stage, items)
    ready = [item for item in items if item not in held]
    if not ready:
        return [], held
    born = tx.run("begin_if_ready", stage=stage, items=ready, before=list(before), needed=len(before), since=tx.now)
    if born:
        tx.count(stage, State.PENDING, len(born))
        tx.tell_idle_workers(stage)
        row = layout(tx).stages[stage]
        if row.after_children is not None:
            # The item's own history does not show when its children ended.
            for [item] in born:
                tx.record("children_ended", pipeline=row.pipeline, item=item, stage=stage, of=row.after_children)
    return [item for [item] in born], held


def open_children(tx: Transaction, stage: int, items: Sequence[int]) -> dict[int, list[int]]:
    """By item: the children that its stage waits for and that have not ended."""
    known = layout(tx)
    awaited = known.stages[stage].after_children
    of = None if awaited is None else known.number_of(awaited)
    links = [] if of is None else tx.run("children_of", items=list(items), pipeline=of)
    if not links or awaited is None:
        return {}
    children = sorted({child for _, child in links})
    busy = {child for (child,) in tx.run("open_items", items=children)}
    # A child may itself wait for children, with none of its own stages open meanwhile.
    for row in known.of_pipeline(awaited):
        if row.after_children is not None:
            before = list(known.parents(row.id))
            given = {"stage": row.id, "before": before, "needed": len(before)}
            busy |= {child for (child,) in tx.run("between_stages", items=children, **given)}
    held: dict[int, list[int]] = {}
    for parent, child in links:
        if child in busy:
            held.setdefault(parent, []).append(child)
    return held
