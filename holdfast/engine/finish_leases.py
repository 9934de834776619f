"""Finish: the attempt as a worker reports it, and the first step of recording it, which ends the lease.

Finishing means deleting the lease, or moving it on to the next stage. It names both the lease and the stage, so that a
repeated completion of one stage cannot finish the next. Without the row, the lease was lost and nothing of the attempt is
written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.engine import ledger
from holdfast.engine.claim import NOTHING_YET, Lease
from holdfast.engine.layout import layout, record
from holdfast.model import codec
from holdfast.model.declared_reads import tagged
from holdfast.model.duration_buckets import bucket
from holdfast.model.error_fingerprint import Cause
from holdfast.model.layout import StageRow
from holdfast.model.paid_call import NO_FACTS, CallFacts, Paid
from holdfast.model.states import FINISHED, PASSED, WORDS, State
from holdfast.model.user_event import UserEvent
from holdfast.store import Transaction

#: How attempts end beside the states that are an end: with another attempt to come, without a result of any kind, or too late.
RETRIED, HANDED_BACK, LOST = "retried", "handed_back", "lost"


class AttemptEffect(NamedTuple):
    """The user's function that writes rows in the transaction that completes the stage."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


class FollowOn(NamedTuple):
    """An item to add in the transaction that completes the stage."""

    pipeline: str
    key: str
    data: str
    when_exists: str
    child: bool
    #: The fingerprint of the type that the data was checked against.
    type: str | None = None
    #: The span that adds it.
    traceparent: str | None = None


class Cost(NamedTuple):
    """Money spent by an attempt, in millionths."""

    amount: int
    resource: str | None
    facts: CallFacts = NO_FACTS


class FinishedAttempt(msgspec.Struct, eq=False, gc=False):
    """An attempt that has ended: DONE, SKIPPED, FAILED, or back to an open state."""

    lease: Lease
    #: PENDING hands the work back unchanged; ON_HOLD waits for a person to decide about a paid call in doubt.
    state: State
    version: str = ""
    result: str | None = None
    output_hash: str | None = None
    error: str | None = None
    traceback: str | None = None
    #: The cause of the failure, if it failed.
    cause: Cause | None = None
    #: The delay before the next attempt, for RETRY_LATER; a snooze was asked for by the handler and uses up no attempt.
    delay_us: int = 0
    snooze: bool = False
    #: The delay before the next attempt if an effect fails at the very end.
    backoff_us: int = 0
    #: How long the handler ran, for how many items at once, and how long after the lease was granted it started.
    took_us: int = 0
    share: int = 1
    waited_us: int = 0
    #: How many items may have caused the failure.
    company: int = 1
    #: What else belongs to this attempt: the user's row writes, follow-on items, money spent, events.
    effects: Sequence[AttemptEffect] = ()
    follow_ons: Sequence[FollowOn] = ()
    costs: Sequence[Cost] = ()
    events: Sequence[UserEvent] = ()
    #: The units it has actually used.
    used: Mapping[str, int | float] = NOTHING_YET
    #: A provider asked for a pause of this length, which applies to every worker; or the account is out of credit; or it
    #: refused the API key, which may have worked since it was last refused. None of these is the item's fault.
    cool_us: int | None = None
    out_of_credit: bool = False
    key_refused: bool = False
    key_worked: bool = False
    #: The resource that the call names, if any. Whether the stage is paused itself where it uses none: not after a reply to a
    #: plain request, which may come from any of many servers.
    limited_resource: str | None = None
    pauses_stage: bool = False
    #: The provider works and this request was wrong: no vote for the breaker. Conversely, answers that were rejected too often
    #: are a vote, although they end the item.
    item_at_fault: bool = False
    rejected: bool = False
    #: Why the stage is to be paused until a person resumes it.
    stop_stage: str | None = None
    #: The common case: it passed for the first time, and has nothing to record but its result.
    routine: bool = False
    #: Set when the lease was lost: nothing of this attempt was saved.
    lost: bool = False
    #: The process that ran it has already committed it: there is nothing left to write.
    saved: bool = False
    #: The fingerprint of the type that the result was checked against.
    type: str | None = None

    @property
    def started_at(self) -> int:
        return self.lease.since + self.waited_us


def named_resources(finished: Iterable[FinishedAttempt]) -> list[str | None]:
    """The resources that calls and payments of these attempts name; those that are routine have none."""
    return [
        name
        for one in finished
        if not one.routine
        for name in (one.limited_resource, *(cost.resource for cost in one.costs))
    ]


