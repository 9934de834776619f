"""Running: what becomes of a row when its handler has answered, in a transaction of the row's own.

An outcome is saved with the effects that belong to it, or not at all. Trouble that passes is waited for; a row that the
database refuses fails with the database's own message; one that cannot be changed at all is left to recovery.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from holdfast.adopt.connections import Open
from holdfast.adopt.loop.job import Job
from holdfast.adopt.loop.steps import Steps, Transact, patiently
from holdfast.adopt.rows.finish import complete_directly, error_text, postpone, where_is
from holdfast.adopt.rows.outcome import COMPLETED, Outcome, outcome_of, pause_seconds
from holdfast.adopt.rows.sqlite_direct import UNUSUAL, DirectLine
from holdfast.adopt.table.held_row import Held
from holdfast.model.backoff import Backoff
from holdfast.model.logs import logger

if TYPE_CHECKING:
    from holdfast.adopt.loop.loop import Loop

log = logger("holdfast.adopt")


def saving(loop: Loop, job: Job, held: Held, returned: Any, error: BaseException | None) -> Steps[Outcome | None]:
    """Write how the attempt ended. None: the row was lost, or could not be changed."""
    outcome = outcome_of(returned, error, [held], loop.retry)
    if outcome.kind == "completed":
        try:
            return (yield from _save(loop, job, held, outcome, together=True))
        except Exception as raised:
            # An effect raised, or the database refused the row: the attempt ends as if the handler had raised it.
            error = raised
            outcome = outcome_of(None, raised, [held], loop.retry)
    try:
        return (yield from _save(loop, job, held, outcome, together=False))
    except Exception as worse:
        loop.set_aside(held.key_values)
        loop.counters.add(refused=1)
        loop.counters.add_error(error_text(worse))
        log.error(
            "%s: row %r: its outcome (%s) cannot be saved, it is left to recovery: %s",
            loop.name,
            held.key,
            outcome.kind,
            error_text(worse),
        )
        return None


def is_usual(job: Job, returned: Any) -> bool:
    """Whether a handler that has not raised leaves no more to do than to complete its row."""
    return returned is None and not (job.effects or job.values)


def completed_at_once(loop: Loop, held: Held, line: DirectLine) -> bool:
    """The usual end of a row, in short. False: nothing was saved, and `saving` has to see to it; to trouble, too, which
    then comes up once more."""
    try:
        answer = line.transact(loop.engine, lambda: complete_directly(loop.engine.dialect, held))
    except Exception:
        return False
    if answer is UNUSUAL:
        return False
    _tell(loop, held, COMPLETED)
    return True


def handing_back(loop: Loop, rows: list[Held]) -> Steps[None]:
    """Queue rows again that a loop which stops has not finished, within its grace; what cannot be is left to recovery."""
    if not rows:
        return
    give_up_at = time.monotonic() + max(1.0, loop.grace_seconds)
    step = Transact(lambda place: Outcome("released").save(place, rows))
    try:
        finished = yield from patiently(step, lambda _: time.monotonic() < give_up_at)
    except Exception as error:
        log.error("%s: %d rows could not be handed back, and are left to recovery: %s", loop.name, len(rows), error)
        return
    loop.counters.add(released=len(finished.won), lost=len(finished.lost))
    log.info("%s: stopping, handed back %d rows", loop.name, len(finished.won))


def _save(loop: Loop, job: Job, held: Held, outcome: Outcome, *, together: bool) -> Steps[Outcome | None]:
    values, effects = (job.values, job.effects) if together else (None, [])

    def work(place: Open) -> bool:
        if values:
            finished = outcome.save(place, [held], values)
            how = "lost" if finished.lost else "again" if finished.again else "won"
        else:
            how = outcome.save_one(place, held)
        if effects and how != "won":
            raise _NoEffects(how)
        return how != "lost"

    try:
        won = yield from patiently(Transact(work, effects, is_single=not effects), loop.may_wait)
    except _NoEffects as instead:
        won = instead.how == "again"
    if not won:
        # Handlers in the older style may have set the status themselves.
        found = yield from patiently(Transact(lambda place: where_is(place, held)), loop.may_wait)
        if found == "queued":
            outcome = yield from _queued_again(loop, held, outcome)
        elif found in ("completed", "failed") and not job.effects:
            outcome = Outcome(found)
        else:
            loop.counters.add(lost=1)
            log.warning(
                "%s: row %r was taken over, changed or removed meanwhile; %s was not saved",
                loop.name,
                held.key,
                outcome.kind,
            )
            return None
    _tell(loop, held, outcome)
    return outcome


def _queued_again(loop: Loop, held: Held, outcome: Outcome) -> Steps[Outcome]:
    """The handler, or a person, has set the row back to queued: it waits as a retry does, and at least until the next poll.
    Claimed at once, it would go round without end."""
    retry = Backoff() if loop.retry is None else loop.retry
    after = max(loop.poll_seconds, pause_seconds(retry, held.attempt))
    if "next_attempt" in held.mapping.columns:
        yield from patiently(Transact(lambda place: postpone(place, held, after)), loop.may_wait)
    log.info("%s: row %r was set back to queued during its attempt, and waits %.1f s", loop.name, held.key, after)
    return Outcome("retried", outcome.error, after)


class _NoEffects(Exception):
    """Ends the transaction before any effect has run: the row is lost, or all of it was committed before."""

    def __init__(self, how: str) -> None:
        self.how = how


def _tell(loop: Loop, held: Held, outcome: Outcome) -> None:
    loop.counters.add(**{outcome.kind: 1})
    waits = outcome.after_seconds or 0.0
    if outcome.kind in ("retried", "released") and "next_attempt" not in held.mapping.columns and waits:
        loop.set_aside(held.key_values, waits)
    if outcome.error is not None and outcome.kind in ("failed", "retried"):
        said = error_text(outcome.error)
        loop.counters.add_error(said)
        log.warning(
            "%s: row %r, attempt %d %s%s: %s",
            loop.name,
            held.key,
            held.attempt,
            outcome.kind,
            f", again in {waits:.1f} s" if outcome.kind == "retried" else "",
            said,
        )
    else:
        log.debug("%s: row %r, attempt %d %s", loop.name, held.key, held.attempt, outcome.kind)
