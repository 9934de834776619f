"""Complete: turn leases into outcomes and begin the next stages, all in one transaction.

Where one stage follows another and neither has changed since, the lease itself moves on. Where a stage has several
predecessors, or existed before its predecessor, the item is locked while deciding, so that the next stage begins exactly
once. What follows a stage that ran again is decided in `early_cutoff`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from operator import attrgetter

from holdfast.engine import error_groups
from holdfast.engine.changed_items import enter
from holdfast.engine.claim import Lease
from holdfast.engine.early_cutoff import changed_outputs, go_on
from holdfast.engine.effects import run_effects
from holdfast.engine.fail import fail
from holdfast.engine.fan_in import begin_if_ready, begin_waiting_parents
from holdfast.engine.finish_leases import (
    FinishedAttempt,
    end_leases,
    move_leases,
    record_costs,
    record_user_events,
    save_outcomes,
)
from holdfast.engine.follow_ons import add_follow_ons
from holdfast.engine.layout import layout, record
from holdfast.engine.resource_feedback import settle
from holdfast.model.layout import Successors
from holdfast.model.states import PASSED, State
from holdfast.store import Transaction


def must_be_alone(finished: Sequence[FinishedAttempt]) -> bool:
    """Whether the transaction that completes these must be exclusive: a stage that ran again may take back work that
    builds on its old result, and nobody may claim such work at the same moment."""
    return any(one.lease.rerun for one in finished)


def complete(
    tx: Transaction,
    finished: Sequence[FinishedAttempt],
    onward: Collection[int] = (),
    *,
    until: float = math.inf,
    left: list[FinishedAttempt] | None = None,
) -> list[Lease]:
    """Record attempts that ended for good: done, skipped or failed.

    `onward` are the stages this worker offers; the leases that moved on to one of them are returned. Attempts whose lease
    was lost change nothing and leave an event. After `until`, on the monotonic clock, no more effects are started: attempts
    that still have some are added to `left`, for another transaction to complete.
    """
    moved: list[Lease] = []
    if any(not one.routine for one in finished):
        finished, failed, no_time = run_effects(tx, finished, until if left is not None else math.inf)
        if left is not None:
            left += no_time
        fail(tx, [one for one in failed if one.state is State.RETRY_LATER])
        finished += [one for one in failed if one.state is not State.RETRY_LATER]
    by_stage: dict[int, list[FinishedAttempt]] = {}
    for one in finished:
        by_stage.setdefault(one.lease.stage, []).append(one)
    for stage in sorted(by_stage):
        # In order, so that this never deadlocks with a rerun that ends the leases of others.
        moved += _complete_stage(tx, stage, sorted(by_stage[stage], key=attrgetter("lease.id")), onward)
    return moved


def _complete_stage(
    tx: Transaction, stage: int, finished: list[FinishedAttempt], onward: Collection[int]
) -> list[Lease]:
    following = layout(tx).successors(stage)
    straight = next((after for after in following.simple if after in onward), None)
    moved, ended = _finish_leases(tx, stage, straight, finished)
    stood = moved + ended
    if not stood:
        return []
    odd = [one for one in stood if not one.routine]
    again = [one for one in odd if one.lease.rerun and one.state in PASSED]
    changed = changed_outputs(tx, stage, again)
    _save(tx, stage, stood, odd)
    settle(tx, stage, stood)
    if odd:
        _record_reruns(tx, stage, again, changed)
        _record_failures(tx, stage, odd)
        add_follow_ons(tx, odd)
    if following:
        _begin_next(tx, following, straight, moved, ended)
    go_on(tx, stage, again, changed)
    begin_waiting_parents(tx, stage, (one.lease.item for one in ended))
    return [one.lease.moved_on(straight, tx.now, one.result, one.output_hash) for one in moved if straight is not None]


def _finish_leases(
    tx: Transaction, stage: int, straight: int | None, finished: list[FinishedAttempt]
) -> tuple[list[FinishedAttempt], list[FinishedAttempt]]:
    """Move leases straight on to the next stage, or end them; return those moved and those ended that were still held."""
    going = [one for one in finished if _goes_on(one)] if straight is not None else []
    ending = finished if not going else [one for one in finished if not _goes_on(one)]
    moved = move_leases(tx, stage, straight, going) if going and straight is not None else []
    return moved, end_leases(tx, stage, ending) if ending else []


def _save(tx: Transaction, stage: int, stood: list[FinishedAttempt], odd: list[FinishedAttempt]) -> None:
    """Save outcomes, costs, errors and the handlers' own events."""
    failed = [one for one in odd if one.state is State.FAILED]
    error_groups.find_causes(failed)
    save_outcomes(tx, stage, stood)
    _list_overtaken(tx, stage, stood)
    record_costs(tx, stage, odd)
    error_groups.enter_attempts(tx, stage, failed)
    record_user_events(tx, stage, odd)


def _list_overtaken(tx: Transaction, stage: int, finished: Sequence[FinishedAttempt]) -> None:
    """List items as changed whose attempt began before other stages were put before this one: its input was incomplete."""
    row, before = layout(tx).stages[stage], layout(tx).parents(stage)
    if row.changed_generation != row.created_generation:
        items = [one.lease.item for one in finished if one.lease.inputs.keys() != set(before)]
        if items:
            enter(tx, row.pipeline, items)


def _record_reruns(tx: Transaction, stage: int, again: Sequence[FinishedAttempt], changed: Collection[int]) -> None:
    """Unlike a first success, a rerun is recorded: otherwise the log would not show that the stage came back."""
    for one in again:
        record(
            tx,
            "completed" if one.state is State.DONE else "skipped",
            one.lease.item,
            stage,
            attempt=one.lease.attempt,
            version=one.version,
            changed=one.lease.item in changed,
        )


def _record_failures(tx: Transaction, stage: int, odd: Sequence[FinishedAttempt]) -> None:
    for one in odd:
        if one.state is State.FAILED:
            record(
                tx, "failed", one.lease.item, stage, attempt=one.lease.attempt, error=one.error, traceback=one.traceback
            )


def _begin_next(
    tx: Transaction,
    following: Successors,
    straight: int | None,
    moved: Sequence[FinishedAttempt],
    ended: Sequence[FinishedAttempt],
) -> None:
    """Begin the next stages; at the one that leases have moved on to, only for attempts whose lease has ended."""
    left = [one.lease.item for one in ended if _goes_on(one)]
    passed = [one.lease.item for one in moved] + left if len(following.simple) > 1 or following.checked else left
    for after in following.simple:
        _enter(tx, after, left if after == straight else passed)
    for after in following.checked:
        begin_if_ready(tx, after, passed)


def _goes_on(one: FinishedAttempt) -> bool:
    """Whether the next stages may begin, for the first time."""
    return one.routine or (one.state in PASSED and not one.lease.rerun)


def _enter(tx: Transaction, stage: int, items: Sequence[int]) -> None:
    if items:
        tx.run_rows("enter_waiting", [(item, stage, 0, 0, 0) for item in items], since=tx.now)
        tx.count(stage, State.PENDING, len(items))
        tx.tell_idle_workers(stage)
