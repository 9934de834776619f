"""Meet: decide, with the item locked, whether a stage can begin: all before it have passed, and all its children ended."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.register import layout
from holdfast.model.states import State
from holdfast.store import Transaction


def let_meet(tx: Transaction, stage: int, items: Sequence[int]) -> int:
    """Begin a stage for those of the items in which nothing is missing; return how many."""
    if not items:
        return 0
    before = layout(tx).parents(stage)
    # In a statement of its own: what follows must see what others committed while this waited.
    tx.run("lock_items", items=list(items))
    items = _with_ended_children(tx, stage, items)
    if not items:
        return 0
    born = tx.run("let_meet", stage=stage, items=list(items), before=list(before), needed=len(before))
    if born:
        tx.count(stage, State.PENDING, len(born))
        tx.tell_idle_workers()
        row = layout(tx).stages[stage]
        if row.after_children is not None:
            # The item's own history does not tell when its children ended.
            for [item] in born:
                tx.record("children_ended", pipeline=row.pipeline, item=item, stage=stage, of=row.after_children)
    return len(born)


def _with_ended_children(tx: Transaction, stage: int, items: Sequence[int]) -> Sequence[int]:
    """Those whose children in the pipeline the stage waits for have all come to an end."""
    row = layout(tx).stages[stage]
    if row.after_children is None:
        return items
    of = layout(tx).number_of(row.after_children)
    if of is None:
        return items
    links = tx.run("children_of", items=list(items), pipeline=of)
    if not links:
        return items
    busy = {child for (child,) in tx.run("open_items", items=sorted({child for _, child in links}))}
    held = {parent for parent, child in links if child in busy}
    return [item for item in items if item not in held]
