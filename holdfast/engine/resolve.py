"""Resolve: a person says whether paid calls in doubt were charged: one call, with its answer if known, or many by filter.

A call for several items is a single doubt: the amount given for one item holds for all of them. An answer is for one item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from holdfast.engine import ledger
from holdfast.engine.layout import layout, record
from holdfast.engine.resource_state import lock_resources
from holdfast.engine.retry_and_cancel import let_run
from holdfast.engine.selection import ActionPlace, Chosen, Meant, Who, beginning, next_part, patterns_of
from holdfast.engine.show_item import find_item
from holdfast.errors import UsageError
from holdfast.model.item_filter import Which
from holdfast.model.layout import StageRow
from holdfast.model.money import shares as in_shares
from holdfast.model.paid_call import Paid, PaidCall
from holdfast.model.states import State
from holdfast.store import Transaction


class Decision(NamedTuple):
    """The decision about a call: its answer (JSON text), if known, and the amount charged. Without an amount, a call with an
    answer counts with its estimate."""

    value: str | None = None
    charged: int | None = None

    @property
    def words(self) -> str:
        if self.value is not None:
            return "given a result"
        return "charged" if self.charged else "not charged"


def memos(tx: Transaction, key: str, pipeline: str | None) -> list[dict[str, Any]]:
    """The memos of an item: sub-steps of its unfinished stages, including those in doubt."""
    known = layout(tx).stages
    return [{**memo, "stage": known[memo["stage"]].name} for memo in _memos_of(tx, find_item(tx, key, pipeline))]


def calls(tx: Transaction, key: str, pipeline: str | None) -> list[dict[str, Any]]:
    """The paid calls of an item, oldest first, as the ledger has them."""
    known = layout(tx).stages
    found = ledger.calls_of(tx, find_item(tx, key, pipeline)["id"])
    return [{**call, "stage": known[call["stage"]].name if call["stage"] in known else None} for call in found]


def resolve(tx: Transaction, key: str, pipeline: str | None, name: str, decision: Decision, who: Who) -> str:
    """Settle the call of a memo in doubt. Returns the stage. Items on hold for it continue; others stay where they are until
    `retry`."""
    item = find_item(tx, key, pipeline)
    found = [memo for memo in _memos_of(tx, item) if memo["name"] == name]
    if not found:
        raise UsageError(f"item {key!r} has no memo {name!r}")
    if len(found) > 1:
        raise UsageError(f"item {key!r} has a memo {name!r} in several stages")
    memo = found[0]
    if memo["state"] != "intended":
        raise UsageError(
            f"item {key!r}: the memo {name!r} is not in doubt, its result is recorded; to call again: holdfast forget"
        )
    stage = layout(tx).stages[memo["stage"]]
    at_work = any(lease["stage"] == stage.id for lease in tx.records("item_lease", item=item["id"]))
    if at_work or tx.run("shares_under_way", call=memo["call"]):
        raise UsageError(f"item {key!r}: stage {stage.name!r} is in progress: the call {name!r} may be under way")
    lock_resources(tx, [stage.id])
    if memo["call"] is not None:
        _settle(tx, [memo["call"]], decision, who, only=None if decision.value is None else item["id"])
        return stage.name
    # Started by a worker without a ledger.
    if decision.charged:
        ledger.enter(tx, [ledger.NewCall(stage.id, item["id"], name, Paid.DONE, 0, 1, decision.charged)])
    _settle_memo(tx, stage, item["id"], memo, decision, decision.charged)
    _leave_event(tx, stage, item["id"], name, decision, who)
    _let_go_on(tx, [(stage.id, item["id"])], who)
    return stage.name


#: A row of the ledger, its stage and item, and the first row of the call if it is for several items.
_Doubt = tuple[int, int, int, int | None]


@dataclass(frozen=True, slots=True)
class Resolve:
    """Set the amount charged for every selected call in doubt; counted by stage. Calls in progress are not in doubt."""

    name: ClassVar[str] = "resolve"
    event: ClassVar[str] = "resolved"
    which: Which
    charged: int
    memo: str | None = None

    def begin(self, tx: Transaction) -> ActionPlace:
        return beginning(tx, self.which)

    def choose(self, tx: Transaction, place: ActionPlace) -> tuple[list[_Doubt], ActionPlace | None]:
        part = next_part(tx, "end_of_doubts", self.which, place)
        if part is None:
            return [], None
        rows: list[Any] = tx.run(
            "doubtful_calls",
            stage=part.stage,
            item=part.after,
            last=part.last,
            keys=patterns_of(tx, self.which),
            name=self.memo,
            before=place.before,
        )
        return [row for row in rows if row[0] <= place.until_call], part.behind

    def count(self, tx: Transaction, rows: list[_Doubt]) -> Counter[str]:
        """A call for several items counts once, within these rows."""
        known = layout(tx).stages
        calls = {share_of or id_: known[stage].label for id_, stage, _, share_of in rows}
        return Counter(calls.values())

    def meant(self, rows: list[_Doubt]) -> list[Meant]:
        return [Meant(item, stage) for _, stage, item, _ in rows]

    def act(self, tx: Transaction, rows: list[_Doubt], who: Who) -> Counter[str]:
        _settle(tx, [row[0] for row in rows], Decision(charged=self.charged), who)
        return self.count(tx, rows)


def _settle(tx: Transaction, rows: Sequence[int], decision: Decision, who: Who, *, only: int | None = None) -> None:
    """Settle the calls that these rows belong to, each with all of its shares, and their memos, or that of `only` one item."""
    known = layout(tx).stages
    calls = ledger.whole(tx, rows)
    amounts = {share.id: amount for shares in calls for share, amount in _amounts(shares, decision)}
    ledger.settle(tx, sorted(amounts), lambda call: _settled(call, decision, amounts[call.id]))
    meant = [share for shares in calls for share in shares if only in (None, share.item)]
    items = tx.records("read_items", items=sorted({share.item for share in meant}))
    there = {item["id"] for item in items if item["key"] is not None}
    settled = []
    for share in meant:
        stage = known[share.stage]
        memos = tx.records("item_memos", item=share.item, stages=[share.stage])
        waiting = [memo for memo in memos if memo["call"] == share.id and memo["state"] == "intended"]
        for memo in waiting:
            _settle_memo(tx, stage, share.item, memo, decision, amounts.get(share.id, share.amount))
            settled.append((share.stage, share.item))
        if waiting or share.id in amounts:
            _leave_event(tx, stage, share.item if share.item in there else None, share.name, decision, who)
    _let_go_on(tx, settled, who)


def _let_go_on(tx: Transaction, places: Sequence[tuple[int, int]], who: Who) -> None:
    """Release what is on hold for these calls, by stage and item. If another call is in doubt, the next attempt finds it."""
    held = [Chosen(item, stage, str(State.ON_HOLD)) for stage, item in places]
    let_run(tx, held, State.ON_HOLD, "take_held_in_doubt", who)


def _amounts(shares: Sequence[PaidCall], decision: Decision) -> list[tuple[PaidCall, int]]:
    """The rest of the charged amount, shared among unsettled rows; their estimates if no amount was given."""
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
) -> None:
    """With an answer, as if the call had returned; without one, the next attempt calls again."""
    row = (stage.id, item, memo["name"])
    tx.run("forget_memo", stage=stage.id, item=item, name=memo["name"])
    made = (memo["version"], memo["idempotency_key"], 0, None)
    if decision.value is not None:
        tx.run_rows(
            "save_memos", [(*row, "done", *made, charged, decision.value, tx.now, memo["call"], memo["rejections"])]
        )
    elif memo["rejections"]:
        tx.run_rows(
            "save_memos", [(*row, "rejected", *made, memo["cost"], None, tx.now, memo["call"], memo["rejections"])]
        )


def _leave_event(tx: Transaction, stage: StageRow, item: int | None, name: str, decision: Decision, who: Who) -> None:
    record(tx, "resolved", item, stage.id, memo=name, decided=decision.words, **who.facts)


def _memos_of(tx: Transaction, item: dict[str, Any]) -> list[dict[str, Any]]:
    """Including those of stages that the pipeline no longer has."""
    stages = [row.id for row in layout(tx).stages.values() if row.pipeline == item["pipeline_id"]]
    return tx.records("item_memos", item=item["id"], stages=stages)
