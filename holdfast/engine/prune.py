"""Prune: delete old events and items, in batches, each in a transaction of its own.

An item goes with everything that belongs to it, in one transaction: if the same key is added again, it is a new item.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.layout import layout
from holdfast.model.states import State
from holdfast.store import Transaction

CHUNK = 500
#: Events are kept this long unless told otherwise.
EVENTS_KEPT_DAYS = 90


def prune_events(tx: Transaction, before: int, most: int = CHUNK) -> int:
    """Delete events older than `before`, actions that ended before it, and error groups last seen before it. The ledger is
    kept."""
    tx.run("delete_actions", before=before, most=most)
    tx.run("delete_error_groups", before=before)
    return len(tx.run("delete_events", before=before, most=most))


def count_events(tx: Transaction, before: int) -> int:
    """How many events would be deleted. Reads all events."""
    return int(tx.run("count_old_events", before=before)[0][0])


def count_items(tx: Transaction, pipeline: int, before: int) -> int:
    """How many items would be deleted, without their children, which go after them. Reads all items."""
    return int(tx.run("count_ended_items", pipeline=pipeline, before=before)[0][0])


def prune_items(tx: Transaction, pipeline: int, before: int, most: int = CHUNK) -> int:
    """Delete items whose stages all ended before that time."""
    chosen = {"pipeline": pipeline, "before": before, "most": most}
    items = [row[0] for row in tx.run("ended_items", **chosen)]
    if not items:
        return 0
    stages = [row for row in layout(tx).stages.values() if row.pipeline == pipeline]
    tx.run("lock_items", items=items)
    for row in stages:
        # A transaction that reopens a stage locks its outcome.
        tx.run("lock_outcomes", stage=row.id, items=items)
    # One may have been changed or reopened before the locks were taken: look again.
    ended = {row[0] for row in tx.run("ended_items", **chosen)}
    items = [item for item in items if item in ended]
    for row in stages:
        if not row.active:
            withdraw(tx, row.id, items)
    busy = {row[0] for row in tx.run("open_items", items=items)}
    items = [item for item in items if item not in busy]
    forget_items(tx, items)
    if items:
        tx.record("pruned", pipeline=pipeline, items=len(items))
    return len(items)


def forget_items(tx: Transaction, items: Sequence[int]) -> None:
    """Delete items without open work, and everything that belongs to them alone."""
    for stage, state, version, type_, n in tx.run("outcome_counts_of", items=list(items)):
        tx.count(stage, State(state), -n, version=version, type=type_)
    pipelines = {pipeline for pipeline, _ in tx.run("items_by_pipeline", items=list(items))}
    for row in layout(tx).stages.values():
        if row.pipeline in pipelines:
            tx.run("forget_memos", stage=row.id, items=list(items))
    for statement in (
        "delete_answers_of",
        "delete_children_of",
        "forget_reruns",
        "delete_outcomes_of",
        "delete_events_of",
        "delete_items",
    ):
        tx.run(statement, items=list(items))


def withdraw(tx: Transaction, stage: int, items: Sequence[int]) -> None:
    """Remove open work of items at a stage."""
    for statement, state in (
        ("take_waiting", State.PENDING),
        ("take_delayed", State.RETRY_LATER),
        ("take_held", State.ON_HOLD),
    ):
        taken = tx.run(statement, stage=stage, items=list(items))
        tx.count(stage, state, -len(taken))
        uncover(tx, stage, [item for item, _, _, rerun in taken if rerun])


def uncover(tx: Transaction, stage: int, items: Sequence[int]) -> None:
    """Count the outcomes again that removed reruns would have replaced."""
    if items:
        for _, old, _, version, type_ in tx.run("read_outcome_states", stage=stage, items=list(items)):
            tx.count(stage, State(old), 1, version=version, type=type_)
