"""Forget: a person rejects recorded answers of paid calls, so that the next attempt calls again; or reverts that.

A rejected answer still counts as paid, and stays readable in the ledger until its item is pruned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.engine import ledger
from holdfast.engine.layout import layout
from holdfast.engine.selection import ActionPlace, Meant, Who, beginning, next_part, patterns_of
from holdfast.model.item_filter import Which
from holdfast.model.paid_call import Paid, PaidCall
from holdfast.store import Transaction

MemoRow = dict[str, Any]


class Rejecting:
    """Rejects recorded answers; counted by stage."""

    __slots__ = ()
    name: ClassVar[str] = "forget"
    event: ClassVar[str] = "answer_rejected"

    def count(self, tx: Transaction, rows: list[MemoRow]) -> Counter[str]:
        return by_stage(tx, rows)

    def meant(self, rows: list[MemoRow]) -> list[Meant]:
        return meant(rows)

    def act(self, tx: Transaction, rows: list[MemoRow], who: Who) -> Counter[str]:
        return by_stage(tx, [memo for memo in rows if reject(tx, memo, who)])


class Restoring:
    """Reverts rejections; counted by stage."""

    __slots__ = ()
    name: ClassVar[str] = "restore"
    event: ClassVar[str] = "answer_restored"

    def count(self, tx: Transaction, rows: list[MemoRow]) -> Counter[str]:
        return by_stage(tx, rows)

    def meant(self, rows: list[MemoRow]) -> list[Meant]:
        return meant(rows)

    def act(self, tx: Transaction, rows: list[MemoRow], who: Who) -> Counter[str]:
        return by_stage(tx, [memo for memo in rows if restore(tx, memo, who)])


@dataclass(frozen=True, slots=True)
class Forget(Rejecting):
    """Reject the selected answers; counted by stage. Work in progress is left alone: its handler may be using the answer."""

    which: Which
    memo: str | None = None

    def begin(self, tx: Transaction) -> ActionPlace:
        return beginning(tx, self.which)

    def choose(self, tx: Transaction, place: ActionPlace) -> tuple[list[MemoRow], ActionPlace | None]:
        return _choose(tx, self.which, self.memo, "done", place)


@dataclass(frozen=True, slots=True)
class Restore(Restoring):
    """Revert the newest of the selected rejections; counted by stage."""

    which: Which
    memo: str | None = None

    def begin(self, tx: Transaction) -> ActionPlace:
        return beginning(tx, self.which)

    def choose(self, tx: Transaction, place: ActionPlace) -> tuple[list[MemoRow], ActionPlace | None]:
        return _choose(tx, self.which, self.memo, "rejected", place)


def _choose(
    tx: Transaction, which: Which, name: str | None, state: str, place: ActionPlace
) -> tuple[list[MemoRow], ActionPlace | None]:
    part = next_part(tx, "end_of_memos", which, place)
    if part is None:
        return [], None
    memos = tx.records(
        "choose_memos",
        state=state,
        stage=part.stage,
        item=part.after,
        last=part.last,
        keys=patterns_of(tx, which),
        name=name,
        error=which.error,
        group=which.group,
        before=place.before,
    )
    return [one for one in memos if (one["call"] or 0) <= place.until_call], part.behind


def meant(memos: list[MemoRow]) -> list[Meant]:
    return [Meant(memo["item"], memo["stage"], memo=memo["name"], cost=memo["cost"]) for memo in memos]


def by_stage(tx: Transaction, memos: list[MemoRow]) -> Counter[str]:
    known = layout(tx).stages
    return Counter(known[memo["stage"]].label for memo in memos)


def reject(tx: Transaction, memo: MemoRow, who: Who) -> bool:
    """Reject a recorded answer: the next attempt calls again."""
    reason = who.reason or "a person has rejected it"
    _settle(tx, memo, lambda call: call._replace(state=str(Paid.REJECTED), reason=reason, value=memo["value"]))
    _save(tx, memo, "rejected", None, memo["rejections"] + 1)
    _record(tx, "answer_rejected", memo, who)
    return True


def restore(tx: Transaction, memo: MemoRow, who: Who) -> bool:
    """Restore an answer, if it still exists: an unpaid call has no row in the ledger that could have kept it."""
    found = _settle(tx, memo, lambda call: call._replace(state=str(Paid.DONE)) if call.value is not None else None)
    if not found:
        return False
    _save(tx, memo, "done", found[0].value, memo["rejections"] - 1)
    _record(tx, "answer_restored", memo, who)
    return True


def _settle(tx: Transaction, memo: MemoRow, decide: Callable[[PaidCall], PaidCall | None]) -> list[PaidCall]:
    return [] if memo["call"] is None else ledger.settle(tx, [memo["call"]], decide)


def _save(tx: Transaction, memo: MemoRow, state: str, value: str | None, rejections: int) -> None:
    place = (memo["stage"], memo["item"], memo["name"])
    made = (memo["version"], memo["idempotency_key"], 0, None)
    tx.run_rows("save_memos", [(*place, state, *made, memo["cost"], value, tx.now, memo["call"], rejections)])


def _record(tx: Transaction, event: str, memo: MemoRow, who: Who) -> None:
    pipeline = layout(tx).stages[memo["stage"]].pipeline
    tx.record(event, pipeline=pipeline, item=memo["item"], stage=memo["stage"], memo=memo["name"], **who.facts)
