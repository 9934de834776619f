"""Retry and cancel: what a person may do to many stages of items at once, chosen by filter.

Each is a kind of action (`engine.actions`): it chooses the next chunk and acts on it in the same transaction. A row that
changed between choosing and acting is left alone: every act takes the row out of the table it was seen in, or does nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from holdfast.engine import ledger
from holdfast.engine.fan_in import begin_waiting_parents
from holdfast.engine.finish_leases import write_outcomes
from holdfast.engine.layout import record
from holdfast.engine.reopen import reopen as send_back
from holdfast.engine.resource_state import lock_resources
from holdfast.engine.selection import ActionPlace, Chosen, Meant, Selected, Who, beginning, choose, some_of
from holdfast.errors import UsageError
from holdfast.model.item_filter import Which
from holdfast.model.states import FINISHED, OPEN, PASSED, Rerun, State
from holdfast.store import Transaction

#: The states that `retry` sends back by default.
RETRIED = frozenset({State.FAILED, State.EXHAUSTED, State.CANCELLED})


@dataclass(frozen=True, slots=True)
class _OnStages:
    """An action on selected stages, by default on those in these states; counted by the state they came from."""

    by_default: ClassVar[frozenset[State]]
    which: Which

    @property
    def _states(self) -> frozenset[State]:
        return self.which.states or self.by_default

    def choose(self, tx: Transaction, place: ActionPlace) -> Selected:
        return choose(tx, self.which, self._states, place)

    def count(self, tx: Transaction, rows: list[Chosen]) -> Counter[str]:
        return Counter(row.state for row in rows)

    def meant(self, rows: list[Chosen]) -> list[Meant]:
        return [Meant(row.item, row.stage, row.state) for row in rows]

    def look_ahead(self, tx: Transaction, place: ActionPlace, most: int) -> tuple[list[Chosen], bool] | None:
        if place.before is not None:
            return None
        rows, more = some_of(tx, self.which, self._states, place, most)
        return [Chosen(*row) for row in rows], more


@dataclass(frozen=True, slots=True)
class RetryStages(_OnStages):
    """Send finished, delayed or held stages back to pending with all their attempts; counted by the state they came from."""

    name: ClassVar[str] = "retry"
    event: ClassVar[str] = "retried"
    by_default: ClassVar[frozenset[State]] = RETRIED

    def begin(self, tx: Transaction) -> ActionPlace:
        if self._states & {State.PENDING, State.IN_PROGRESS}:
            raise UsageError(
                "retry takes finished stages, retry_later and on_hold; what is pending or in progress runs anyway"
            )
        return beginning(tx, self.which)

    def act(self, tx: Transaction, rows: list[Chosen], who: Who) -> Counter[str]:
        count = reopen(tx, [row for row in rows if row.state in FINISHED], who)
        for state, take in ((State.RETRY_LATER, "take_delayed"), (State.ON_HOLD, "take_held")):
            count += let_run(tx, [row for row in rows if row.state == state], state, take, who)
        return count


@dataclass(frozen=True, slots=True)
class CancelStages(_OnStages):
    """Cancel open stages; a worker that is running one of them loses its lease. A stage that was done before stays done."""

    name: ClassVar[str] = "cancel"
    event: ClassVar[str] = "cancelled"
    by_default: ClassVar[frozenset[State]] = OPEN

    def begin(self, tx: Transaction) -> ActionPlace:
        if self._states - OPEN:
            raise UsageError(f"cancel takes what is {', '.join(sorted(OPEN))}; the rest is finished already")
        return beginning(tx, self.which)

    def act(self, tx: Transaction, rows: list[Chosen], who: Who) -> Counter[str]:
        return set_aside(tx, rows, who, PASSED)


def reopen(tx: Transaction, rows: list[Chosen], who: Who) -> Counter[str]:
    """Reopen finished stages that have not changed since they were chosen."""
    states = {(item, stage): state for item, stage, state in rows}
    unchanged = {
        (item, number): (State(state), version, type_)
        for stage, same in _by_stage(rows)
        for item, number, state, version, type_ in tx.run(
            "lock_outcomes", stage=stage, items=[row.item for row in same]
        )
        if states[item, number] == state
    }
    count: Counter[str] = Counter()
    for item, stage in send_back(tx, unchanged, Rerun.ASKED):
        state = states[item, stage]
        count[state] += 1
        _record(tx, "retried", item, stage, state, who)
    if count:
        # A person, and no other item, has caused this.
        tx.run("forget_reruns", items=[item for item, _ in unchanged])
        tx.tell_idle_workers()
    return count


def let_run(tx: Transaction, rows: list[Chosen], state: State, take: str, who: Who) -> Counter[str]:
    """Let delayed or held work be claimed now."""
    count: Counter[str] = Counter()
    for stage, same in _by_stage(rows):
        taken = tx.run(take, stage=stage, items=[row.item for row in same])
        # Whatever it was held for, any worker may do it now.
        most = Rerun.ASKED if state is State.ON_HOLD else Rerun.WAVE
        back = [(item, stage, 0, alone, min(rerun, most)) for item, _, alone, rerun in taken]
        tx.run_rows("enter_waiting", back, since=tx.now)
        tx.count(stage, state, -len(taken))
        tx.count(stage, State.PENDING, len(taken))
        for item, *_ in taken:
            _record(tx, "retried", item, stage, state, who)
        count[str(state)] += len(taken)
    if count.total():
        tx.tell_idle_workers()
    return +count


#: How open work is taken, by its state. Leases first, in the same order as a worker that completes work.
_TAKE = {
    State.IN_PROGRESS: "revoke_leases",
    State.PENDING: "take_waiting",
    State.RETRY_LATER: "take_delayed",
    State.ON_HOLD: "take_held",
}


def set_aside(tx: Transaction, rows: list[Chosen], who: Who, stands: frozenset[State]) -> Counter[str]:
    """Take open work away. If it is a rerun, and the earlier outcome is one of those that stand, that outcome stays; everything
    else becomes cancelled."""
    count: Counter[str] = Counter()
    # Resources before leases, in the same order as a worker that completes work.
    lock_resources(tx, {row.stage for row in rows if row.state == State.IN_PROGRESS})
    for state, take in _TAKE.items():
        for stage, same in _by_stage(row for row in rows if row.state == state):
            taken = tx.run(take, stage=stage, items=[row.item for row in same])
            tx.count(stage, state, -len(taken))
            count[str(state)] += len(taken)
            if state is State.IN_PROGRESS:
                ledger.doubt(
                    tx, [(lease, item, stage) for item, *_, lease in taken], "it was cancelled during the call"
                )
            _end(tx, stage, state, taken, who, stands)
            begin_waiting_parents(tx, stage, [row[0] for row in taken])
    return +count


def _end(
    tx: Transaction, stage: int, state: State, taken: list[tuple[Any, ...]], who: Who, stands: frozenset[State]
) -> None:
    earlier = (
        {
            item: (State(old), version, type_)
            for item, old, _, version, type_ in tx.run(
                "read_outcome_states", stage=stage, items=[row[0] for row in taken]
            )
        }
        if any(row[3] for row in taken)
        else {}
    )
    outcomes = []
    for item, attempts, *_ in taken:
        old, version, type_ = earlier.get(item, (None, None, None))
        stays = old if old in stands else None
        _record(tx, "cancelled", item, stage, state, who, stays=stays)
        tx.count(stage, stays or State.CANCELLED, 1, version=version, type=type_)
        if stays is None:
            outcomes.append(_cancelled(tx, item, stage, attempts, who))
    write_outcomes(tx, "replace_outcomes", outcomes)


def _by_stage(rows: Iterable[Chosen]) -> Iterable[tuple[int, list[Chosen]]]:
    for stage, same in groupby(sorted(rows, key=lambda row: (row.stage, row.item)), key=lambda row: row.stage):
        yield stage, list(same)


def _cancelled(tx: Transaction, item: int, stage: int, attempts: int, who: Who) -> tuple[Any, ...]:
    """An outcome for `write_outcomes`."""
    unknown = (None, None, None)
    nothing = (None, None, None)
    return (item, stage, State.CANCELLED, attempts, None, None, tx.now, *unknown, 0, 1, who.reason or None, *nothing)


def _record(tx: Transaction, event: str, item: int, stage: int, state: str, who: Who, **more: Any) -> None:
    facts = {"was": str(state), **who.facts, **{k: v for k, v in more.items() if v is not None}}
    record(tx, event, item, stage, **facts)
