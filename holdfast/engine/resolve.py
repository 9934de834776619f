"""Resolve: a person says what became of paid calls that are in doubt: of one, with its answer, or of many by filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.engine import ledger
from holdfast.engine.choose import CHUNK, Counts, Which, Who, patterns_of, stages_of
from holdfast.engine.gates import hold_resources
from holdfast.engine.reads import find_item
from holdfast.engine.register import layout
from holdfast.errors import UsageError
from holdfast.model.layout import StageRow
from holdfast.model.paid import Paid, PaidCall
from holdfast.store import Store, Transaction


class Decision(NamedTuple):
    """What became of a call: its answer (JSON text), if it is known, and what was charged: None if nothing was said about
    that, in which case what was expected counts for a call with an answer."""

    value: str | None = None
    charged: int | None = None

    @property
    def words(self) -> str:
        if self.value is not None:
            return "given a result"
        return "charged" if self.charged else "not charged"


def memos(tx: Transaction, key: str, pipeline: str | None) -> list[dict[str, Any]]:
    """The memos of an item: what its unfinished stages have done so far, and what is in doubt."""
    known = layout(tx).stages
    return [{**memo, "stage": known[memo["stage"]].name} for memo in _memos_of(tx, find_item(tx, key, pipeline))]


def calls(tx: Transaction, key: str, pipeline: str | None) -> list[dict[str, Any]]:
    """The paid calls of an item, oldest first, as the ledger has them."""
    known = layout(tx).stages
    found = tx.records("item_calls", item=find_item(tx, key, pipeline)["id"])
    return [{**call, "stage": known[call["stage"]].name if call["stage"] in known else None} for call in found]


def resolve(tx: Transaction, key: str, pipeline: str | None, name: str, decision: Decision, who: Who) -> str:
    """Settle the call of a memo that is in doubt. Returns the stage. The item stays where it is; `retry` sends it on."""
    item = find_item(tx, key, pipeline)
    found = [memo for memo in _memos_of(tx, item) if memo["name"] == name]
    if not found:
        raise UsageError(f"item {key!r} has no memo {name!r}")
    if len(found) > 1:
        raise UsageError(f"item {key!r} has a memo {name!r} in several stages")
    memo = found[0]
    if memo["state"] != "intended":
        raise UsageError(
            f"item {key!r}: the memo {name!r} is not in doubt, its result is recorded; to have it made anew: holdfast forget"
        )
    stage = layout(tx).stages[memo["stage"]]
    if any(lease["stage"] == stage.id for lease in tx.records("item_lease", item=item["id"])):
        raise UsageError(f"item {key!r}: stage {stage.name!r} is in progress: the call {name!r} may be under way")
    hold_resources(tx, [stage.id])
    if memo["call"] is not None:
        ledger.settle(tx, [memo["call"]], lambda call: _settled(call, decision))
    elif decision.charged:
        # Begun by a worker that kept no ledger.
        ledger.enter(tx, [ledger.NewCall(stage.id, item["id"], name, Paid.DONE, 0, 1, decision.charged)])
    _settle_memo(tx, stage, item["id"], memo, decision)
    _leave_event(tx, stage, item["id"], name, decision, who)
    return stage.name


def resolve_many(
    store: Store, which: Which, name: str | None, decision: Decision, who: Who, *, dry_run: bool = False
) -> Counts:  # fmt: skip
    """Settle every call in doubt that a filter means, in stretches; return how many at which stage. Calls under way are not in
    doubt."""
    count: Counter[str] = Counter()
    place: tuple[int, int] | None = (0, 0)

    def step(tx: Transaction) -> tuple[Counter[str], tuple[int, int] | None]:
        assert place is not None
        rows = tx.run(
            "doubtful_calls", stages=stages_of(tx, which), stage=place[0], item=place[1], keys=patterns_of(tx, which),
            name=name, before=None if which.older_than_us is None else tx.now - which.older_than_us, most=CHUNK,
        )  # fmt: skip
        last = (rows[-1][1], rows[-1][2]) if len(rows) == CHUNK else None
        if last is not None:
            # The doubts of one item belong together: those of the last one may not all be here.
            rows = [row for row in rows if (row[1], row[2]) != last] or rows
            last = (rows[-1][1], rows[-1][2])
        known = layout(tx).stages
        if not dry_run:
            _settle_calls(tx, {row[0]: row[4] is None for row in rows}, decision, who)
        return Counter(known[row[1]].label for row in rows), last

    while place is not None:
        done, place = store.read(step) if dry_run else store.write(step)
        count += done
    return dict(count)


def _settle_calls(tx: Transaction, pruned: Mapping[int, bool], decision: Decision, who: Who) -> None:
    """Settle calls, of which it is known whether their item was pruned."""
    known = layout(tx).stages
    settled = ledger.settle(tx, list(pruned), lambda call: _settled(call, decision))
    for call in settled:
        stage = known[call.stage]
        for memo in tx.records("item_memos", item=call.item, stages=[call.stage]):
            if memo["call"] == call.id and memo["state"] == "intended":
                _settle_memo(tx, stage, call.item, memo, decision)
        _leave_event(tx, stage, None if pruned[call.id] else call.item, call.name, decision, who)


def _settled(call: PaidCall, decision: Decision) -> PaidCall | None:
    if call.state not in (Paid.INTENDED, Paid.DOUBTFUL):
        return None
    if decision.value is not None:
        return ledger.charged(call, call.amount if decision.charged is None else decision.charged)
    if decision.charged:
        return ledger.charged(call, decision.charged)._replace(reason="a person said that it was charged")
    return ledger.free(call, "a person said that it was not charged")


def _settle_memo(tx: Transaction, stage: StageRow, item: int, memo: dict[str, Any], decision: Decision) -> None:
    """With an answer it is as if the call had returned; without one, the next attempt calls again."""
    row = (stage.id, item, memo["name"])
    tx.run("forget_memo", stage=stage.id, item=item, name=memo["name"])
    made = (memo["version"], memo["idempotency_key"], 0, None)
    if decision.value is not None:
        kept = (decision.charged, decision.value, tx.now, memo["call"], memo["rejections"])
        tx.run_rows("save_memos", [(*row, "done", *made, *kept)])
    elif memo["rejections"]:
        tx.run_rows("save_memos", [(*row, "rejected", *made, memo["cost"], None, tx.now, memo["call"], memo["rejections"])])


def _leave_event(tx: Transaction, stage: StageRow, item: int | None, name: str, decision: Decision, who: Who) -> None:
    tx.record(
        "resolved", pipeline=stage.pipeline, item=item, stage=stage.id,
        memo=name, decided=decision.words, by=who.name, reason=who.reason,
    )  # fmt: skip


def _memos_of(tx: Transaction, item: dict[str, Any]) -> list[dict[str, Any]]:
    """Also of stages that the pipeline no longer has."""
    stages = [row.id for row in layout(tx).stages.values() if row.pipeline == item["pipeline_id"]]
    return tx.records("item_memos", item=item["id"], stages=stages)
