"""Complete: turn leases into outcomes and let the next stages begin, all in one transaction.

Where one stage follows another and neither has changed since, the lease itself moves on. Where stages meet in one, or a
stage was there before its predecessor, the item is locked while deciding, so that the next stage is born once, never
not at all. A stage that ran again wakes what follows only if its output is another one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby

from holdfast.engine.claim import Lease
from holdfast.engine.finish import Finished, end_leases, move_leases, save_outcomes
from holdfast.engine.register import layout
from holdfast.model.states import PASSED, State
from holdfast.store import Transaction


def complete(tx: Transaction, finished: Sequence[Finished], onward: Collection[int] = ()) -> list[Lease]:
    """Record attempts that ended for good: done, skipped or failed.

    `onward` are the stages this worker would go on with; the leases that moved on to one of them are returned.
    Attempts whose lease was lost change nothing and leave an event.
    """
    moved: list[Lease] = []
    for stage, same in groupby(sorted(finished, key=_stage_and_lease), key=lambda one: one.lease.stage):
        moved += _complete_stage(tx, stage, list(same), onward)
    return moved


def _complete_stage(tx: Transaction, stage: int, finished: list[Finished], onward: Collection[int]) -> list[Lease]:
    following = layout(tx).successors(stage)
    straight = next((after for after in following.simple if after in onward), None)
    going = [one for one in finished if one.state in PASSED and not one.lease.rerun] if straight is not None else []
    ending = [one for one in finished if one.state not in PASSED or one.lease.rerun] if going else finished

    gone = move_leases(tx, stage, straight, going) if going and straight is not None else []
    ended = end_leases(tx, stage, ending) if ending else []
    stood = gone + ended
    if not stood:
        return []
    again = [one for one in stood if one.lease.rerun and one.state in PASSED]
    changed = _changed(tx, stage, again) if again else set()
    save_outcomes(tx, stage, stood)
    for one in stood:
        if one.state is State.FAILED:
            pipeline = layout(tx).stages[stage].pipeline
            facts = {"attempt": one.lease.attempt, "error": one.error, "traceback": one.traceback}
            tx.record("failed", pipeline=pipeline, item=one.lease.item, stage=stage, **facts)

    passed = [one.lease.item for one in stood if one.state in PASSED and not one.lease.rerun]
    moved_items = {one.lease.item for one in gone}
    for after in following.simple:
        _enter(tx, after, [item for item in passed if after != straight or item not in moved_items])
    for after in following.checked:
        let_meet(tx, after, passed)
    for after in (*following.simple, *following.checked):
        _run_again(tx, after, [one.lease.item for one in again], changed)
    return [_moved_on(tx, one, straight) for one in gone if straight is not None]


def let_meet(tx: Transaction, stage: int, items: Sequence[int]) -> int:
    """Begin a stage for those of the items in which all before it have passed; return how many."""
    if not items:
        return 0
    before = layout(tx).parents(stage)
    tx.run("lock_items", items=list(items))
    born = tx.run("let_meet", stage=stage, items=list(items), before=list(before), needed=len(before))
    if born:
        tx.count(stage, State.PENDING, len(born))
        tx.tell_idle_workers()
    return len(born)


def _enter(tx: Transaction, stage: int, items: Sequence[int]) -> None:
    if items:
        tx.run_rows("enter_waiting", [(item, stage, 0, 0, 0) for item in items])
        tx.count(stage, State.PENDING, len(items))
        tx.tell_idle_workers()


def _changed(tx: Transaction, stage: int, again: Sequence[Finished]) -> set[int]:
    """The items whose stage, run again, came to another output than the outcome it replaces."""
    old = {
        item: output
        for item, state, output in tx.run("read_outcome_states", stage=stage, items=[one.lease.item for one in again])
        if state in PASSED
    }
    return {one.lease.item for one in again if old.get(one.lease.item, "none") != one.output_hash}


def _run_again(tx: Transaction, stage: int, items: list[int], changed: set[int]) -> None:
    """What follows a stage that ran again: begins if it never did, runs again if its input is another one."""
    if not items:
        return
    let_meet(tx, stage, items)
    stale = [item for item in items if item in changed]
    if not stale:
        return
    revoked = tx.run("revoke_leases", stage=stage, items=stale)
    rows = [(item, stage, attempt - 1, alone, rerun) for item, attempt, alone, rerun in revoked]
    tx.run_rows("enter_waiting", rows)
    tx.count(stage, State.IN_PROGRESS, -len(revoked))
    tx.count(stage, State.PENDING, len(revoked))
    pipeline = layout(tx).stages[stage].pipeline
    for item, *_ in revoked:
        tx.record("superseded", pipeline=pipeline, item=item, stage=stage)
    # What a person has set aside stays aside.
    finished = {
        item: State(state)
        for item, state, _ in tx.run("read_outcome_states", stage=stage, items=stale)
        if state != State.CANCELLED
    }
    for item, _ in tx.run_rows("reopen", [(item, stage) for item in finished]):
        tx.count(stage, finished[item], -1)
        tx.count(stage, State.PENDING, 1)
        tx.record("reopened", pipeline=pipeline, item=item, stage=stage, was=str(finished[item]))
    tx.tell_idle_workers()


def _moved_on(tx: Transaction, one: Finished, stage: int) -> Lease:
    old = one.lease
    results = dict(old.results)
    if one.result is not None:
        results[old.stage] = one.result
    return Lease(old.id, old.item, stage, 1, 0, 0, old.key, old.data, tx.now, results)


def _stage_and_lease(one: Finished) -> tuple[int, int]:
    return one.lease.stage, one.lease.id