def end_leases(tx: Transaction, stage: int, finished: Sequence[FinishedAttempt]) -> list[FinishedAttempt]:
    """Delete the leases, and return the attempts whose lease was still held."""
    lost = tx.run("take_leases", stage=stage, leases=[one.lease.id for one in finished])
    tx.count(stage, State.IN_PROGRESS, len(lost) - len(finished))
    return _without_lost(tx, stage, finished, lost)


def move_leases(tx: Transaction, stage: int, onward: int, finished: Sequence[FinishedAttempt]) -> list[FinishedAttempt]:
    """Move the leases to the next stage, and return the attempts whose lease was still held."""
    lost = tx.run("move_leases", stage=stage, next=onward, leases=[one.lease.id for one in finished], now=tx.now)
    tx.count(stage, State.IN_PROGRESS, len(lost) - len(finished))
    tx.count(onward, State.IN_PROGRESS, len(finished) - len(lost))
    return _without_lost(tx, stage, finished, lost)


def save_outcomes(tx: Transaction, stage: int, finished: Sequence[FinishedAttempt], *, timed: bool = True) -> None:
    """Save outcomes, with their costs, of attempts whose leases ended in this transaction.

    `timed`: whether their worker has lived to say how long they took.
    """
    row = layout(tx).stages[stage]
    odd = [one for one in finished if not one.routine]
    for state, version, type_, same in _alike(finished):
        routine = [one for one in same if one.routine] if odd else same
        tx.run_rows(
            "insert_routine",
            _routine_rows(row, routine),
            stage=stage,
            version=version,
            type=type_,
            state=WORDS[State.DONE],
            cost=0,
            life=1,
        )
        times = [one.took_us for one in same]
        if timed:
            tx.ended.append((stage, WORDS[state], same))
            _count_times(tx, stage, state, version, type_, times)
        else:
            tx.count(stage, state, len(times), version=version, type=type_)
    if odd:
        paid = _settle_memos(tx, stage, odd)
        write_outcomes(tx, "insert_outcomes", [_row(row, one, paid) for one in odd if not one.lease.rerun])
        write_outcomes(tx, "replace_outcomes", [_row(row, one, paid) for one in odd if one.lease.rerun])


