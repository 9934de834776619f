"""Memos: the recorded result of a named sub-step of a stage, so that it is called once however often the stage is attempted.

A memo is written under the lease of its attempt; if the lease was lost, nothing is written. A paid call first records its
intent, which is a row of the ledger that the memo points to. An intent without a result means that the process died around
the time of the call, or that the call failed without saying whether it was charged. A rejected answer leaves a memo that only
counts rejections. Memos are removed when their stage has passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.engine import ledger
from holdfast.engine.claim import Lease, Memo
from holdfast.engine.layout import record
from holdfast.engine.resource_feedback import AskedPause, heed, key_accepted
from holdfast.engine.resource_state import lock_resources
from holdfast.errors import LeaseLost
from holdfast.model import codec
from holdfast.model.paid_call import NO_FACTS, CallFacts, Paid, PaidCall
from holdfast.store import Transaction

#: The lowest number that a column can hold.
LOWEST = -(2**63)


@dataclass(slots=True)
class MemoWrite:
    """A memo to write or replace under a lease."""

    lease: Lease
    name: str
    #: `intended` before the call; after it `done`, `rejected`, or `free` if it is known not to have been charged.
    state: str
    version: str
    idempotency_key: str
    estimate: int | None = None
    cost: int | None = None
    value: str | None = None
    resource: str | None = None
    facts: CallFacts = NO_FACTS
    #: What was decided about the intent of an earlier attempt; and whether that call is known not to have been charged.
    doubt: str | None = None
    was_free: bool = False
    #: Why the answer was rejected, or why the call is known not to have been charged.
    reason: str | None = None
    #: The same number for all items of one call; amounts and tokens are then shares. None for a call for one item.
    lead: int | None = None
    #: What the headers of the answer asked for. It applies even if the lease was lost.
    pause: AskedPause | None = None
    #: Set when the lease was lost: nothing was written.
    lost: bool = False
    #: The memo as it is stored now, if there is one.
    kept: Memo | None = None

    def lease_lost(self) -> LeaseLost:
        return LeaseLost(
            f"item {self.lease.key!r}: the lease of attempt {self.lease.attempt} has ended; "
            f"{self.name!r} is not recorded, another worker has the item"
        )


def remember(tx: Transaction, memos: Sequence[MemoWrite]) -> None:
    """Write memos whose lease is still held, with their costs; mark the others as lost. A call for several items is settled as
    long as one of their leases is held: the others get no memo, but their costs are recorded."""
    tx.op, tx.rows = "memo", len(memos)
    # In a fixed order, so that two writers that pay for several resources never deadlock.
    lock_resources(tx, {memo.lease.stage for memo in memos}, [memo.resource for memo in memos])
    stood: dict[int, int] = dict(tx.run("hold_leases", leases=sorted({memo.lease.id for memo in memos})))
    standing = []
    for memo in memos:
        memo.lost = stood.get(memo.lease.id) != memo.lease.stage
        if not memo.lost:
            standing.append(memo)
    shared = {(memo.lead, memo.name) for memo in standing if memo.lead is not None}
    lost = [memo for memo in memos if memo.lost and memo.state != "intended" and (memo.lead, memo.name) in shared]
    _settle(tx, [*standing, *lost])
    numbers = ledger.enter(tx, [call for memo in standing if (call := _new_call(memo)) is not None])
    rows: dict[ledger.MemoPlace, tuple[object, ...]] = {}
    for memo in standing:
        place = _place(memo)
        memo.kept = _kept(memo, numbers.get(place))
        _record_odd(tx, memo)
        if memo.kept is None:
            tx.run("forget_memo", stage=place[0], item=place[1], name=place[2])
            continue
        kept = memo.kept
        rows[place] = (
            *place,
            kept.state,
            kept.version,
            kept.idempotency_key,
            memo.lease.id,
            kept.estimate,
            kept.cost,
            kept.value,
            tx.now,
            kept.call,
            kept.rejections,
        )
    tx.run_rows("save_memos", list(rows.values()))
    key_accepted(tx, {(memo.lease.stage, memo.resource) for memo in memos if _is_paid_answer(memo)})
    for memo in memos:
        if memo.pause is not None:
            heed(tx, memo.lease, memo.pause)


def _record_odd(tx: Transaction, memo: MemoWrite) -> None:
    """Record what is not routine about a memo."""
    lease, name = memo.lease, memo.name
    if memo.doubt is not None:
        key = memo.idempotency_key
        record(tx, "in_doubt", lease.item, lease.stage, memo=name, decided=memo.doubt, idempotency_key=key)
    if memo.state == "rejected" and memo.kept is not None:
        times = memo.kept.rejections
        record(tx, "answer_rejected", lease.item, lease.stage, memo=name, reason=memo.reason, rejections=times)


def idempotency_key(lease: Lease, name: str, version: str, rejections: int = 0) -> str:
    """The same for every attempt in one life of a stage. It differs after a rerun, a new version of the code, a rejected
    answer, or a new output of the stages before it: with the same key, a provider would repeat its earlier answer."""
    inputs = " ".join(output for _, output in sorted(lease.inputs.items()))
    again = f" {rejections}" if rejections else ""
    text = f"{lease.item} {lease.stage} {lease.life} {version} {inputs} {lease.key} {name}{again}"
    return codec.digest_of(text.encode())


def _place(memo: MemoWrite) -> ledger.MemoPlace:
    return memo.lease.stage, memo.lease.item, memo.name


def _had(memo: MemoWrite) -> Memo | None:
    return memo.lease.memos.get(memo.name)


def _is_paid_answer(memo: MemoWrite) -> bool:
    """Whether this is the answer of a paid call, good or bad; not a later rejection of a recorded answer."""
    had = _had(memo)
    was_intended = had is not None and had.state == "intended"
    return memo.state in ("done", "rejected") and (memo.cost is not None or was_intended)


def _settle(tx: Transaction, memos: Sequence[MemoWrite]) -> None:
    """Settle the calls that these memos have pointed to so far."""
    about = {had.call: memo for memo in memos if (had := _had(memo)) is not None and had.call is not None}

    def decide(call: PaidCall) -> PaidCall | None:
        memo = about[call.id]
        if memo.lost and memo.state in ("done", "rejected"):
            # The item, and with it the memo, may be gone.
            return ledger.charged(call, memo.cost or 0, memo.facts._replace(text="{}")) if call.state in _OPEN else None
        if memo.state == "done":
            return ledger.charged(call, memo.cost or 0, memo.facts) if call.state in _OPEN else None
        if memo.state == "rejected":
            paid = ledger.charged(call, memo.cost or 0, memo.facts) if call.state in _OPEN else call
            return paid._replace(state=str(Paid.REJECTED), reason=memo.reason, value=memo.value)
        if memo.state == "free" or memo.was_free:
            return ledger.free(call, memo.reason) if call.state in _OPEN else None
        return None

    ledger.settle(tx, sorted(about), decide)


_OPEN = (Paid.INTENDED, Paid.DOUBTFUL)


def _new_call(memo: MemoWrite) -> ledger.NewCall | None:
    """The row for the ledger: before a paid call, or after one that was not expected to cost anything."""
    had = _had(memo)
    if memo.state == "intended":
        state, amount = Paid.INTENDED, memo.estimate or 0
    elif memo.cost and (had is None or had.state != "intended" or had.call is None):
        state, amount = Paid.REJECTED if memo.state == "rejected" else Paid.DONE, memo.cost
    else:
        return None
    lease = memo.lease
    return ledger.NewCall(
        lease.stage, lease.item, memo.name, state, lease.id, lease.life, amount, memo.resource, memo.facts, memo.lead
    )


def _kept(memo: MemoWrite, entered: int | None) -> Memo | None:
    had = _had(memo)
    rejections = 0 if had is None else had.rejections
    # The cost of rejected answers stays part of the price of this one.
    earlier = had.cost or 0 if had is not None and had.rejections and had.state != "done" else 0
    cost = None if memo.cost is None and not earlier else (memo.cost or 0) + earlier
    call = entered if entered is not None else None if had is None else had.call
    made = (memo.version, memo.idempotency_key)
    if memo.state == "intended":
        return Memo("intended", *made, cost, None, call, rejections, memo.estimate)
    if memo.state == "done":
        return Memo("done", *made, cost, memo.value, call, rejections)
    if memo.state == "rejected":
        paid = had.cost if had is not None and had.state == "done" else cost
        return Memo("rejected", *made, paid, None, call, rejections + 1)
    return Memo("rejected", *made, cost, None, call, rejections) if rejections else None


def all_memos(tx: Transaction, statement: str, most: int) -> Iterator[list[tuple[int, str]]]:
    """The memos that a statement chooses, so many at a time, each with its item and its value. They are read in the order of
    the only index: memos have no numbers, and may be of stages and items that do not exist."""
    place = {"stage": LOWEST, "item": LOWEST, "name": ""}
    while rows := tx.run(statement, **place, most=most):
        yield [(item, value) for item, value, _, _ in rows]
        item, _, stage, name = rows[-1]
        place = {"stage": stage, "item": item, "name": name}
