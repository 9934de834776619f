"""The ledger: every paid call is a row, and the money spent is the sum of the rows.

A call is `intended` before it is made. Afterwards it is `done`; or `rejected`, which means paid with an unusable answer; or
not charged; or in doubt: it may have been charged, and counts as spent until it is resolved. A call for several items has a
row for each, with its share of the price. Two sums are written together with the rows: per day for questions, and per resource
for budgets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.engine.layout import layout
from holdfast.engine.resource_state import lock_resources
from holdfast.model import codec
from holdfast.model.budget_day import day_of
from holdfast.model.layout import Layout
from holdfast.model.paid_call import IMPORTED, NO_FACTS, TOKENS, CallFacts, Paid, PaidCall
from holdfast.model.plausible import bounded
from holdfast.store import Transaction

#: Old payments entered per transaction.
CHUNK = 500

#: Where a call belongs: stage, item and name.
MemoPlace = tuple[int, int, str]


class NewCall(NamedTuple):
    """A call to enter. The resource is the one it names, if any; rows with the same name and `lead` are one call."""

    stage: int
    item: int
    name: str
    state: Paid
    lease: int
    life: int
    amount: int
    resource: str | None = None
    facts: CallFacts = NO_FACTS
    lead: int | None = None


def enter(tx: Transaction, new: Sequence[NewCall]) -> dict[MemoPlace, int]:
    """Write calls into the ledger; return their numbers by place. The caller has locked the resources."""
    known = layout(tx)
    calls = []
    for one in new:
        call = _paid_call(known, one, tx.now)
        if one.resource is not None and call.resource != one.resource:
            row = known.stages[one.stage]
            tx.record(
                "unknown_resource",
                pipeline=row.pipeline,
                item=one.item,
                stage=row.id,
                resource=one.resource,
                counted_for=call.resource or f"stage {row.name}",
            )
        calls.append(call)
    rows = tx.run_rows("add_calls", [call[1:17] for call in calls])
    numbers = {(stage, item, name): id_ for id_, stage, item, name in rows}
    first: dict[tuple[int, str], int] = {}
    for place, one in enumerate(new):
        if one.lead is not None:
            number = numbers[one.stage, one.item, one.name]
            calls[place] = calls[place]._replace(id=number, share_of=first.setdefault((one.lead, one.name), number))
    tx.run_rows("share_calls", [(call.id, call.share_of) for call in calls if call.share_of is not None])
    _count(tx, (), calls)
    return numbers


def entered_elsewhere(tx: Transaction, new: Sequence[NewCall]) -> None:
    """Have calls counted for metrics that another process has entered, in a transaction of its own."""
    known = layout(tx)
    tx.paid.append(((), [_paid_call(known, one, tx.now) for one in new]))


def whole(tx: Transaction, calls: Sequence[int]) -> list[list[PaidCall]]:
    """The calls that these rows belong to, each with all of its shares, the first one first."""
    rows = [PaidCall(*row) for row in tx.run("read_calls", calls=list(calls))]
    found = [[row] for row in rows if row.share_of is None]
    for call in sorted({row.share_of for row in rows if row.share_of is not None}):
        found.append([PaidCall(*row) for row in tx.run("read_shares", call=call)])
    return found


def settle(tx: Transaction, calls: Sequence[int], decide: Callable[[PaidCall], PaidCall | None]) -> list[PaidCall]:
    """Change these calls as `decide` says, given their current rows: None leaves one unchanged. Returns the old rows of those
    that changed. Money is booked on the day of the call."""
    if not calls:
        return []
    old = [PaidCall(*row) for row in tx.run("read_calls", calls=list(calls))]
    return _change(tx, [(one, new) for one in old if (new := decide(one)) is not None])


def doubt(tx: Transaction, ended: Sequence[tuple[int, int, int]], reason: str) -> None:
    """Attempts under these leases (lease, item, stage) have ended: a call that was started and not recorded may have been
    charged. Without an estimate, it counts with the money reserved for the attempt, so that a budget is never
    under-counted."""
    if not ended:
        return
    known = layout(tx)
    stages = sorted({stage for _, _, stage in ended})
    limited = sorted({lease for lease, _, stage in ended if known.resources_of(stage)})
    aside: dict[int, int] = {}
    if limited:
        lock_resources(tx, stages)
        aside = dict(tx.run("reserved_for", leases=limited))
    items, under = sorted({item for _, item, _ in ended}), set(ended)
    _doubt_old_intents(tx, stages, items, under, aside, reason)
    found = [PaidCall(*row) for row in tx.run("intended_calls", items=items, stages=stages)]
    pairs = [
        (one, one._replace(state=str(Paid.DOUBTFUL), amount=one.amount or aside.get(one.lease, 0), reason=reason))
        for one in found
        if (one.lease, one.item, one.stage) in under
    ]
    _change(tx, pairs)
    record_doubts(tx, [one for _, one in pairs], reason)
    if limited:
        tx.run("drop_reservations", leases=limited)


class _Doubt(Protocol):
    """Something that may have been charged: a call, new or old."""

    @property
    def stage(self) -> int: ...
    @property
    def item(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def amount(self) -> int: ...


def record_doubts(tx: Transaction, calls: Iterable[_Doubt], reason: str) -> None:
    known = layout(tx)
    for one in calls:
        tx.record(
            "money_in_doubt",
            pipeline=known.stages[one.stage].pipeline,
            item=one.item,
            stage=one.stage,
            memo=one.name,
            counted=one.amount,
            reason=reason,
        )


def _doubt_old_intents(
    tx: Transaction,
    stages: Sequence[int],
    items: Sequence[int],
    under: Collection[tuple[int, int, int]],
    aside: Mapping[int, int],
    reason: str,
) -> None:
    """Enter calls that workers of the version before have begun, of which only their memos tell."""
    calls = [
        NewCall(stage, item, name, Paid.DOUBTFUL, lease, 1, aside.get(lease, 0) if estimate is None else estimate)
        for stage, item, name, lease, estimate in tx.run("old_intents", stages=stages, items=items)
        if (lease, item, stage) in under
    ]
    if calls:
        numbers = enter(tx, calls)
        tx.run_rows("point_memos", [(*place, number) for place, number in numbers.items()])
        record_doubts(tx, calls, reason)


def calls_of(tx: Transaction, item: int) -> list[dict[str, Any]]:
    """The calls of an item, oldest first."""
    return sorted(tx.records("item_calls", item=item), key=lambda call: call["id"])


def charged(call: PaidCall, amount: int, facts: CallFacts = NO_FACTS) -> PaidCall:
    """The call was made and cost this."""
    return call._replace(
        state=str(Paid.DONE), amount=amount, reason=None, **({} if facts == NO_FACTS else _columns(facts))
    )


def free(call: PaidCall, reason: str | None = None) -> PaidCall:
    """The call is known not to have been charged."""
    return call._replace(state=str(Paid.NOT_CHARGED), amount=0, reason=reason)


def take_up_old_payments(tx: Transaction, most: int = CHUNK) -> int:
    """Enter payments of workers of the version before, which only leave events. Budgets have counted them already."""
    known = layout(tx)
    rows = tx.run("old_payments", most=most)
    calls = []
    for _, at, stage, item, amount, name, data in rows:
        facts = codec.stored(data, {})
        row = known.stages.get(stage or 0)
        resource = name if row is None and name else "" if row is None else known.resource_of_call(row, name)
        calls.append(
            PaidCall(
                0,
                stage or 0,
                item or 0,
                str(facts.pop("memo", "")),
                str(Paid.DONE),
                0,
                1,
                amount or 0,
                resource,
                "",
                *NO_FACTS.tokens,
                msgspec.json.encode(facts).decode(),
                day_of(at, _zone(known, resource)),
                at,
            )
        )
    tx.run_rows("add_calls", [call[1:17] for call in calls])
    _count(tx, (), calls, budgets=False)
    if rows:
        tx.run("forget_events", events=[row[0] for row in rows])
    return len(rows)


class OldPayment(NamedTuple):
    """A payment of an earlier program. Its name says where it was recorded; 0 for no stage, or no item."""

    name: str
    stage: int
    item: int
    amount: int
    at: int
    model: str


def imported_among(tx: Transaction, payments: Sequence[OldPayment]) -> set[tuple[int, str]]:
    """The payments that are already in the ledger, by time and name."""
    rows = tx.run("imported_calls", times=sorted({one.at for one in payments}), resource=IMPORTED)
    return {(at, name) for at, name in rows}


def enter_imported(tx: Transaction, payments: Sequence[OldPayment]) -> list[OldPayment]:
    """Enter payments that are not in the ledger yet, on the days they were made, and return them. No budget counts them: they
    were made before it existed. The transaction must be exclusive, unless the items are new."""
    there = imported_among(tx, payments)
    new = [one for one in payments if (one.at, one.name) not in there]
    calls = [
        PaidCall(
            0,
            one.stage,
            one.item,
            one.name,
            str(Paid.DONE),
            -1,
            1,
            one.amount,
            IMPORTED,
            one.model,
            *NO_FACTS.tokens,
            NO_FACTS.text,
            day_of(one.at),
            one.at,
        )
        for one in new
    ]
    tx.run_rows("add_calls", [call[1:17] for call in calls])
    by_stage: Counter[tuple[int, int]] = Counter()
    for one in new:
        by_stage[one.item, one.stage] += one.amount
    tx.run_rows("add_to_costs", [(*place, amount) for place, amount in sorted(by_stage.items()) if all(place)])
    _count(tx, (), calls, budgets=False)
    return new


def fold_money(tx: Transaction, most: int) -> int:
    """Add up the sums of writers that are gone. The transaction's slot must be 0."""
    rows = tx.run("take_money_of_the_gone", most=most)
    summed: dict[tuple[Any, ...], list[int]] = {}
    for stage, resource, model, day, *sums in rows:
        add(summed, (0, stage, resource, model, day), sums)
    tx.run_rows("add_money", [(*key, *map(bounded, sums)) for key, sums in sorted(summed.items())])
    return len(rows)


