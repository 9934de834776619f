"""Claim: turn waiting rows into leases. The worker that deletes the row owns the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.engine.layout import layout
from holdfast.errors import Permanent
from holdfast.model import codec
from holdfast.model.layout import Layout
from holdfast.model.states import PASSED, State
from holdfast.store import AtOnce, Transaction
from holdfast.store.driver import Row

T = TypeVar("T")

#: Shared by all leases without such facts, which are most.
NOTHING_YET: Mapping[Any, Any] = MappingProxyType({})

#: Results longer than this are read when a handler asks for them, not with the claim.
EAGER_RESULT = 16_384


class Lease(msgspec.Struct, eq=False, gc=False):
    """The right to run one attempt, and what the handler needs. The id is the fencing token."""

    id: int
    item: int
    stage: int
    attempt: int
    alone: int
    rerun: int
    key: str
    data: str
    #: When it was granted or moved on, on the clock of the store.
    since: int
    #: Results of earlier stages, as far as they have been read, and the hashes of all of them.
    results: Mapping[int, str] = NOTHING_YET
    inputs: Mapping[int, str] = NOTHING_YET
    #: Which life of the stage this is: a rerun of a passed stage begins a new one.
    life: int = 1
    _data_hash: str | None = None
    #: Memos of earlier attempts in this life, by name.
    memos: Mapping[str, Memo] = NOTHING_YET
    #: The expected use of its resources, by unit; and why that is unknown, if it is.
    units: Mapping[str, float] = NOTHING_YET
    unsure: str | None = None
    #: When the work became ready to be claimed; 0 if that is not known.
    ready_at: int = 0
    #: The span that added the item, in a worker that traces.
    traceparent: str | None = None

    def read_data(self) -> Any:
        """A fresh copy of the item's data; also computes its hash. Raises Permanent if the data cannot be read."""
        if not isinstance(data := codec.decode_if_possible(self.data), dict):
            raise Permanent(
                f"items {self.item}: its data cannot be read: something other than holdfast has written it; "
                "`holdfast db check` names all such rows"
            )
        if self._data_hash is None:
            self._data_hash = codec.digest(data)
        return data

    @property
    def data_hash(self) -> str:
        if self._data_hash is None:
            self.read_data()
        assert self._data_hash is not None
        return self._data_hash

    @property
    def is_first(self) -> bool:
        """Whether this is the first life of the stage, without memos yet."""
        return not (self.rerun or self.memos)

    def remember(self, name: str, memo: Memo | None) -> None:
        """Keep the memo of a sub-step in this life of the stage; None removes it."""
        others = {other: kept for other, kept in self.memos.items() if other != name}
        self.memos = others if memo is None else {**others, name: memo}

    @property
    def has_paid(self) -> bool:
        """Whether a paid call of this life of the stage is recorded."""
        return any(memo.call is not None for memo in self.memos.values())

    @property
    def has_open_call(self) -> bool:
        """Whether a paid call was started and its end is not recorded."""
        return any(memo.state == "intended" for memo in self.memos.values())

    def moved_on(self, stage: int, now: int, result: str | None, output_hash: str | None) -> Lease:
        """The same lease at the next stage, with the result of this one."""
        if result is None:
            results = self.results
        else:
            results = {**self.results, self.stage: result} if self.results else {self.stage: result}
        return Lease(
            self.id,
            self.item,
            stage,
            1,
            0,
            0,
            self.key,
            self.data,
            now,
            results,
            {self.stage: output_hash or ""},
            1,
            self._data_hash,
            ready_at=now,
        )


class Memo(NamedTuple):
    """The memo of a named sub-step: `done` with its value, only `intended`, or `rejected` and to be called again."""

    state: str
    version: str
    idempotency_key: str
    cost: int | None
    value: str | None
    #: The row of the ledger, for a paid one.
    call: int | None = None
    #: How many answers have been rejected in this life of the stage.
    rejections: int = 0
    estimate: int | None = None


class Look(NamedTuple):
    """Where there is something to claim."""

    generation: int
    waiting: set[int]
    #: Stages with work on hold for workers with the registered version.
    held: set[int]


def look_for_work(tx: Transaction, stages: Sequence[int]) -> Look:
    """The generation, and the stages with something to claim. One statement."""
    [(_, generation), *found] = tx.run("look_for_work", stages=list(stages))
    return Look(generation, {stage for stage, held in found if not held}, {stage for stage, held in found if held})


