"""Settle: what the end of attempts means for the resources they used.

Reserved money is freed, estimated units are replaced by those used, failures count for the circuit breaker, and a pause that
a provider asked for applies to every worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.engine import ledger
from holdfast.engine.claim import Lease
from holdfast.engine.claim_within_limits import CALLS
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.engine.layout import layout, record
from holdfast.engine.pause import pause
from holdfast.engine.resource_state import BY_PERSON, Gate, lock_gates, save_gates
from holdfast.engine.selection import Who
from holdfast.model.breaker import Breaker
from holdfast.model.budget_day import next_day_at
from holdfast.model.layout import StageRow
from holdfast.model.rate import Bucket
from holdfast.model.resource import COOL_SECONDS
from holdfast.model.states import PASSED, State
from holdfast.store import Transaction

#: A key that was refused this often in a row counts as invalid.
REFUSALS = 3


class AskedPause(NamedTuple):
    """A pause that the headers of an answer asked for: nothing is left until then."""

    us: int
    #: None for the first resource of the stage.
    resource: str | None


def heed(tx: Transaction, lease: Lease, pause: AskedPause) -> None:
    """Have every worker wait, while the attempt that has heard of it goes on."""
    row = layout(tx).stages[lease.stage]
    why = "the headers of an answer say that nothing is left"
    if not row.uses:
        _pause_stage_until(tx, row, tx.now + pause.us, why)
    elif numbers := _limited_by(tx, row, pause.resource):
        gates = lock_gates(tx, numbers)
        for gate in gates.values():
            _cool_down(tx, lease, gate, pause.us, why)
        save_gates(tx, gates.values())


def settle(tx: Transaction, stage: int, finished: Sequence[FinishedAttempt]) -> None:
    """Settle attempts at a stage that ended in this transaction. A stage without resources costs nothing here."""
    known = layout(tx)
    if odd := [one for one in finished if not one.routine]:
        _settle_odd(tx, known.stages[stage], odd)
    if finished and (numbers := known.resources_of(stage)):
        _settle_resources(tx, stage, numbers, finished)


def _settle_odd(tx: Transaction, row: StageRow, finished: Sequence[FinishedAttempt]) -> None:
    """What attempts that are not routine mean for the ledger and for the stage as a whole."""
    # A call that an attempt leaves open may have been charged, however the attempt ended.
    begun = [(one.lease.id, one.lease.item, row.id) for one in finished if one.lease.has_open_call]
    ledger.doubt(tx, begun, "the attempt ended without an answer")
    if stop := next((one.stop_stage for one in finished if one.stop_stage and not row.paused), None):
        pause(tx, row.label, Who("holdfast", stop))
    if not row.uses:
        _pause_stage(tx, row, finished)
    if refused := [one for one in finished if one.key_refused]:
        _count_refusals(tx, row, refused)
    elif any(one.state in PASSED and one.lease.has_paid for one in finished):
        tx.run("clear_refusals", ids=list(layout(tx).resources_of(row.id)))
        tx.run("clear_stage_refusals", stage=row.id)


def _pause_stage(tx: Transaction, row: StageRow, finished: Sequence[FinishedAttempt]) -> None:
    """A provider says wait, or pay, and there is no resource to pause: the stage is paused."""
    limited = [one for one in finished if one.out_of_credit or (one.pauses_stage and one.cool_us is not None)]
    if not limited:
        return
    now = layout(tx).stages[row.id]
    if broke := next((one for one in limited if one.out_of_credit), None):
        if not now.paused or now.retry_after is not None:
            pause(tx, row.label, Who("out of credit", _no_credit(broke.error)))
        return
    longest = max(limited, key=lambda one: one.cool_us or 0)
    until = tx.now + (longest.cool_us or round(COOL_SECONDS * 1e6))
    _pause_stage_until(tx, row, until, longest.error or "the provider asked for a pause")


def _pause_stage_until(tx: Transaction, row: StageRow, until: int, why: str) -> None:
    now = layout(tx).stages[row.id]
    if not now.paused or (now.retry_after is not None and now.retry_after < until):
        pause(tx, row.label, Who("rate limited", why), until)


def _settle_resources(tx: Transaction, stage: int, numbers: Sequence[int], finished: Sequence[FinishedAttempt]) -> None:
    known = layout(tx)
    specs = [known.resources[number].spec for number in numbers]
    # Even if the budget is gone: it may come back while the lease goes on to the next stage.
    tx.run("drop_reservations", leases=[one.lease.id for one in finished])
    if any(spec.concurrency is not None for spec in specs):
        tx.tell_idle_workers()
    if any(spec.units for spec in specs):
        _settle_units(tx, numbers, finished)
    votes = _votes(finished)
    limited = [one for one in finished if one.cool_us is not None or one.out_of_credit]
    if limited or (votes and any(spec.breaker for spec in specs)):
        gates = lock_gates(tx, numbers)
        _move_breakers(tx, stage, gates, votes)
        _follow_provider(tx, known.stages[stage], gates, limited)
        save_gates(tx, gates.values())


def _count_refusals(tx: Transaction, row: StageRow, refused: Sequence[FinishedAttempt]) -> None:
    """Pause the resource after several refused keys in a row: nobody tries the key until a person resumes it. A stage
    without a resource is paused itself."""
    error = f"the provider does not accept the key: {refused[-1].error}"
    external = _limited_by(tx, row, refused[-1].limited_resource)
    if not external:
        [(times,)] = tx.run("count_stage_refusals", stage=row.id, n=len(refused))
        if times >= REFUSALS and not row.paused:
            pause(tx, row.label, Who("key refused", error))
        return
    many = [number for number, times in tx.run("count_refusals", ids=external, n=len(refused)) if times >= REFUSALS]
    gates = lock_gates(tx, many) if many else {}
    for gate in gates.values():
        if gate.paused != BY_PERSON or gate.retry_after is not None:
            gate.pause(BY_PERSON, error, None)
            _record_pause(tx, row.id, gate, refused[-1], "key refused")
    save_gates(tx, gates.values())


def _limited_by(tx: Transaction, row: StageRow, named: str | None) -> list[int]:
    """The resource whose provider has answered: the one that the call names, else the first that the stage uses; none if
    it uses none."""
    names = [named] if named in row.uses else row.uses[:1]
    return [found.id for name in names if (found := layout(tx).resource(name)) is not None]


def _votes(finished: Sequence[FinishedAttempt]) -> list[tuple[int, bool]]:
    """By lease, whether attempts succeeded. A batch that failed as a whole has one vote: it was one call."""
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
    """Whether the attempt succeeded, for the breaker; None if it says nothing about the provider."""
    if one.state in PASSED:
        return True
    if one.rejected:
        return False
    if one.snooze or one.item_at_fault or one.state in (State.FAILED, State.PENDING, State.ON_HOLD):
        return None
    return False


def _move_breakers(tx: Transaction, stage: int, gates: dict[int, Gate], votes: Sequence[tuple[int, bool]]) -> None:
    """Count votes for every circuit breaker, which may open or close it."""
    for gate in gates.values():
        spec = gate.spec.breaker
        if spec is None or not votes:
            continue
        before = gate.breaker
        [(newest,)] = tx.run("newest_lease")
        newest = max(newest, *(lease for lease, _ in votes))
        for lease, worked in sorted(votes):
            gate.breaker = gate.breaker.after(spec, lease, worked, tx.now, newest)
        _record_breaker(tx, stage, gate, before)


def _record_breaker(tx: Transaction, stage: int, gate: Gate, before: Breaker) -> None:
    pipeline, now = layout(tx).stages[stage].pipeline, gate.breaker
    if now.is_open and (not before.is_open or now.open_until != before.open_until):
        tx.record(
            "breaker_opened",
            pipeline=pipeline,
            stage=stage,
            resource=gate.spec.name,
            failures=now.failures,
            until=now.open_until,
            again=before.is_open,
        )
    elif before.is_open and not now.is_open:
        tx.record("breaker_closed", pipeline=pipeline, stage=stage, resource=gate.spec.name)
        tx.tell_idle_workers()


def _follow_provider(
    tx: Transaction, row: StageRow, gates: dict[int, Gate], limited: Sequence[FinishedAttempt]
) -> None:
    """Make every worker wait as long as a provider asked one of them to."""
    for one in limited:
        for number in _limited_by(tx, row, one.limited_resource):
            if one.out_of_credit:
                _out_of_credit(tx, row.id, gates[number], one)
            else:
                _cool_down(tx, one.lease, gates[number], one.cool_us, one.error)


def _out_of_credit(tx: Transaction, stage: int, gate: Gate, one: FinishedAttempt) -> None:
    """Until a person has paid, or until the day ends if the budget is one per day."""
    until = None if gate.spec.budget_per_day is None else next_day_at(tx.now, gate.spec.zone)
    if gate.paused == BY_PERSON and (gate.retry_after is None or (until is not None and gate.retry_after >= until)):
        return  # already paused for longer
    gate.pause(BY_PERSON, _no_credit(one.error), until)
    _record_pause(tx, stage, gate, one, "out of credit")


def _cool_down(tx: Transaction, lease: Lease, gate: Gate, asked_us: int | None, error: str | None) -> None:
    asked = asked_us or round(gate.spec.cool_seconds * 1e6)
    until = tx.now + min(asked, round(gate.spec.cool_most_seconds * 1e6))
    if gate.spec.adaptive and lease.since > gate.paced_at:
        # Once for all attempts that ran at the same pace.
        gate.slow_down(tx.now)
    if until > gate.cool_until:
        gate.cool_until = until
        record(tx, "cooled_down", lease.item, lease.stage, resource=gate.spec.name, until=until, error=error)


def _record_pause(tx: Transaction, stage: int, gate: Gate, one: FinishedAttempt, by: str) -> None:
    record(
        tx, "paused", one.lease.item, stage, resource=gate.spec.name, reason=gate.reason, until=gate.retry_after, by=by
    )


def _no_credit(error: str | None) -> str:
    return f"out of credit: {error or 'the provider said so'}"


def _settle_units(tx: Transaction, numbers: Sequence[int], finished: Sequence[FinishedAttempt]) -> None:
    """Replace estimated units by those used, in the token buckets."""
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