def budgets_of(known: Layout, stage: int, resource: str, day: int, at: int) -> list[tuple[int, int]]:
    """The budgets that a call counts for, each with the day there: that of its resource, on the recorded day even if the time
    zone has changed; and those of its pipeline and stage."""
    own = [(one.id, day_of(at, one.spec.zone)) for one in known.limits_of_its_own(stage)]
    named = known.resource(resource) if resource else None
    return own if named is None else [*own, (named.id, day)]


def add(sums: dict[Any, list[int]], key: Any, more: Sequence[int]) -> None:
    """Add to sums that are kept by a key."""
    entry = sums.setdefault(key, [0] * len(more))
    for place, n in enumerate(more):
        entry[place] += n


# The parts ------------------------------------------------------------------------------------------------------------


def _change(tx: Transaction, pairs: Sequence[tuple[PaidCall, PaidCall]]) -> list[PaidCall]:
    rows = [
        (new.id, new.state, new.amount, new.model, *new.tokens, new.facts, new.reason, new.value) for _, new in pairs
    ]
    tx.run_rows("change_calls", rows)
    _count(tx, [old for old, _ in pairs], [new for _, new in pairs])
    return [old for old, _ in pairs]


def _count(tx: Transaction, gone: Sequence[PaidCall], come: Sequence[PaidCall], *, budgets: bool = True) -> None:
    """Update both sums with calls that have changed."""
    known = layout(tx)
    by_day: dict[tuple[Any, ...], list[int]] = {}
    spent: dict[tuple[int, int], list[int]] = {}
    lower: Counter[tuple[int, int]] = Counter()
    for sign, calls in ((-1, gone), (1, come)):
        for call in calls:
            key = (tx.slot, call.stage, call.resource, call.model, call.day)
            add(by_day, key, [sign * n for n in call.sums()])
            if budgets and (call.charged or call.in_doubt):
                for number, day in budgets_of(known, call.stage, call.resource, call.day, call.at):
                    add(spent, (number, day), [sign * call.charged, sign * call.in_doubt])
                    lower[call.lease, number] += sign * (call.charged + call.in_doubt)
    if budgets:
        tx.paid.append((gone, come))
    tx.run_rows("add_money", [(*key, *sums) for key, sums in sorted(by_day.items()) if any(sums)])
    tx.run_rows("add_spent", [(*key, *sums) for key, sums in sorted(spent.items()) if any(sums)])
    tx.run_rows(
        "lower_reservations", [(lease, number, n) for (lease, number), n in sorted(lower.items()) if lease and n > 0]
    )


def _paid_call(known: Layout, one: NewCall, now: int) -> PaidCall:
    """The row of a new call, without its number."""
    resource, facts = known.resource_of_call(known.stages[one.stage], one.resource), one.facts
    return PaidCall(
        0,
        one.stage,
        one.item,
        one.name,
        str(one.state),
        one.lease,
        one.life,
        one.amount,
        resource,
        facts.model,
        *facts.tokens,
        facts.text,
        day_of(now, _zone(known, resource)),
        now,
    )


def _zone(known: Layout, resource: str) -> str:
    row = known.resource(resource) if resource else None
    return "UTC" if row is None else row.spec.zone


def _columns(facts: CallFacts) -> Mapping[str, Any]:
    return {"model": facts.model, **dict(zip(TOKENS, facts.tokens, strict=True)), "facts": facts.text}
