"""Effects: the user's functions that write rows in the transaction that completes their stage.

Each attempt's effects run in a savepoint, after its lease was checked and locked. If one raises, the attempt fails as if its
handler had raised, and nothing of it remains; other attempts in the same transaction are not affected.

Nobody knows in advance how long they take, and others wait for the transaction: on SQLite, every writer does. So after a
while no more of them are started, and the rest go into another transaction.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast import points
from holdfast.clock import microseconds
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.engine.layout import layout
from holdfast.errors import EffectStalled, Permanent, StoreError, UsageError
from holdfast.model.error_fingerprint import describe
from holdfast.model.outcome import NOTHING, RetryLater, Skip, reason_of
from holdfast.model.states import State
from holdfast.store import Transaction


class Ran(NamedTuple):
    """The attempts, by what happened to their effects."""

    stand: list[FinishedAttempt]
    #: Those with an effect that raised, as failed attempts.
    failed: list[FinishedAttempt]
    #: Those for which there was no time: nothing was done for them.
    left: list[FinishedAttempt]


def run_effects(tx: Transaction, finished: Sequence[FinishedAttempt], until: float = math.inf) -> Ran:
    """Run the effects of these attempts, in order; after `until`, on the monotonic clock, only the first is started."""
    wanting = [one for one in finished if one.effects or one.follow_ons]
    if not wanting:
        return Ran(list(finished), [], [])
    stood: dict[int, int] = dict(tx.run("hold_leases", leases=sorted(one.lease.id for one in wanting)))
    failed: dict[int, FinishedAttempt] = {}
    left: list[FinishedAttempt] = []
    for place, one in enumerate(wanting):
        if place and time.monotonic() >= until:
            left = wanting[place:]
            break
        if stood.get(one.lease.id) != one.lease.stage:
            continue  # effects of a worker that lost its lease never run
        try:
            _check_follow_ons(tx, one)
            _run(tx, one)
        except (StoreError, EffectStalled):
            raise  # this transaction is over, for all of them
        except BaseException as error:
            failed[one.lease.id] = _as_if_raised(one, error)
    tx.end_user_code()
    elsewhere = {*failed, *(one.lease.id for one in left)}
    return Ran([one for one in finished if one.lease.id not in elsewhere], list(failed.values()), left)


def _run(tx: Transaction, one: FinishedAttempt) -> None:
    if one.effects:
        with tx.savepoint() as connection:
            for effect in one.effects:
                effect.function(connection, *effect.args)
                points.reach("effect.after", one.lease.stage, effect.function)


def _check_follow_ons(tx: Transaction, one: FinishedAttempt) -> None:
    known = layout(tx)
    for follow_on in one.follow_ons:
        if not known.of_pipeline(follow_on.pipeline):
            raise UsageError(
                f"item {one.lease.key!r}, stage {known.stages[one.lease.stage].name!r}: submit to {follow_on.pipeline!r}, "
                f"which is not a pipeline of this store"
            )


def _as_if_raised(one: FinishedAttempt, error: BaseException) -> FinishedAttempt:
    """The attempt as if its handler had raised this."""
    # A copy: the transaction may have to run again, with the same attempts.
    if isinstance(error, Skip):
        return replace(one, state=State.SKIPPED, error=reason_of(error), result=None, output_hash=NOTHING, effects=[])
    bare = replace(one, state=State.RETRY_LATER, result=None, output_hash=None, effects=[], follow_ons=[])
    if isinstance(error, RetryLater):
        return replace(bare, error=reason_of(error), delay_us=microseconds(error.after_seconds), snooze=True)
    text, trace = describe(error)
    state = State.FAILED if isinstance(error, Permanent) else State.RETRY_LATER
    return replace(bare, state=state, error=text, traceback=trace, delay_us=one.backoff_us)
