"""Effects: functions of the user's that write rows in the transaction that completes their stage.

Each attempt's effects run in a savepoint, after its lease was found standing and is held. If one raises, the attempt
fails as if its handler had raised, and nothing of it remains; the others in the same transaction are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.engine.finish import Finished
from holdfast.engine.register import layout
from holdfast.errors import Permanent, StoreError, UsageError
from holdfast.model.faults import describe
from holdfast.model.states import State
from holdfast.store import Transaction


def run_effects(tx: Transaction, finished: Sequence[Finished]) -> tuple[list[Finished], list[Finished]]:
    """Run what these attempts want written; return those that stand as they are, and what the others came to."""
    wanting = [one for one in finished if one.effects or one.follow_ons]
    if not wanting:
        return list(finished), []
    stood: dict[int, int] = dict(tx.run("hold_leases", leases=sorted(one.lease.id for one in wanting)))
    failed: dict[int, Finished] = {}
    for one in wanting:
        if stood.get(one.lease.id) != one.lease.stage:
            continue  # a late worker's effects never run
        try:
            _check_follow_ons(tx, one)
            _run(tx, one)
        except StoreError:
            raise  # trouble of the database: everything is tried again
        except Exception as error:
            failed[one.lease.id] = _as_failure(one, error)
    return [one for one in finished if one.lease.id not in failed], list(failed.values())


def _run(tx: Transaction, one: Finished) -> None:
    if one.effects:
        with tx.savepoint() as connection:
            for effect in one.effects:
                effect.function(connection, *effect.args)


def _check_follow_ons(tx: Transaction, one: Finished) -> None:
    for follow_on in one.follow_ons:
        if not layout(tx).of_pipeline(follow_on.pipeline):
            raise UsageError(
                f"item {one.lease.key!r}: submit to {follow_on.pipeline!r}, which is no pipeline of this store"
            )


def _as_failure(one: Finished, error: Exception) -> Finished:
    # A copy: the transaction may have to be run again, with what was given.
    text, trace = describe(error)
    state = State.FAILED if isinstance(error, Permanent) else State.RETRY_LATER
    return replace(
        one, state=state, error=text, traceback=trace, delay_us=one.backoff_us, result=None, output_hash=None,
        effects=[], follow_ons=[],
    )  # fmt: skip
