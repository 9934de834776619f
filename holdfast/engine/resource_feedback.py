"""Settle: what the end of attempts means for the resources they used.

Reserved money is freed, estimated units are replaced by those used, failures count for the circuit breaker, and a pause that
a provider asked for applies to every worker. What a provider says is about one resource: that of the call
(`Layout.resource_of_call`), or the stage itself if there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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


#: The resource that a provider meant, and the attempt that it asked for a pause, or for money.
_Limited = tuple[int, FinishedAttempt]


class AskedPause(NamedTuple):
    """A pause that the headers of an answer asked for: nothing is left until then."""

    us: int
    #: The resource that the call names, if any.
    resource: str | None


def heed(tx: Transaction, lease: Lease, pause: AskedPause) -> None:
    """Have every worker wait, while the attempt that has heard of it goes on."""
    row = layout(tx).stages[lease.stage]
    why = "the headers of an answer say that nothing is left"
    number = _resource_of_call(tx, row, pause.resource)
    if number is None:
        _pause_stage_until(tx, row, tx.now + pause.us, why)
        return
    gate = lock_gates(tx, [number])[number]
    _cool_down(tx, lease, gate, pause.us, why)
    save_gates(tx, [gate])


def key_accepted(tx: Transaction, calls: Collection[tuple[int, str | None]]) -> None:
    """A provider has answered calls of these stages, which may name a resource: refusals are no longer in a row."""
    known = layout(tx)
    _end_refusals(tx, {(stage, _resource_of_call(tx, known.stages[stage], named)) for stage, named in calls})


def _end_refusals(tx: Transaction, about: Collection[tuple[int, int | None]]) -> None:
    """Of these resources or, where there is none, of these stages."""
    if numbers := {number for _, number in about if number is not None}:
        tx.run("clear_refusals", ids=sorted(numbers))
    for stage in sorted({stage for stage, number in about if number is None}):
        tx.run("clear_stage_refusals", stage=stage)


def settle(tx: Transaction, stage: int, finished: Sequence[FinishedAttempt]) -> None:
    """Settle attempts at a stage that ended in this transaction. A stage without resources costs nothing here."""
    known = layout(tx)
    limited: list[_Limited] = []
    if odd := [one for one in finished if not one.routine]:
        limited = _settle_odd(tx, known.stages[stage], odd)
    numbers = known.resources_of(stage)
    if limited or (finished and numbers):
        _settle_resources(tx, stage, numbers, finished, limited)


def _settle_odd(tx: Transaction, row: StageRow, finished: Sequence[FinishedAttempt]) -> list[_Limited]:
    """What attempts that are not routine mean for the ledger and for the stage as a whole; returns those that mean something
    for a resource."""
    # A call that an attempt leaves open may have been charged, however the attempt ended.
    begun = [(one.lease.id, one.lease.item, row.id) for one in finished if one.lease.has_open_call]
    ledger.doubt(tx, begun, "the attempt ended without an answer")
    if stop := next((one.stop_stage for one in finished if one.stop_stage and not row.paused), None):
        pause(tx, row.label, Who("holdfast", stop))
    limited, without_resource = [], []
    for one in finished:
        if one.cool_us is not None or one.out_of_credit:
            number = _resource_of_call(tx, row, one.limited_resource)
            if number is None:
                without_resource.append(one)
            else:
                limited.append((number, one))
    _pause_stage(tx, row, without_resource)
    refused: dict[int | None, list[FinishedAttempt]] = {}
    for one in finished:
        if one.key_refused:
            refused.setdefault(_resource_of_call(tx, row, one.limited_resource), []).append(one)
    for resource, its in refused.items():
        _count_refusals(tx, row, resource, its)
    return limited


def _pause_stage(tx: Transaction, row: StageRow, finished: Sequence[FinishedAttempt]) -> None:
    """A provider says wait, or pay, and there is no resource to pause: the stage is paused."""
    limited = [one for one in finished if one.out_of_credit or one.pauses_stage]
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


def _settle_resources(
    tx: Transaction,
    stage: int,
    numbers: Sequence[int],
    finished: Sequence[FinishedAttempt],
    limited: Sequence[_Limited],
) -> None:
    """The stage uses the resources with these numbers; a call may have named others."""
    known = layout(tx)
    specs = [known.resources[number].spec for number in numbers]
    if numbers:
        # Even if the budget is gone: it may come back while the lease goes on to the next stage.
        tx.run("drop_reservations", leases=[one.lease.id for one in finished])
    if any(spec.concurrency is not None for spec in specs):
        tx.tell_idle_workers()
    if any(spec.units for spec in specs):
        _settle_units(tx, numbers, finished)
    votes = _votes(finished)
    if limited or (votes and any(spec.breaker for spec in specs)):
        gates = lock_gates(tx, {*numbers, *(number for number, _ in limited)})
        _move_breakers(tx, stage, [gates[number] for number in numbers], votes)
        for number, one in limited:
            _follow_provider(tx, stage, gates[number], one)
        save_gates(tx, gates.values())


def _count_refusals(tx: Transaction, row: StageRow, resource: int | None, refused: Sequence[FinishedAttempt]) -> None:
    """Pause the resource after several refused keys in a row: nobody tries the key until a person resumes it. Without a
    resource, the stage is paused itself."""
    error = f"the provider does not accept the key: {refused[-1].error}"
    if any(one.key_worked for one in refused):
        _end_refusals(tx, {(row.id, resource)})
    if resource is None:
        [(times,)] = tx.run("count_stage_refusals", stage=row.id, n=len(refused))
        if times >= REFUSALS and not row.paused:
            pause(tx, row.label, Who("key refused", error))
        return
    [(_, times)] = tx.run("count_refusals", ids=[resource], n=len(refused))
    if times < REFUSALS:
        return
    gate = lock_gates(tx, [resource])[resource]
    if gate.paused != BY_PERSON or gate.retry_after is not None:
        gate.pause(BY_PERSON, error, None)
        _record_pause(tx, row.id, gate, refused[-1], "key refused")
        save_gates(tx, [gate])


def _resource_of_call(tx: Transaction, row: StageRow, named: str | None) -> int | None:
    """The number of the resource that a call is about; None if the stage itself is meant."""
    known = layout(tx)
    found = known.resource(known.resource_of_call(row, named))
    return None if found is None else found.id


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


def _move_breakers(tx: Transaction, stage: int, gates: Sequence[Gate], votes: Sequence[tuple[int, bool]]) -> None:
    """Count votes for every circuit breaker, which may open or close it."""
    for gate in gates:
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


def _follow_provider(tx: Transaction, stage: int, gate: Gate, one: FinishedAttempt) -> None:
    """Make every worker wait as long as a provider asked one of them to."""
    if one.out_of_credit:
        _out_of_credit(tx, stage, gate, one)
    else:
        _cool_down(tx, one.lease, gate, one.cool_us, one.error)


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