def write_outcomes(tx: Transaction, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Write outcomes, each with the columns of the statement and its error group at the end, which is set afterwards. On SQLite
    a trigger lists the stages of a group when the column changes: one for every new row would be called for every step."""
    tx.run_rows(statement, [row[:-1] for row in rows])
    tx.run_rows("set_error_groups", [(row[0], row[1], row[-1]) for row in rows if row[-1] is not None])


def _alike(finished: Sequence[FinishedAttempt]) -> list[tuple[State, str, str | None, Sequence[FinishedAttempt]]]:
    """The attempts that have state, version and type in common; nearly always all of them."""
    first = finished[0]
    state, version, type_ = first.state, first.version, first.type
    # By identity, which is quicker: attempts at one stage have them from the same place.
    if not [one for one in finished if one.version is not version or one.state is not state or one.type is not type_]:
        return [(state, version, type_, finished)]
    found: dict[tuple[State, str, str | None], list[FinishedAttempt]] = {}
    for one in finished:
        found.setdefault((one.state, one.version, one.type), []).append(one)
    return [(*what, same) for what, same in found.items()]


def record_costs(tx: Transaction, stage: int, finished: Sequence[FinishedAttempt]) -> None:
    """Record costs, however the attempt ended."""
    if calls := _payments(stage, finished):
        ledger.enter(tx, calls)


def count_saved(tx: Transaction, finished: Sequence[FinishedAttempt]) -> None:
    """Have attempts counted that a child process has committed itself."""
    for one in finished:
        otherwise = RETRIED if one.state == State.RETRY_LATER else HANDED_BACK
        outcome = LOST if one.lost else WORDS[one.state] if one.state in FINISHED else otherwise
        tx.ended.append((one.lease.stage, outcome, [one]))
        if not one.lost and (calls := _payments(one.lease.stage, [one])):
            ledger.entered_elsewhere(tx, calls)


def _payments(stage: int, finished: Sequence[FinishedAttempt]) -> list[ledger.NewCall]:
    return [
        ledger.NewCall(
            stage, one.lease.item, "", Paid.DONE, one.lease.id, one.lease.life, cost.amount, cost.resource, cost.facts
        )
        for one in finished
        for cost in one.costs
    ]


def record_user_events(tx: Transaction, stage: int, finished: Sequence[FinishedAttempt]) -> None:
    """Record the handlers' own events, however the attempt ended."""
    for one in finished:
        for event in one.events:
            record(tx, event.name, one.lease.item, stage, attempt=one.lease.attempt, **event.facts)


def made_from(row: StageRow, lease: Lease) -> str:
    """The hash of an attempt's input, as it is recorded."""
    number = row.readings.number
    if not number:
        return input_hash(lease.data_hash, lease.inputs) if lease.inputs else lease.data_hash
    return tagged(number, input_hash(row.readings.now.digest(codec.decode(lease.data)), lease.inputs))


def input_hash(data_hash: str, inputs: Mapping[int, str]) -> str:
    """The hash of a stage's input: what it reads of the item's data, and the outputs of its predecessors."""
    if not inputs:
        return data_hash
    if len(inputs) == 1:
        [(stage, output)] = inputs.items()
        return codec.digest_of(f"{data_hash} {stage}:{output}".encode())
    outputs = " ".join([f"{stage}:{output}" for stage, output in sorted(inputs.items())])
    return codec.digest_of(f"{data_hash} {outputs}".encode())


def _settle_memos(tx: Transaction, stage: int, finished: Sequence[FinishedAttempt]) -> dict[int, int]:
    """Remove the memos of stages that have passed; return what they cost, by item."""
    remembered = [one for one in finished if one.lease.memos]
    passed = [one.lease.item for one in remembered if one.state in PASSED]
    if passed:
        tx.run("forget_memos", stage=stage, items=passed)
    return {one.lease.item: sum(memo.cost or 0 for memo in one.lease.memos.values()) for one in remembered}


def _row(row: StageRow, one: FinishedAttempt, paid: Mapping[int, int]) -> tuple[Any, ...]:
    lease, state = one.lease, one.state
    cost = paid.get(lease.item, 0) + sum(cost.amount for cost in one.costs)
    return (
        lease.item,
        row.id,
        WORDS[state],
        lease.attempt,
        lease.id,
        one.started_at,
        one.started_at + one.took_us,
        one.version,
        made_from(row, lease) if state in PASSED else None,
        one.output_hash,
        cost,
        lease.life,
        one.error,
        one.result,
        one.type,
        one.cause.group if one.cause and state not in PASSED else None,
    )


def _routine_rows(row: StageRow, finished: Sequence[FinishedAttempt]) -> list[tuple[Any, ...]]:
    """The columns that differ between the outcomes of routine attempts."""
    rows: list[tuple[Any, ...]] = []
    for one in finished:
        lease = one.lease
        started_at = lease.since + one.waited_us
        rows.append(
            (
                lease.item,
                lease.attempt,
                lease.id,
                started_at,
                started_at + one.took_us,
                made_from(row, lease),
                one.output_hash,
                one.result,
            )
        )
    return rows


def _count_times(
    tx: Transaction, stage: int, state: State, version: str, type_: str | None, times: Sequence[int]
) -> None:
    """Count attempts that ended in this state, in buckets by how long they took."""
    # Of many quick attempts most took equally long.
    buckets: dict[int, list[tuple[int, int]]] = {}
    for took_us, n in Counter(times).items():
        buckets.setdefault(bucket(took_us), []).append((took_us, n))
    for number, took in buckets.items():
        tx.count(
            stage,
            state,
            sum(n for _, n in took),
            version=version,
            type=type_,
            bucket=number,
            took_us=sum(took_us * n for took_us, n in took),
            most_us=max(took_us for took_us, _ in took),
        )


def _without_lost(
    tx: Transaction, stage: int, finished: Sequence[FinishedAttempt], lost: Sequence[tuple[int]]
) -> list[FinishedAttempt]:
    if not lost:
        return list(finished)
    gone = {lease for (lease,) in lost}
    tx.ended.append((stage, LOST, [one for one in finished if one.lease.id in gone]))
    for one in finished:
        one.lost = one.lease.id in gone
        if one.lost:
            record(
                tx,
                "lease_lost",
                one.lease.item,
                stage,
                lease=one.lease.id,
                attempt=one.lease.attempt,
                refused=str(one.state),
            )
    return [one for one in finished if not one.lost]
