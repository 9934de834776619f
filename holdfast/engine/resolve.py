"""Resolve: a person says what became of paid calls that are in doubt: of one, with its answer, or of many by filter.

A call for several items is one doubt: what is said of its money for one item holds for all of them. An answer is that of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.engine import ledger
from holdfast.engine.choose import CHUNK, Counts, Which, Who, patterns_of, stages_of
from holdfast.engine.gates import hold_resources
from holdfast.engine.reads import find_item
from holdfast.engine.register import layout
from holdfast.errors import UsageError
from holdfast.model.layout import StageRow
from holdfast.model.money import shares as in_shares
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
    """Settle the call of a memo that is in doubt. Returns the stage. Items stay where they are; `retry` sends them on."""
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
    at_work = any(lease["stage"] == stage.id for lease in tx.records("item_lease", item=item["id"]))
    if at_work or tx.run("shares_under_way", call=memo["call"]):
        raise UsageError(f"item {key!r}: stage {stage.name!r} is in progress: the call {name!r} may be under way")
    hold_resources(tx, [stage.id])
    if memo["call"] is not None:
        _settle(tx, [memo["call"]], decision, who, only=None if decision.value is None else item["id"])
        return stage.name
    # Begun by a worker that kept no ledger.
    if decision.charged:
        ledger.enter(tx, [ledger.NewCall(stage.id, item["id"], name, Paid.DONE, 0, 1, decision.charged)])
    _settle_memo(tx, stage, item["id"], memo, decision, decision.charged)
    _leave_event(tx, stage, item["id"], name, decision, who)
    return stage.name


def resolve_many(
    store: Store, which: Which, name: str | None, decision: Decision, who: Who, *, dry_run: bool = False
) -> Counts:  # fmt: skip
    """Settle every call in doubt that a filter means, in stretches; return how many at which stage. Calls under way are not in
    doubt."""
    count: Counter[str] = Counter()
    place: tuple[int, int] | None = (0, 0)
    #: Calls for several items: the filter may mean each of them.
    shared: set[int] = set()

    def step(tx: Transaction) -> tuple[dict[int, str], set[int], tuple[int, int] | None]:
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
            _settle(tx, [id_ for id_, *_ in rows], decision, who)
        found = {share_of or id_: known[stage].label for id_, stage, _, share_of in rows}
        return found, {share_of for *_, share_of in rows if share_of is not None}, last

    while place is not None:
        done, more, place = store.read(step) if dry_run else store.write(step)
        count.update(label for call, label in done.items() if call not in shared)
        shared |= more
    return dict(count)


def _settle(tx: Transaction, rows: Sequence[int], decision: Decision, who: Who, *, only: int | None = None) -> None:
    """Settle the calls that these rows belong to, each with all of its shares, and the memos that wait for them, or that of
    `only` one item."""
    known = layout(tx).stages
    calls = ledger.whole(tx, rows)
    amounts = {share.id: amount for shares in calls for share, amount in _amounts(shares, decision)}
    ledger.settle(tx, sorted(amounts), lambda call: _settled(call, decision, amounts[call.id]))
    meant = [share for shares in calls for share in shares if only in (None, share.item)]
    items = tx.records("read_items", items=sorted({share.item for share in meant}))
    there = {item["id"] for item in items if item["key"] is not None}
    for share in meant:
        stage = known[share.stage]
        memos = tx.records("item_memos", item=share.item, stages=[share.stage])
        waiting = [memo for memo in memos if memo["call"] == share.id and memo["state"] == "intended"]
        for memo in waiting:
            _settle_memo(tx, stage, share.item, memo, decision, amounts.get(share.id, share.amount))
        if waiting or share.id in amounts:
            _leave_event(tx, stage, share.item if share.item in there else None, share.name, decision, who)


def _amounts(shares: Sequence[PaidCall], decision: Decision) -> list[tuple[PaidCall, int]]:
    """What is left of what was charged, for those that are not settled yet; what was expected, if nothing is said."""
    unsettled = [share for share in shares if share.state in (Paid.INTENDED, Paid.DOUBTFUL)]
    if decision.charged is None or not unsettled:
        return [(share, share.amount) for share in unsettled]
    rest = max(0, decision.charged - sum(share.charged for share in shares))
    return list(zip(unsettled, in_shares(rest, len(unsettled)), strict=True))


def _settled(call: PaidCall, decision: Decision, amount: int) -> PaidCall:
    if decision.value is not None:
        return ledger.charged(call, amount)
    if decision.charged:
        return ledger.charged(call, amount)._replace(reason="a person said that it was charged")
    return ledger.free(call, "a person said that it was not charged")


def _settle_memo(
    tx: Transaction, stage: StageRow, item: int, memo: dict[str, Any], decision: Decision, charged: int | None
) -> None:  # fmt: skip
    """With an answer it is as if the call had returned; without one, the next attempt calls again."""
    row = (stage.id, item, memo["name"])
    tx.run("forget_memo", stage=stage.id, item=item, name=memo["name"])
    made = (memo["version"], memo["idempotency_key"], 0, None)
    if decision.value is not None:
        tx.run_rows("save_memos", [(*row, "done", *made, charged, decision.value, tx.now, memo["call"], memo["rejections"])])
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
