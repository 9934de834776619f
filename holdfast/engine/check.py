"""Everything that must never be, looked for in one database: what `holdfast db check` prints."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.blobs import Blobs
from holdfast.engine import collect_blobs, reconcile_money, recount, stray_rows
from holdfast.engine.wait_cycles import find_wait_cycles
from holdfast.store import Store, Transaction


def check(store: Store, progress: Callable[[str, int], None] | None = None, blobs: Blobs | None = None) -> list[str]:
    """What is wrong; an empty list if all is well. `progress` is called with the table that is read, and how far."""
    integrity = store.integrity()
    if integrity != "ok":
        return [f"the database is damaged: {integrity}"]
    wrong = [
        f"index {name} is missing or unusable: run `holdfast db upgrade` to build it"
        for name in store.missing_indexes()
    ]
    wrong += store.read(partial(_rows, progress=progress)) + recount.check(store)
    return wrong if blobs is None else wrong + collect_blobs.missing(store, blobs)


def _rows(tx: Transaction, progress: Callable[[str, int], None] | None) -> list[str]:
    """Stages of items in two places, rows of no item or that cannot be read, items that wait for themselves, wrong sums."""
    tx.read_all()
    wrong = [f"item {item}, stage {stage} lies in {n} places" for item, stage, n in tx.run("open_more_than_once")]
    wrong += stray_rows.find(tx, progress)
    compared = None if progress is None else partial(progress, "calls")
    return wrong + find_wait_cycles(tx) + [one.text for one in reconcile_money.find(tx, compared).wrong]
