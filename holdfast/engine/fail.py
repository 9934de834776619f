"""Fail: after an attempt that raised, the stage waits for the next attempt or is exhausted. A snooze waits too, and uses up
no attempt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from holdfast.engine import error_groups
from holdfast.engine.clock_jumps import follow_the_clock
from holdfast.engine.fan_in import begin_waiting_parents
from holdfast.engine.finish_leases import (
    HANDED_BACK,
    RETRIED,
    FinishedAttempt,
    end_leases,
    record_costs,
    record_user_events,
    save_outcomes,
)
from holdfast.engine.layout import layout
from holdfast.engine.resource_feedback import settle
from holdfast.model.retry_or_give_up import after_failure
from holdfast.model.states import State
from holdfast.store import Transaction


def fail(tx: Transaction, finished: Sequence[FinishedAttempt]) -> None:
    """Record attempts that raised, and snoozes. Attempts whose lease was lost change nothing and leave an event."""
    if finished:
        follow_the_clock(tx)
    ordered = sorted(finished, key=lambda one: (one.lease.stage, one.lease.id))
    for stage, same in groupby(ordered, key=lambda one: one.lease.stage):
        _fail_stage(tx, stage, end_leases(tx, stage, list(same)))


def _fail_stage(tx: Transaction, stage: int, finished: list[FinishedAttempt]) -> None:
    row = layout(tx).stages[stage]
    record_user_events(tx, stage, finished)
    delayed: list[tuple[Any, ...]] = []
    exhausted: list[FinishedAttempt] = []
    retried: list[FinishedAttempt] = []
    failed = [one for one in finished if not one.snooze]
    error_groups.find_causes(failed)
    for one in finished:
        lease = one.lease
        due_at = tx.now + one.delay_us
        facts: dict[str, Any] = {"attempt": lease.attempt, "error": one.error, "due_at": due_at}
        if one.snooze:
            delayed.append((lease.item, stage, due_at, lease.attempt - 1, lease.alone, lease.rerun, one.error, None))
            tx.record("snoozed", pipeline=row.pipeline, item=lease.item, stage=stage, **facts)
            continue
        then = after_failure(lease.attempt, row.max_attempts, lease.alone, one.company)
        if then.state is State.EXHAUSTED:
            # A copy: the transaction may have to run again, with the same attempts.
            exhausted.append(replace(one, state=State.EXHAUSTED))
            del facts["due_at"]
        else:
            group = one.cause.group if one.cause else None
            retried.append(one)
            delayed.append((lease.item, stage, due_at, then.attempts, then.alone, lease.rerun, one.error, group))
        event = "exhausted" if then.state is State.EXHAUSTED else "attempt_failed"
        tx.record(event, pipeline=row.pipeline, item=lease.item, stage=stage, **facts, traceback=one.traceback)
    record_costs(tx, stage, finished)
    error_groups.enter_attempts(tx, stage, failed)
    settle(tx, stage, finished)
    tx.run_rows("enter_delayed", delayed)
    tx.count(stage, State.RETRY_LATER, len(delayed))
    snoozed = [one for one in finished if one.snooze]
    tx.ended.extend((stage, outcome, ones) for outcome, ones in ((HANDED_BACK, snoozed), (RETRIED, retried)) if ones)
    if exhausted:
        save_outcomes(tx, stage, exhausted)
        begin_waiting_parents(tx, stage, [one.lease.item for one in exhausted])
