"""Delete: a person removes items for good, with their data, results, memos, history, and children without another parent.

Each chunk of items goes in one transaction, whatever state they are in; a worker that is processing one of them loses its
lease. Their costs stay in the ledger, as amounts without facts, answers or keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec.structs import replace

from holdfast.engine import ledger
from holdfast.engine.fan_in import begin_if_ready
from holdfast.engine.item_pages import Place as Cursor
from holdfast.engine.item_pages import items, some_items, some_stages_of_items
from holdfast.engine.layout import layout
from holdfast.engine.prune import forget_items, uncover, withdraw
from holdfast.engine.resource_state import lock_resources
from holdfast.engine.selection import ActionPlace, Meant, Who, beginning
from holdfast.model.item_filter import Which
from holdfast.model.states import State
from holdfast.store import Transaction

CHUNK = 200

#: An item and the name of its pipeline.
_Chosen = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the selected items; counted by pipeline. Children that go with them are counted once they are gone."""

    name: ClassVar[str] = "delete"
    event: ClassVar[str] = "deleted"
    which: Which

    def begin(self, tx: Transaction) -> ActionPlace:
        return beginning(tx, self.which)

    def choose(self, tx: Transaction, place: ActionPlace) -> tuple[list[_Chosen], ActionPlace | None]:
        page = items(tx, self.which, after=int(place.after), most=CHUNK)
        rows = sorted({(row["id"], row["pipeline"]) for row in page if row["id"] <= place.until})
        is_last = len(page) < CHUNK or page[-1]["id"] > place.until
        return rows, None if is_last else replace(place, after=str(page[-1]["id"]))

    def count(self, tx: Transaction, rows: list[_Chosen]) -> Counter[str]:
        return Counter(pipeline for _, pipeline in rows)

    def meant(self, rows: list[_Chosen]) -> list[Meant]:
        return [Meant(item) for item, _ in rows]

    def look_ahead(self, tx: Transaction, place: ActionPlace, most: int) -> tuple[list[_Chosen], bool]:
        which, after = self.which, Cursor.read(place.after)
        if which.is_of_items:
            rows, more = some_items(tx, which, after.item, most, place.until)
            return rows, more
        stages = layout(tx).chosen(which.pipeline, which.stage)
        rows, more = some_stages_of_items(tx, which, stages, after, most, place.until)
        names = {row.id: row.pipeline_name for row in stages}
        return sorted({(item, names[stage]) for item, stage, _ in rows}), more

    def act(self, tx: Transaction, rows: list[_Chosen], who: Who) -> Counter[str]:
        return _delete(tx, [item for item, _ in rows], who)


def _delete(tx: Transaction, items: Sequence[int], who: Who) -> Counter[str]:
    known = layout(tx)
    items = _with_children(tx, items)
    if not items:
        return Counter()
    stages = sorted(known.stages)
    lock_resources(tx, stages)
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
        tx.record("deleted", pipeline=number, items=n, **who.facts)
    for row in known.stages.values():
        if row.active and row.after_children is not None:
            begin_if_ready(tx, row.id, sorted({parent for parent, pipeline in parents if pipeline == row.pipeline}))
    return Counter({names[number]: n for number, n in of_pipeline.items()})


def _with_children(tx: Transaction, items: Sequence[int]) -> list[int]:
    """The items and, recursively, their children that have no other parent."""
    found = dict.fromkeys(items)
    newest = list(found)
    while newest:
        newest = [child for (child,) in tx.run("children_of_only", items=list(found)) if child not in found]
        found.update(dict.fromkeys(newest))
    return sorted(found)
