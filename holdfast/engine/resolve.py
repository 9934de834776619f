"""Resolve: a person says what became of a paid call that is in doubt."""

from __future__ import annotations

from typing import Any

from holdfast.engine.reads import find_item
from holdfast.engine.register import layout
from holdfast.errors import UsageError
from holdfast.store import Transaction


def memos(tx: Transaction, key: str, pipeline: str | None) -> list[dict[str, Any]]:
    """The memos of an item: what its unfinished stages have done so far, and what is in doubt."""
    known = layout(tx).stages
    return [{**memo, "stage": known[memo["stage"]].name} for memo in _memos_of(tx, find_item(tx, key, pipeline))]


def _memos_of(tx: Transaction, item: dict[str, Any]) -> list[dict[str, Any]]:
    """Also of stages that the pipeline no longer has."""
    stages = [row.id for row in layout(tx).stages.values() if row.pipeline == item["pipeline_id"]]
    return tx.records("item_memos", item=item["id"], stages=stages)


def resolve(
    tx: Transaction, key: str, pipeline: str | None, name: str, *, value: str | None, cost: int | None = None,
    by: str = "", reason: str = "",
) -> str:  # fmt: skip
    """Give a call in doubt its result (JSON text) and what it cost, or forget it so that it is made again. Returns the
    stage. The item stays where it is; `retry` sends it on.
    """
    item = find_item(tx, key, pipeline)
    found = [memo for memo in _memos_of(tx, item) if memo["name"] == name]
    if not found:
        raise UsageError(f"item {key!r} has no memo {name!r}")
    if len(found) > 1:
        raise UsageError(f"item {key!r} has a memo {name!r} in several stages")
    memo = found[0]
    if memo["state"] != "intended":
        raise UsageError(f"item {key!r}: the memo {name!r} is not in doubt, its result is recorded")
    stage = layout(tx).stages[memo["stage"]]
    if any(lease["stage"] == stage.id for lease in tx.records("item_lease", item=item["id"])):
        raise UsageError(f"item {key!r}: stage {stage.name!r} is in progress: the call {name!r} may be under way")
    if value is None and cost is not None:
        raise UsageError(f"item {key!r}: the memo {name!r} is forgotten: a call that was not made has no cost")
    tx.run("forget_memo", stage=stage.id, item=item["id"], name=name)
    if value is not None:
        row = (
            stage.id, item["id"], name, "done", memo["version"], memo["idempotency_key"], 0, None, cost, value, tx.now,
        )  # fmt: skip
        tx.run_rows("save_memos", [row])
    if cost:
        tx.record("cost", pipeline=stage.pipeline, item=item["id"], stage=stage.id, amount=cost, memo=name)
    tx.record(
        "resolved", pipeline=item["pipeline_id"], item=item["id"], stage=stage.id,
        memo=name, decided="forgotten" if value is None else "given a result", by=by, reason=reason,
    )  # fmt: skip
    return stage.name
