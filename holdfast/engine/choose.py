"""Retry and cancel: what a person may do to many stages of items at once, chosen by filter.

Both work in stretches, each in a transaction of its own, and answer with counts. A row that changed between choosing and
acting is left alone: every act takes the row out of the table it was seen in, or does nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from holdfast.engine import ledger
from holdfast.engine.gates import hold_resources
from holdfast.engine.meet import parents_may_go_on
from holdfast.engine.register import layout
from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.faults import ERROR_LENGTH
from holdfast.model.pattern import Patterns, several
from holdfast.model.states import FINISHED, OPEN, PASSED, Rerun, State
from holdfast.store import Store, Transaction

CHUNK = 1000

#: What `retry` sends back unless told otherwise.
RETRIED = frozenset({State.FAILED, State.EXHAUSTED, State.CANCELLED})

_Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Which:
    """Which stages of items are meant. Everything that is given must hold."""

    pipeline: str | None = None
    stage: str | None = None
    states: frozenset[State] = frozenset()
    key: Patterns = None
    #: A part of the error's text.
    error: str | None = None
    older_than_us: int | None = None


@dataclass(frozen=True, slots=True)
class Who:
    """Who did it, and why; both go into the event, as far as they can be stored."""

    name: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", codec.plain_text(str(self.name), ERROR_LENGTH))
        object.__setattr__(self, "reason", codec.plain_text(str(self.reason), ERROR_LENGTH))


Counts = dict[str, int]


def retry(store: Store, which: Which, who: Who, *, dry_run: bool = False) -> Counts:
    """Send finished, delayed or held stages back to pending with all their attempts; return how many came from which
    state."""
    states = which.states or RETRIED
    if states & {State.PENDING, State.IN_PROGRESS}:
        raise UsageError(
            "retry takes finished stages, retry_later and on_hold; what is pending or in progress runs anyway"
        )
    count: Counter[str] = Counter()
    if State.ON_HOLD in states and not (dry_run or which.key or which.error or which.older_than_us):
        # Of a stage whose work is still being put on hold, the rest is meant, too.
        store.write(lambda tx: tx.run("end_hold_walks", stages=stages_of(tx, which)))
    if states & FINISHED:
        count += _walk(store, which, "choose_outcomes", states & FINISHED, _reopen, who, dry_run)
    for state, choose, take in (
        (State.RETRY_LATER, "choose_delayed", "take_delayed"), (State.ON_HOLD, "choose_held", "take_held"),
    ):  # fmt: skip
        if state in states:
            count += _walk(store, which, choose, {state}, _let_run(state, take), who, dry_run)
    return dict(count)


def cancel(store: Store, which: Which, who: Who, *, dry_run: bool = False) -> Counts:
    """Set open stages aside; whoever works on one of them loses the lease. A stage that was done before stays done."""
    states = which.states or OPEN
    if states - OPEN:
        raise UsageError(f"cancel takes what is {', '.join(sorted(OPEN))}; the rest is finished already")
    count: Counter[str] = Counter()
    ways = {
        State.PENDING: ("choose_waiting", "take_waiting"),
        State.RETRY_LATER: ("choose_delayed", "take_delayed"),
        State.ON_HOLD: ("choose_held", "take_held"),
        State.IN_PROGRESS: ("choose_leased", "revoke_leases"),
    }
    for state, (choose, take) in ways.items():
        if state in states:
            count += _walk(store, which, choose, {state}, _set_aside(state, take), who, dry_run)
    return dict(count)


_Act = Callable[[Transaction, list[tuple[Any, ...]], Who], Counter[str]]


def _walk(
    store: Store, which: Which, choose: str, states: Iterable[State], act: _Act, who: Who, dry_run: bool
) -> Counter[str]:
    count: Counter[str] = Counter()
    place: _Place | None = (0, 0)

    def step(tx: Transaction) -> tuple[Counter[str], _Place | None]:
        assert place is not None
        params: dict[str, Any] = {"states": sorted(states)} if choose == "choose_outcomes" else {}
        rows = tx.run(
            choose, stages=stages_of(tx, which), item=place[0], stage=place[1], keys=patterns_of(tx, which), error=which.error,
            before=None if which.older_than_us is None else tx.now - which.older_than_us, most=CHUNK, **params,
        )  # fmt: skip
        done = (
            Counter({str(state): n for state, n in _seen(rows, choose, states).items()})
            if dry_run
            else act(tx, rows, who)
        )
        return done, (rows[-1][0], rows[-1][1]) if len(rows) == CHUNK else None

    while place is not None:
        done, place = store.read(step) if dry_run else store.write(step)
        count += done
    return count


def _seen(rows: list[tuple[Any, ...]], choose: str, states: Iterable[State]) -> Counter[str]:
    if choose == "choose_outcomes":
        return Counter(row[2] for row in rows)
    [state] = states
    return Counter({str(state): len(rows)})


def patterns_of(tx: Transaction, which: Which) -> list[str]:
    """The keys that a filter means, as statements take them."""
    return [tx.store.driver.dialect.glob_pattern(key) for key in several(which.key) or ("*",)]


def stages_of(tx: Transaction, which: Which) -> list[int]:
    """The stages that a filter means."""
    known = layout(tx).chosen(which.pipeline, which.stage)
    # A stage that its pipeline no longer has is meant only if it is named: nobody would run what is sent back to it.
    return [row.id for row in known if which.stage is not None or row.active]


def _reopen(tx: Transaction, rows: list[tuple[Any, ...]], who: Who) -> Counter[str]:
    states = {(item, stage): state for item, stage, state in rows}
    unchanged = [
        (item, number)
        for stage, same in _by_stage(rows)
        for item, number, state in tx.run("lock_outcomes", stage=stage, items=[row[0] for row in same])
        if states[item, number] == state
    ]
    count: Counter[str] = Counter()
    for item, stage in tx.run_rows("reopen", unchanged, rerun=Rerun.ASKED):
        state = states[item, stage]
        count[state] += 1
        tx.count(stage, State(state), -1)
        tx.count(stage, State.PENDING, 1)
        _record(tx, "retried", item, stage, state, who)
    if count:
        # No other item has led to this.
        tx.run("forget_reruns", items=[item for item, _ in unchanged])
        tx.tell_idle_workers()
    return count


def _let_run(state: State, take: str) -> _Act:
    """What waits for a time, or is on hold, may be claimed now."""

    def act(tx: Transaction, rows: list[tuple[Any, ...]], who: Who) -> Counter[str]:
        count: Counter[str] = Counter()
        for stage, same in _by_stage(rows):
            taken = tx.run(take, stage=stage, items=[row[0] for row in same])
            # Whatever it was held for, from here on it may be done by any worker.
            most = Rerun.ASKED if state is State.ON_HOLD else Rerun.WAVE
            tx.run_rows("enter_waiting", [(item, stage, 0, alone, min(rerun, most)) for item, _, alone, rerun in taken])
            tx.count(stage, state, -len(taken))
            tx.count(stage, State.PENDING, len(taken))
            for item, *_ in taken:
                _record(tx, "retried", item, stage, state, who)
            count[state] += len(taken)
        if count.total():
            tx.tell_idle_workers()
        return +count

    return act


def _set_aside(state: State, take: str) -> _Act:
    def act(tx: Transaction, rows: list[tuple[Any, ...]], who: Who) -> Counter[str]:
        count: Counter[str] = Counter()
        if state is State.IN_PROGRESS:
            # Before the leases, as those who end their work do it.
            hold_resources(tx, {row[1] for row in rows})
        for stage, same in _by_stage(rows):
            taken = tx.run(take, stage=stage, items=[row[0] for row in same])
            tx.count(stage, state, -len(taken))
            if state is State.IN_PROGRESS:
                ledger.doubt(tx, [(lease, item, stage) for item, *_, lease in taken], "it was cancelled during the call")
            earlier = {
                item: State(old)
                for item, old, *_ in tx.run("read_outcome_states", stage=stage, items=[row[0] for row in taken])
            } if any(row[3] for row in taken) else {}  # fmt: skip
            outcomes = []
            for item, attempts, *_ in taken:
                count[state] += 1
                old = earlier.get(item)
                stays = old if old in PASSED else None
                _record(tx, "cancelled", item, stage, state, who, stays=stays)
                # If only a re-run is cancelled, what it would have replaced still stands.
                tx.count(stage, stays or State.CANCELLED, 1)
                if stays is None:
                    outcomes.append(_cancelled(tx, item, stage, attempts, who))
            tx.run_rows("replace_outcomes", outcomes)
            parents_may_go_on(tx, stage, [row[0] for row in taken])
        return count

    return act


def _by_stage(rows: list[tuple[Any, ...]]) -> Iterable[tuple[int, list[tuple[Any, ...]]]]:
    for stage, same in groupby(sorted(rows, key=lambda row: (row[1], row[0])), key=lambda row: row[1]):
        yield stage, list(same)


def _cancelled(tx: Transaction, item: int, stage: int, attempts: int, who: Who) -> tuple[Any, ...]:
    """An outcome row, as `replace_outcomes` wants it."""
    unknown = (None, None, None)
    return (item, stage, State.CANCELLED, attempts, None, None, tx.now, *unknown, 0, 1, who.reason or None, None)


def _record(tx: Transaction, event: str, item: int, stage: int, state: str, who: Who, **more: Any) -> None:
    facts = {
        "was": str(state),
        "by": who.name,
        "reason": who.reason,
        **{k: v for k, v in more.items() if v is not None},
    }
    tx.record(event, pipeline=layout(tx).stages[stage].pipeline, item=item, stage=stage, **facts)
