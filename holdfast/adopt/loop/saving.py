"""Saves a row's outcome when its handler has returned, in a transaction of its own.

An outcome is saved together with its effects, or not at all. Transient database errors are retried. A row that the database
refuses fails with the database's message. A row that cannot be changed at all is left to the recovery of stale rows.
"""

from __future__ import annotations

import time
from typing import Any

from holdfast.adopt.connections import Open
from holdfast.adopt.loop.job import Job
from holdfast.adopt.loop.state import LoopState
from holdfast.adopt.loop.transact import patiently, transact
from holdfast.adopt.rows.finish import complete_directly, finish, postpone, where_is
from holdfast.adopt.rows.outcome import COMPLETED, Outcome, error_text, outcome_of, pause_seconds
from holdfast.adopt.table.held_row import Finished, Held
from holdfast.model.backoff import Backoff
from holdfast.model.log_lines import logger

log = logger("holdfast.adopt")


def saving(
    loop: LoopState, job: Job, held: Held, returned: Any, error: BaseException | None, *, is_brief: bool = False
) -> None:
    """Save the outcome of an attempt. `is_brief`: this thread probably saves the next one soon."""
    is_usual = error is None and returned is None and not (job.effects or job.values)
    if is_usual and loop.is_sqlite and _completed_directly(loop, held, is_brief):
        return
    outcome = outcome_of(returned, error, [held], loop.retry)
    if outcome.kind == "completed":
        try:
            _save(loop, job, held, outcome, together=True)
            return
        except Exception as raised:
            # An effect raised, or the database refused the row: treated as if the handler had raised the error.
            outcome = outcome_of(None, raised, [held], loop.retry)
    try:
        _save(loop, job, held, outcome, together=False)
    except Exception as worse:
        loop.refused(held.key_values, worse, f"cannot be saved as {outcome.kind}, and is left to recovery")


def _completed_directly(loop: LoopState, held: Held, is_brief: bool) -> bool:
    """The fast path for the usual outcome. False means that nothing was saved: the slow path also handles the error if it
    occurs again."""
    line = loop.line
    line.stays_open = is_brief
    try:
        is_done = complete_directly(line, loop.engine, held)
    except Exception:
        return False
    if is_done:
        _report(loop, held, COMPLETED)
    return is_done


def handing_back(loop: LoopState, rows: list[Held], why: str) -> None:
    """Queue unfinished rows again, within the loop's grace period. Rows that cannot be queued are left to the recovery of
    stale rows."""
    if not rows:
        return
    give_up_at = time.monotonic() + max(1.0, loop.grace_seconds)

    def release() -> Finished:
        return transact(loop.engine, lambda place: finish(place, rows, Outcome("released")))

    try:
        finished = patiently(release, lambda _: time.monotonic() < give_up_at, loop.nap)
    except Exception as error:
        log.error("%s: %d rows could not be handed back, and are left to recovery: %s", loop.name, len(rows), error)
        return
    loop.counters.add(released=len(finished.won), lost=len(finished.lost))
    log.info("%s: %s, handed back %d rows", loop.name, why, len(finished.won))


def _save(loop: LoopState, job: Job, held: Held, outcome: Outcome, *, together: bool) -> None:
    values, effects = (job.values, job.effects) if together else (None, [])

    def work(place: Open) -> bool:
        finished = finish(place, [held], outcome, values)
        if effects and (finished.lost or finished.again):
            raise _NoEffects(bool(finished.again))
        return bool(finished.won)

    try:
        won = loop.finish(work, effects)
    except _NoEffects as instead:
        won = instead.was_done
    if not won:
        # Handlers with a session may have set the status themselves.
        found = loop.finish(lambda place: where_is(place, held))
        if found == "queued":
            outcome = _queued_again(loop, held, outcome)
        elif found in ("completed", "failed") and not job.effects:
            outcome = Outcome(found)
        else:
            loop.counters.add(lost=1)
            log.warning("%s: row %r is no longer held; %s was not saved", loop.name, held.key, outcome.kind)
            return
    _report(loop, held, outcome)


def _queued_again(loop: LoopState, held: Held, outcome: Outcome) -> Outcome:
    """The handler, or somebody else, has set the row back to queued: it waits like a retry, and at least until the next
    poll. Otherwise it would be claimed again at once, without end."""
    retry = Backoff() if loop.retry is None else loop.retry
    after = max(loop.poll_seconds, pause_seconds(retry, held.attempt))
    if "next_attempt" in held.mapping.columns:
        loop.finish(lambda place: postpone(place, held, after))
    log.info("%s: row %r was set back to queued during its attempt, and waits %.1f s", loop.name, held.key, after)
    return Outcome("retried", outcome.error, after)


class _NoEffects(Exception):
    """Rolls back before any effect has run: the row is lost, or an earlier try was already committed."""

    def __init__(self, was_done: bool) -> None:
        self.was_done = was_done


def _report(loop: LoopState, held: Held, outcome: Outcome) -> None:
    loop.counters.add(**{outcome.kind: 1})
    waits = outcome.after_seconds or 0.0
    if outcome.kind in ("retried", "released") and "next_attempt" not in held.mapping.columns and waits:
        loop.set_aside(held.key_values, waits)
    if outcome.error is not None and outcome.kind in ("failed", "retried"):
        text = error_text(outcome.error)
        loop.counters.add_error(text)
        later = f", again in {waits:.1f} s" if outcome.kind == "retried" else ""
        log.warning("%s: row %r, attempt %d %s%s: %s", loop.name, held.key, held.attempt, outcome.kind, later, text)
    else:
        log.debug("%s: row %r, attempt %d %s", loop.name, held.key, held.attempt, outcome.kind)
