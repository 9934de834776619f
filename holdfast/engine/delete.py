"""Delete: a person removes items for good, with their data, results, memos, history, and children that belong to no other.

Each stretch of items goes in one transaction, whatever state they are in: a worker that has one in hand loses its lease. What
they have cost stays in the ledger, as amounts without facts, answers or keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.engine import ledger
from holdfast.engine.choose import Counts, Which, Who
from holdfast.engine.gates import hold_resources
from holdfast.engine.meet import let_meet
from holdfast.engine.pages import items as page_of_items
from holdfast.engine.prune import forget_items, uncover, withdraw
from holdfast.engine.register import layout
from holdfast.model.states import State
from holdfast.store import Store, Transaction

CHUNK = 200


def delete(store: Store, which: Which, who: Who, *, dry_run: bool = False) -> Counts:
    """Remove the items that a filter means; return how many of which pipeline, children included. A dry run leaves out
    children."""
    count: Counter[str] = Counter()
    states: list[State | None] = [*sorted(which.states)] or [None]
    for state in states:
        after: int | None = 0
        while after is not None:

            def step(tx: Transaction, state: State | None = state, after: int = after) -> tuple[Counter[str], int | None]:
                page = page_of_items(
                    tx, pipeline=which.pipeline, stage=which.stage, state=state, key=which.key, error=which.error,
                    after=after, most=CHUNK,
                )  # fmt: skip
                chosen = {row["id"]: row["pipeline"] for row in page}
                done = Counter(chosen.values()) if dry_run else _delete(tx, list(chosen), who)
                return done, page[-1]["id"] if len(page) == CHUNK else None

            done, after = store.read(step) if dry_run else store.write(step)
            count += done
    return dict(count)


def _delete(tx: Transaction, items: Sequence[int], who: Who) -> Counter[str]:
    known = layout(tx)
    items = _with_children(tx, items)
    if not items:
        return Counter()
    stages = sorted(known.stages)
    hold_resources(tx, stages)
    tx.run("lock_items", items=items)
    parents = [parent for parent in tx.run("parents_of", items=items) if parent[0] not in set(items)]
    for stage in stages:
        taken = tx.run("revoke_leases", stage=stage, items=items)
        tx.count(stage, State.IN_PROGRESS, -len(taken))
        ledger.doubt(tx, [(lease, item, stage) for item, *_, lease in taken], "its item was deleted during the call")
        uncover(tx, stage, [item for item, _, _, rerun, _ in taken if rerun])
        withdraw(tx, stage, items)
    names = {row.id: row.name for row in known.pipelines.values()}
    of_pipeline: Counter[int] = Counter(dict(tx.run("items_by_pipeline", items=items)))
    tx.run("strip_calls", items=items)
    tx.run("delete_parents_of", items=items)
    forget_items(tx, items)
    for number, n in sorted(of_pipeline.items()):
        tx.record("deleted", pipeline=number, items=n, by=who.name, reason=who.reason)
    for row in known.stages.values():
        if row.active and row.after_children is not None:
            let_meet(tx, row.id, sorted({parent for parent, pipeline in parents if pipeline == row.pipeline}))
    return Counter({names[number]: n for number, n in of_pipeline.items()})


def _with_children(tx: Transaction, items: Sequence[int]) -> list[int]:
    """The items, and their children that have no other parent, theirs, and so on."""
    found = dict.fromkeys(items)
    newest = list(found)
    while newest:
        newest = [child for (child,) in tx.run("children_of_only", items=list(found)) if child not in found]
        found.update(dict.fromkeys(newest))
    return sorted(found)

