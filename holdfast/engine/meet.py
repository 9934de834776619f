"""Meet: decide, with the item locked, whether a stage can begin: all before it have passed, and all its children ended."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.register import layout
from holdfast.model.states import State
from holdfast.store import Transaction


def let_meet(tx: Transaction, stage: int, items: Sequence[int]) -> list[int]:
    """Begin a stage for those of the items in which nothing is missing; return them."""
    if not items:
        return []
    before = layout(tx).parents(stage)
    # In a statement of its own: what follows must see what others committed while this waited.
    tx.run("lock_items", items=list(items))
    items = _with_ended_children(tx, stage, items)
    if not items:
        return []
    born = tx.run("let_meet", stage=stage, items=list(items), before=list(before), needed=len(before))
    if born:
        tx.count(stage, State.PENDING, len(born))
        tx.tell_idle_workers(stage)
        row = layout(tx).stages[stage]
        if row.after_children is not None:
            # The item's own history does not tell when its children ended.
            for [item] in born:
                tx.record("children_ended", pipeline=row.pipeline, item=item, stage=stage, of=row.after_children)
    return [item for [item] in born]


def _with_ended_children(tx: Transaction, stage: int, items: Sequence[int]) -> Sequence[int]:
    """Those whose children in the pipeline the stage waits for have all come to an end."""
    held = open_children(tx, stage, items)
    return [item for item in items if item not in held] if held else items


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