def peek(tx: Transaction, stage: int, most: int, *, held: bool) -> list[Row]:
    """What a claim would take now: number, key, data and attempts; with `held`, also what is on hold for a version."""
    rows = tx.run("peek_waiting", stage=stage, most=most)
    return [*rows, *tx.run("peek_held", stage=stage, most=most - len(rows))] if held else rows


def claim(tx: Transaction, worker: int, stage: int, most: int) -> list[Lease]:
    """Take up to `most` waiting items of a stage, best first. The attempt counts from here, whatever happens."""
    return _granted(tx, stage, tx.run("claim", stage=stage, worker=worker, most=most, now=tx.now))


def claim_at_once(
    known: Layout,
    worker: int,
    stage: int,
    most: int,
    held: Callable[[int], bool],
    read: Callable[[Callable[[Transaction], None]], None],
    wrap: Callable[[list[Lease], int], T],
) -> AtOnce[T]:
    """The same with one statement, for a stage without predecessors. `held` tells which leases the worker knows of."""

    def take(rows: list[Row], now: int) -> T:
        leases = _leases(stage, rows, now)
        if any(row[-1] or lease.rerun for row, lease in zip(rows, leases, strict=True)):
            read(lambda tx: _tell_of_earlier(tx, stage, rows, leases))
        return wrap(leases, now)

    def find(tx: Transaction) -> T:
        rows = [row for row in tx.run("leases_at", stage=stage, worker=worker) if not held(row[0])]
        leases = _leases(stage, rows, tx.now)
        _tell_of_earlier(tx, stage, rows, leases)
        return wrap(leases, tx.now)

    params = {"stage": stage, "worker": worker, "most": most, "generation": known.generation}
    return AtOnce("claim_at_once", params, (), take, find, like="claim", op="cycle")


def claim_these(tx: Transaction, worker: int, stage: int, items: list[int]) -> list[Lease]:
    """Take those of the items that are still waiting at a stage."""
    return _granted(tx, stage, tx.run("claim_these", stage=stage, worker=worker, items=items, now=tx.now))


def _granted(tx: Transaction, stage: int, rows: Sequence[Row]) -> list[Lease]:
    if not rows:
        return []
    tx.count(stage, State.PENDING, -len(rows))
    tx.count(stage, State.IN_PROGRESS, len(rows))
    leases = _leases(stage, rows, tx.now)
    before = layout(tx).parents(stage)
    if before:
        by_item = {lease.item: lease for lease in leases}
        found = tx.run("read_results", items=list(by_item), stages=list(before), most=EAGER_RESULT)
        for item, parent, output, result in found:
            lease = by_item[item]
            lease.inputs = {**lease.inputs, parent: output or ""}
            if result is not None:
                lease.results = {**lease.results, parent: result}
    _tell_of_earlier(tx, stage, rows, leases)
    return leases


def _leases(stage: int, rows: Sequence[Row], now: int) -> list[Lease]:
    return [
        Lease(id_, item, stage, attempt, alone, rerun, key, data, now, ready_at=ready_at)
        for id_, item, attempt, alone, rerun, key, data, ready_at, _ in rows
    ]


def _tell_of_earlier(tx: Transaction, stage: int, rows: Sequence[Row], leases: Sequence[Lease]) -> None:
    """Read memos of earlier attempts, and the life of each stage, where there were any."""
    _recall(tx, stage, {row[1]: lease for row, lease in zip(rows, leases, strict=True) if row[-1]})
    _revive(tx, stage, {lease.item: lease for lease in leases if lease.rerun})


def _recall(tx: Transaction, stage: int, leases: dict[int, Lease]) -> None:
    """Read the memos of earlier attempts. Nobody else can add to them while the lease is held."""
    if leases:
        for item, name, *memo in tx.run("read_memos", stage=stage, items=list(leases)):
            leases[item].remember(name, Memo(*memo))


def _revive(tx: Transaction, stage: int, leases: dict[int, Lease]) -> None:
    """Read which life of the stage these are."""
    if leases:
        for item, state, life in tx.run("read_lives", stage=stage, items=list(leases)):
            leases[item].life = life + (state in PASSED)
