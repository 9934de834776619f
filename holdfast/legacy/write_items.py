"""Write items of an old database: each with its stages, results and payments as they were, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.engine import error_groups, ledger
from holdfast.engine.clock_jumps import follow_the_clock
from holdfast.engine.finish_leases import input_hash, write_outcomes
from holdfast.engine.layout import layout
from holdfast.errors import UsageError
from holdfast.legacy.read_values import ImportProblem, OldData
from holdfast.legacy.stages_of_old_item import Entry
from holdfast.model import codec
from holdfast.model.duration_buckets import bucket
from holdfast.model.error_fingerprint import cause_of
from holdfast.model.layout import StageRow
from holdfast.model.outcome import NOTHING
from holdfast.model.stage import PipelineSpec
from holdfast.model.states import BAD, PASSED, State
from holdfast.store import Transaction


@dataclass(frozen=True, slots=True)
class OldItem:
    """An item of an old database, as it was read."""

    table: str
    row: int
    pipeline: str
    key: str
    data: OldData
    priority: int
    added_at: int | None
    begun: Mapping[str, Entry]
    #: Finished stages that run again.
    again: Sequence[str]
    problems: Sequence[ImportProblem]


def import_items(tx: Transaction, spec: PipelineSpec, items: Sequence[OldItem]) -> list[OldItem]:
    """Insert the items whose keys do not exist yet, with their stages as they were; return them."""
    pipeline = spec.name
    number = layout(tx).number_of(pipeline)
    rows = {row.name: row for row in layout(tx).of_pipeline(pipeline)}
    if number is None or not rows.keys() >= {stage for item in items for stage in item.begun}:
        raise UsageError(f"pipeline {pipeline!r} was changed in the store meanwhile: run the import again")
    given = [(item.key, item.data.text, item.priority, item.added_at or tx.now) for item in items]
    born = {key: id_ for id_, key in tx.run_rows("insert_imported_items", given, pipeline=number, now=tx.now)}
    new = [item for item in items if item.key in born]
    work = _Work(tx, spec, rows)
    for item in new:
        work.take(born[item.key], item)
    work.write()
    return new


def kept_as(state: State) -> State:
    """The state to store: what was in progress has no lease any more, so it is pending."""
    return State.PENDING if state is State.IN_PROGRESS else state


class _Work:
    """The rows to write for a batch of items."""

    def __init__(self, tx: Transaction, spec: PipelineSpec, stages: Mapping[str, StageRow]) -> None:
        self._tx = tx
        self._stages = stages
        self._normalise = {stage.name: stage.normalise for stage in spec.stages}
        self._outcomes: list[tuple[Any, ...]] = []
        self._waiting: list[tuple[Any, ...]] = []
        self._delayed: list[tuple[Any, ...]] = []
        self._payments: list[ledger.OldPayment] = []
        self._failures: list[error_groups.Failure] = []

    def take(self, id_: int, item: OldItem) -> None:
        data_hash = codec.digest(item.data.value)
        put_out: dict[int, str] = {}
        for name, entry in item.begun.items():
            stage = self._stages[name]
            # An interrupted or failed attempt counts, but one attempt is always left.
            open_before = 0 if entry.state is State.PENDING else 1
            spent = min(open_before if entry.attempts is None else entry.attempts, stage.max_attempts - 1)
            state = kept_as(entry.state)
            if state is State.PENDING:
                self._waiting.append((id_, stage.id, spent, 0, 0))
                self._tx.count(stage.id, State.PENDING, 1)
                if stage.after_children is not None:
                    self._record("children_ended", id_, name, of=stage.after_children)
            elif state is State.RETRY_LATER:
                group = self._group(id_, item, stage, entry)
                self._delayed.append((id_, stage.id, self._tx.now, spent, 0, 0, entry.error, group))
                self._tx.count(stage.id, State.RETRY_LATER, 1)
                self._record(
                    "attempt_failed",
                    id_,
                    name,
                    attempt=max(1, spent),
                    error=entry.error,
                    due_at=self._tx.now,
                    imported=True,
                )
            else:
                self._finish(id_, item, name, entry, data_hash, put_out)
            if entry.cost:
                name_of = f"{item.table} {item.row} {name}"
                self._payments.append(ledger.OldPayment(name_of, stage.id, id_, entry.cost, entry.ended_at or 0, ""))
        for problem in item.problems:
            known = problem.stage if problem.stage in self._stages else None
            named = {} if known == problem.stage else {"named": problem.stage}
            self._record("import_problem", id_, known, kind=problem.kind, found=problem.found, row=item.row, **named)

    def write(self) -> None:
        if self._delayed:
            follow_the_clock(self._tx)
        write_outcomes(self._tx, "insert_outcomes", self._outcomes)
        self._tx.run_rows("enter_waiting", self._waiting, since=self._tx.now)
        self._tx.run_rows("enter_delayed", self._delayed)
        error_groups.enter(self._tx, self._failures)
        if self._payments:
            ledger.enter_imported(self._tx, self._payments)
        if self._waiting or self._delayed:
            self._tx.tell_idle_workers()

    def _finish(
        self, id_: int, item: OldItem, name: str, entry: Entry, data_hash: str, put_out: dict[int, str]
    ) -> None:
        stage, state = self._stages[name], entry.state
        ended_at = self._tx.now if entry.ended_at is None else entry.ended_at
        started_at = entry.started_at if entry.took_us is None else max(0, ended_at - entry.took_us)
        attempts = {State.CANCELLED: 0, State.EXHAUSTED: stage.max_attempts}.get(state, 1)
        version = entry.version or stage.version
        made_from = output = None
        if state in PASSED:
            before = layout(self._tx).parents(stage.id)
            made_from = input_hash(data_hash, {parent: put_out.get(parent, NOTHING) for parent in before})
            output = put_out[stage.id] = self._output_hash(item, name, entry.result)
        self._outcomes.append(
            (
                id_,
                stage.id,
                str(state),
                attempts if entry.attempts is None else entry.attempts,
                None,
                started_at,
                ended_at,
                version,
                made_from,
                output,
                0,
                1,
                entry.error,
                entry.result,
                None,
                self._group(id_, item, stage, entry) if state in BAD else None,
            )
        )
        if started_at is None or (entry.ended_at is None and entry.took_us is None) or state is State.CANCELLED:
            self._tx.count(stage.id, state, 1, version=version)
        else:
            took = ended_at - started_at
            self._tx.count(stage.id, state, 1, version=version, bucket=bucket(took), took_us=took, most_us=took)

    def _group(self, id_: int, item: OldItem, stage: StageRow, entry: Entry) -> str:
        cause = cause_of(entry.error, None, item.key)
        self._failures.append(error_groups.Failure(stage.id, id_, cause))
        return cause.group

    def _output_hash(self, item: OldItem, stage: str, result: str | None) -> str:
        """The output hash, as if the stage had run here."""
        if result is None:
            return NOTHING
        value, normalise = codec.decode(result), self._normalise[stage]
        if normalise is not None:
            try:
                value = codec.plain(normalise(value))
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                raise UsageError(
                    f"item {item.key!r}, stage {stage!r}: normalise fails for its old result ({said})"
                ) from error
        return NOTHING if value is None else codec.digest(value)

    def _record(self, event: str, id_: int, stage: str | None, **facts: Any) -> None:
        row = next(iter(self._stages.values()))
        number = None if stage is None else self._stages[stage].id
        self._tx.record(event, pipeline=row.pipeline, item=id_, stage=number, **facts)
