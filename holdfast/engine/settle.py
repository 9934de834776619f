"""Settle: what the end of attempts means for the resources they used. Money that was set aside is free, what was used
instead of expected is put right, failures count for the breaker, and a provider that asked for a pause gets it from everyone.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine import ledger
from holdfast.engine.admit import CALLS
from holdfast.engine.finish import FinishedAttempt
from holdfast.engine.pause import pause
from holdfast.engine.register import layout
from holdfast.engine.resource_gates import BY_PERSON, Gate, lock_gates, save_gates
from holdfast.engine.selection import Who
from holdfast.model.layout import StageRow
from holdfast.model.rate import Bucket
from holdfast.model.states import PASSED, State
from holdfast.store import Transaction

#: How long nobody tries a provider that has no more credit.
CREDIT_US = 3_600_000_000
#: A key that is refused so often in a row is refused for good.
REFUSALS = 3


def settle(tx: Transaction, stage: int, finished: Sequence[FinishedAttempt]) -> None:
    """Settle attempts at a stage that have ended in this transaction. A stage without a resource pays nothing."""
    known = layout(tx)
    numbers = known.resources_of(stage)
    row = known.stages[stage]
    if odd := [one for one in finished if not one.routine]:
        _settle_odd(tx, row, odd)
    if not numbers or not finished:
        return
    specs = [known.resources[number].spec for number in numbers]
    # Also where there is no budget any more: it may come back while the lease goes on to the next stage.
    tx.run("drop_reservations", leases=[one.lease.id for one in finished])
    if any(spec.concurrency is not None for spec in specs):
        tx.tell_idle_workers()
    if any(spec.units for spec in specs):
        _settle_units(tx, numbers, finished)
    votes = _votes(finished)
    limited = [one for one in finished if one.cool_us is not None or one.out_of_credit]
    if limited or (votes and any(spec.breaker for spec in specs)):
        gates = lock_gates(tx, numbers)
        _judge(tx, stage, gates, votes)
        _heed(tx, stage, gates, limited)
        save_gates(tx, gates.values())


def _settle_odd(tx: Transaction, row: StageRow, finished: Sequence[FinishedAttempt]) -> None:
    """What attempts that are not routine mean for the ledger and for the stage as a whole."""
    # What an attempt leaves open may have been charged, however the attempt ended.
    begun = [(one.lease.id, one.lease.item, row.id) for one in finished if one.lease.has_open_call]
    ledger.doubt(tx, begun, "the attempt ended without an answer")
    if stop := next((one.stop_stage for one in finished if one.stop_stage and not row.paused), None):
        pause(tx, row.label, Who("holdfast", stop))
    if (
        any(one.out_of_credit for one in finished)
        and not row.uses
        and not layout(tx).pipelines[row.pipeline_name].paused
    ):
        error = next(one.error for one in finished if one.out_of_credit)
        pause(tx, row.pipeline_name, Who("out of credit", _no_credit(error)), tx.now + CREDIT_US)
    if refused := [one for one in finished if one.key_refused]:
        _refused(tx, row, refused)
    elif any(one.state in PASSED and one.lease.has_paid for one in finished):
        tx.run("clear_refusals", ids=_outside(tx, row))
        tx.run("clear_stage_refusals", stage=row.id)


def _refused(tx: Transaction, row: StageRow, refused: Sequence[FinishedAttempt]) -> None:
    """A key that was refused several times in a row, with no success in between, is refused for all: nobody tries it until a
    person has looked. A stage that uses no resource stands still itself."""
    error = f"the provider does not accept the key: {refused[-1].error}"
    outside = _outside(tx, row)
    if not outside:
        [(times,)] = tx.run("count_stage_refusals", stage=row.id, n=len(refused))
        if times >= REFUSALS and not row.paused:
            pause(tx, row.label, Who("key refused", error))
        return
    many = [number for number, times in tx.run("count_refusals", ids=outside, n=len(refused)) if times >= REFUSALS]
    gates = lock_gates(tx, many) if many else {}
    for gate in gates.values():
        if gate.paused != BY_PERSON or gate.retry_after is not None:
            gate.pause(BY_PERSON, error, None)
            tx.record(
                "paused",
                pipeline=row.pipeline,
                item=refused[-1].lease.item,
                stage=row.id,
                resource=gate.spec.name,
                reason=error,
                until=None,
                by="key refused",
            )
    save_gates(tx, gates.values())


def _outside(tx: Transaction, row: StageRow) -> list[int]:
    """The resources of a stage that lie outside, without limits of our own."""
    known = layout(tx)
    return [number for number in known.resources_of(row.id) if not known.resources[number].spec.name.startswith("@")]


def _votes(finished: Sequence[FinishedAttempt]) -> list[tuple[int, bool]]:
    """By lease, whether attempts worked. A batch that failed as a whole has one vote: it was one call."""
    votes: list[tuple[int, bool]] = []
    failed_batches: set[tuple[int, str | None]] = set()
    for one in finished:
        vote = _vote(one)
        batch = (one.company, one.error)
        if vote is None or (not vote and one.company > 1 and batch in failed_batches):
            continue
        if not vote and one.company > 1:
            failed_batches.add(batch)
        votes.append((one.lease.id, vote))
    return votes


def _vote(one: FinishedAttempt) -> bool | None:
    """Whether the attempt worked, for the breaker; None if it tells nothing about what is outside."""
    if one.state in PASSED:
        return True
    if one.rejected:
        return False
    if one.snooze or one.item_at_fault or one.state in (State.FAILED, State.PENDING, State.ON_HOLD):
        return None
    return False


def _judge(tx: Transaction, stage: int, gates: dict[int, Gate], votes: Sequence[tuple[int, bool]]) -> None:
    for gate in gates.values():
        spec = gate.spec.breaker
        if spec is None or not votes:
            continue
        before = gate.breaker
        [(newest,)] = tx.run("newest_lease")
        newest = max(newest, *(lease for lease, _ in votes))
        for lease, worked in sorted(votes):
            gate.breaker = gate.breaker.after(spec, lease, worked, tx.now, newest)
        if gate.breaker.is_open and (not before.is_open or gate.breaker.open_until != before.open_until):
            tx.record(
                "breaker_opened",
                pipeline=layout(tx).stages[stage].pipeline,
                stage=stage,
                resource=gate.spec.name,
                failures=gate.breaker.failures,
                until=gate.breaker.open_until,
                again=before.is_open,
            )
        elif before.is_open and not gate.breaker.is_open:
            tx.record(
                "breaker_closed", pipeline=layout(tx).stages[stage].pipeline, stage=stage, resource=gate.spec.name
            )
            tx.tell_idle_workers()


def _heed(tx: Transaction, stage: int, gates: dict[int, Gate], limited: Sequence[FinishedAttempt]) -> None:
    """Let everyone wait as long as a provider has asked one for. Only what lies outside is meant, not limits of our own."""
    row = layout(tx).stages[stage]
    outside = [gate for gate in gates.values() if not gate.spec.name.startswith("@")]
    for one in limited:
        for gate in outside:
            if one.out_of_credit:
                if gate.paused == BY_PERSON and (gate.retry_after is None or gate.retry_after >= tx.now + CREDIT_US):
                    continue  # it stands still for longer already
                gate.pause(BY_PERSON, _no_credit(one.error), tx.now + CREDIT_US)
                tx.record(
                    "paused",
                    pipeline=row.pipeline,
                    item=one.lease.item,
                    stage=stage,
                    resource=gate.spec.name,
                    reason=gate.reason,
                    until=gate.retry_after,
                    by="out of credit",
                )
                continue
            asked = one.cool_us if one.cool_us else round(gate.spec.cool_seconds * 1e6)
            until = tx.now + min(asked, round(gate.spec.cool_most_seconds * 1e6))
            if gate.spec.adaptive and one.lease.since > gate.paced_at:
                # Once for all attempts that ran at the same pace.
                gate.slow_down(tx.now)
            if until > gate.cool_until:
                gate.cool_until = until
                tx.record(
                    "cooled_down",
                    pipeline=row.pipeline,
                    item=one.lease.item,
                    stage=stage,
                    resource=gate.spec.name,
                    until=until,
                    error=one.error,
                )


def _no_credit(error: str | None) -> str:
    return f"out of credit: {error or 'the provider said so'}"


def _settle_units(tx: Transaction, numbers: Sequence[int], finished: Sequence[FinishedAttempt]) -> None:
    known = layout(tx)
    more: dict[str, float] = {}
    for one in finished:
        for unit, used in one.used.items():
            more[unit] = more.get(unit, 0) + used - one.lease.units.get(unit, 0)
    changed = {
        number: known.resources[number].spec for number in numbers if known.resources[number].spec.units.keys() & more
    }
    if not changed:
        return
    gates = lock_gates(tx, list(changed))
    rows = []
    for resource, unit, until in tx.run("read_buckets", ids=list(changed)):
        rate = changed[resource].units.get(unit)
        if unit != CALLS and rate is not None and more.get(unit):
            bucket = Bucket.of(rate, rate.default_burst, gates[resource].pace_now(tx.now))
            rows.append((resource, unit, bucket.settle(until, tx.now * 1000, more[unit])))
    tx.run_rows("save_buckets", rows)
