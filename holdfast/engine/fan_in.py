"""Meet: decide, with the item locked, whether a stage can begin: all before it have passed, and all its children ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from holdfast.engine.layout import layout
from holdfast.engine.wait_cycles import end_wait_cycles
from holdfast.model.states import State
from holdfast.store import Transaction


def begin_if_ready(tx: Transaction, stage: int, items: Sequence[int]) -> list[int]:
    """Begin a stage for those of the items in which nothing is missing, and return them. One that would wait for itself
    ends."""
    if not items:
        return []
    begun, held = _begin(tx, stage, items)
    if held and stage in layout(tx).ringed:
        for ended, those in end_wait_cycles(tx, sorted(held)).items():
            begin_waiting_parents(tx, ended, those)
    return begun


def begin_waiting_parents(tx: Transaction, stage: int, items: Iterable[int]) -> None:
    """Items came to an end at a stage, perhaps for good: a stage of their parents may have waited for that."""
    row = layout(tx).stages[stage]
    waiting_stages = layout(tx).awaiting_children_of(row.pipeline_name)
    if not waiting_stages or not (ended := list(items)):
        return
    # Whoever makes one of them a child of another holds it until the commit: either that one sees that the child has
    # ended, or this one sees the parent.
    tx.run("lock_items", items=ended)
    parents = tx.run("parents_of", items=ended)
    for waiting in waiting_stages:
        if mine := sorted(parent for parent, pipeline in parents if pipeline == waiting.pipeline):
            _begin(tx, waiting.id, mine)


def _begin(tx: Transaction, stage: int, items: Sequence[int]) -> tuple[list[int], Collection[int]]:
    """Begin a stage for those of the items in which nothing is missing; return these, and those whose children have not all
    ended."""
    before = layout(tx).parents(stage)
    # In a statement of its own: what follows must see what others committed while this waited.
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
            # The item's own history does not tell when its children ended.
            for [item] in born:
                tx.record("children_ended", pipeline=row.pipeline, item=item, stage=stage, of=row.after_children)
    return [item for [item] in born], held


def open_children(tx: Transaction, stage: int, items: Sequence[int]) -> dict[int, list[int]]:
    """By item: the children that a stage of it waits for and that have not come to an end."""
    known = layout(tx)
    awaited = known.stages[stage].after_children
    of = None if awaited is None else known.number_of(awaited)
    links = [] if of is None else tx.run("children_of", items=list(items), pipeline=of)
    if not links or awaited is None:
        return {}
    children = sorted({child for _, child in links})
    busy = {child for (child,) in tx.run("open_items", items=children)}
    # A child may itself wait for children, with nothing of it open meanwhile.
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
