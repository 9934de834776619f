"""Prune: forget what is old, in batches, each in a transaction of its own.

An item goes with everything that belongs to it, in one transaction: whoever adds the same key again begins a new life.
"""

from __future__ import annotations

from holdfast.model.states import State
from holdfast.store import Transaction

CHUNK = 500
#: Events are kept this long unless told otherwise.
EVENTS_KEPT_DAYS = 90


def prune_events(tx: Transaction, before: int, most: int = CHUNK) -> int:
    """Forget events older than `before`, but never money: what was spent stays known."""
    return len(tx.run("delete_events", before=before, most=most))


def prune_items(tx: Transaction, pipeline: int, before: int, most: int = CHUNK) -> int:
    """Forget items that came to an end, all of them, before that time."""
    items = [row[0] for row in tx.run("ended_items", pipeline=pipeline, before=before, most=most)]
    if not items:
        return 0
    tx.run("lock_items", items=items)
    # Somebody may have reopened one meanwhile.
    busy = {row[0] for row in tx.run("open_items", items=items)}
    items = [item for item in items if item not in busy]
    for stage, state, n in tx.run("outcome_counts_of", items=items):
        tx.count(stage, State(state), -n)
    for statement in (
        "delete_memos_of",
        "delete_children_of",
        "delete_outcomes_of",
        "delete_events_of",
        "delete_items",
    ):
        tx.run(statement, items=items)
    if items:
        tx.record("pruned", pipeline=pipeline, items=len(items))
    return len(items)
