"""Forget: a person rejects recorded answers of paid calls, so that the next attempt calls again; or takes that back.

An answer that was rejected stays paid for, and readable in the ledger, until its item is pruned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast.engine import ledger
from holdfast.engine.choose import CHUNK, Counts, Which, Who, patterns_of, stages_of
from holdfast.engine.register import layout
from holdfast.model.paid import Paid, PaidCall
from holdfast.store import Store, Transaction

_Memo = dict[str, Any]


def forget(
    store: Store, which: Which, name: str | None, who: Who, *, undo: bool = False, dry_run: bool = False
) -> Counts:  # fmt: skip
    """Reject the recorded answers that a filter means, or restore the newest ones that were rejected; return how many at which
    stage. What is in progress is left alone: its handler may be using the answer."""
    count: Counter[str] = Counter()
    place: tuple[int, int] | None = (0, 0)
    act = _restore if undo else _reject

    def step(tx: Transaction) -> tuple[Counter[str], tuple[int, int] | None]:
        assert place is not None
        memos = tx.records(
            "choose_memos", state="rejected" if undo else "done", stages=stages_of(tx, which), stage=place[0], item=place[1],
            keys=patterns_of(tx, which), name=name, error=which.error, most=CHUNK,
            before=None if which.older_than_us is None else tx.now - which.older_than_us,
        )  # fmt: skip
        last = (memos[-1]["stage"], memos[-1]["item"]) if len(memos) == CHUNK else None
        if last is not None and (whole := [one for one in memos if (one["stage"], one["item"]) != last]):
            memos, last = whole, (whole[-1]["stage"], whole[-1]["item"])
        known = layout(tx).stages
        done = [memo for memo in memos if dry_run or act(tx, memo, who)]
        return Counter(known[memo["stage"]].label for memo in done), last

    while place is not None:
        done, place = store.read(step) if dry_run else store.write(step)
        count += done
    return dict(count)


def _reject(tx: Transaction, memo: _Memo, who: Who) -> bool:
    reason = who.reason or "a person has forgotten it"
    _settle(tx, memo, lambda call: call._replace(state=str(Paid.REJECTED), reason=reason, value=memo["value"]))
    _save(tx, memo, "rejected", None, memo["rejections"] + 1)
    _record(tx, "answer_rejected", memo, who)
    return True


def _restore(tx: Transaction, memo: _Memo, who: Who) -> bool:
    """Only where the answer is still there: an unpaid call has no row in the ledger that could have kept it."""
    found = _settle(tx, memo, lambda call: call._replace(state=str(Paid.DONE)) if call.value is not None else None)
    if not found:
        return False
    _save(tx, memo, "done", found[0].value, memo["rejections"] - 1)
    _record(tx, "answer_restored", memo, who)
    return True


def _settle(tx: Transaction, memo: _Memo, decide: Callable[[PaidCall], PaidCall | None]) -> list[PaidCall]:
    return [] if memo["call"] is None else ledger.settle(tx, [memo["call"]], decide)


def _save(tx: Transaction, memo: _Memo, state: str, value: str | None, rejections: int) -> None:
    place = (memo["stage"], memo["item"], memo["name"])
    made = (memo["version"], memo["idempotency_key"], 0, None)
    tx.run_rows("save_memos", [(*place, state, *made, memo["cost"], value, tx.now, memo["call"], rejections)])


def _record(tx: Transaction, event: str, memo: _Memo, who: Who) -> None:
    pipeline = layout(tx).stages[memo["stage"]].pipeline
    facts = {"memo": memo["name"], "by": who.name, "reason": who.reason}
    tx.record(event, pipeline=pipeline, item=memo["item"], stage=memo["stage"], **facts)
