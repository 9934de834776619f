"""Import an old database whose stages lie in a JSON column: items, outcomes and open work, a batch per transaction.

An item and its stages are written together, and a key that is there is left as it is: whoever runs an import again, or after
it was killed half-way, ends with the same. What could not be read is told in the report, and as an event of the item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.engine.add import NewItem, look_up
from holdfast.engine.daytime import follow_the_clock
from holdfast.engine.finish import bucket, input_hash
from holdfast.engine.register import layout
from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.legacy import Data, Entry, Problem, Reader, read_data, read_key, with_key
from holdfast.model.outcome import NOTHING
from holdfast.model.stage import PipelineSpec
from holdfast.model.states import PASSED, State
from holdfast.store import Store, Transaction
from holdfast.store.legacy import BATCH, OldRow, OldTable

#: Examples that a report keeps of each kind of problem.
EXAMPLES = 20
#: Names of other pipelines that a report keeps; the rest are counted together.
ELSEWHERE = 50


class Example(NamedTuple):
    row: int
    key: str
    stage: str | None
    found: str


@dataclass(slots=True)
class Trouble:
    """How often a kind of problem came up, and the first few."""

    count: int = 0
    examples: list[Example] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """What an import did, or would do. Problems are those of all rows read, also of items that were there already."""

    read: int = 0
    imported: int = 0
    already_there: int = 0
    repeated: int = 0
    #: Rows of pipelines that are not meant, by the name in the old table.
    elsewhere: Counter[str] = field(default_factory=Counter)
    #: Of imported items: how many are in which state, by `pipeline/stage`.
    stages: dict[str, Counter[str]] = field(default_factory=dict)
    problems: dict[str, Trouble] = field(default_factory=dict)
    #: Columns that the old table does not have.
    missing: list[str] = field(default_factory=list)

    def tell(self, problem: Problem, row: int, key: str) -> None:
        trouble = self.problems.setdefault(problem.kind, Trouble())
        trouble.count += 1
        if len(trouble.examples) < EXAMPLES:
            trouble.examples.append(Example(row, key, problem.stage, problem.found))

    def facts(self) -> dict[str, Any]:
        """The same as JSON can carry it."""
        return {
            "read": self.read, "imported": self.imported, "already_there": self.already_there, "repeated": self.repeated,
            "elsewhere": dict(self.elsewhere), "missing_columns": self.missing,
            "stages": {stage: dict(counts) for stage, counts in self.stages.items()},
            "problems": {
                kind: {"count": one.count, "examples": [example._asdict() for example in one.examples]}
                for kind, one in sorted(self.problems.items())
            },
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class OldItem:
    """A row that was read."""

    row: int
    pipeline: str
    key: str
    data: Data
    begun: Mapping[str, Entry]
    problems: Sequence[Problem]


class _Into:
    """Where rows go: by the name that the old table has for a pipeline, or to the only one there is."""

    def __init__(self, pipelines: Mapping[str, PipelineSpec]) -> None:
        self.specs = {spec.name: spec for spec in pipelines.values()}
        self.only = next(iter(self.specs)) if len(self.specs) == 1 else None
        self.readers = {
            spec.name: Reader({stage.name: stage.after for stage in spec.stages}) for spec in self.specs.values()
        }
        self._by_name = {name.encode(): spec.name for name, spec in pipelines.items()}

    def find(self, name: bytes | None) -> str | None:
        return self.only if name is None else self._by_name.get(name)


def import_legacy(
    store: Store | None,
    old: OldTable,
    pipelines: Mapping[str, PipelineSpec],
    *,
    dry_run: bool = False,
    on_batch: Callable[[Report], None] | None = None,
    most: int = BATCH,
) -> Report:
    """Import every row; return what was done, or with `dry_run` what would be.

    `pipelines` says which name in the old table means which pipeline; they must be registered in the store. Rows without
    a name, or of a table without such a column, belong to the only one. For a dry run the store may be missing.
    """
    into = _Into(pipelines)
    if not old.has_pipelines and into.only is None:
        raise UsageError(f"{old.path} does not say which pipeline a row belongs to: import into one pipeline at a time")
    report = Report(missing=list(old.missing))
    repeated = old.repeated()
    for rows in old.batches(most):
        items = _read(rows, into, old.has_pipelines, repeated, report)
        for pipeline in into.specs:
            mine = [item for item in items if item.pipeline == pipeline]
            born = _write(store, pipeline, mine, dry_run)
            report.imported += len(born)
            report.already_there += len(mine) - len(born)
            states = Counter((stage, entry.state) for item in born for stage, entry in item.begun.items())
            for (stage, state), n in states.items():
                report.stages.setdefault(f"{pipeline}/{stage}", Counter())[str(_kept_as(state))] += n
        if on_batch is not None:
            on_batch(report)
    if report.imported and store is not None and not dry_run:
        told = {kind: one.count for kind, one in report.problems.items()}
        facts: dict[str, Any] = {
            "read": report.read,
            "imported": report.imported,
            "already_there": report.already_there,
        }
        store.write(lambda tx: tx.record("legacy_imported", **facts, problems=told))
    return report


def import_items(tx: Transaction, pipeline: str, items: Sequence[OldItem]) -> list[OldItem]:
    """Insert those of the items whose key is not there yet, with their stages as they were; return them."""
    number = layout(tx).number_of(pipeline)
    rows = {row.name: row for row in layout(tx).of_pipeline(pipeline)}
    first = {item.key: item for item in reversed(items)}
    if number is None or not rows.keys() >= {stage for item in items for stage in item.begun}:
        raise UsageError(f"pipeline {pipeline!r} was changed in the store by somebody else: run the import again")
    given = [(item.key, item.data.text) for item in items if first[item.key] is item]
    born = {key: id_ for id_, key in tx.run_rows("insert_items", given, pipeline=number, priority=0, now=tx.now)}
    new = [item for item in items if item.key in born and first[item.key] is item]
    work = _Work(tx, pipeline)
    for item in new:
        work.take(born[item.key], item)
    work.write()
    return new


class _Work:
    """The rows that a batch of items comes to."""

    def __init__(self, tx: Transaction, pipeline: str) -> None:
        self._tx = tx
        self._stages = {row.name: row for row in layout(tx).of_pipeline(pipeline)}
        # What these stages put out is not known here: the same nothing for each, so that none of them is stale.
        self._inputs = {name: dict.fromkeys(layout(tx).parents(row.id), NOTHING) for name, row in self._stages.items()}
        self._outcomes: list[tuple[Any, ...]] = []
        self._waiting: list[tuple[Any, ...]] = []
        self._delayed: list[tuple[Any, ...]] = []

    def take(self, id_: int, item: OldItem) -> None:
        data_hash = codec.digest(item.data.value)
        for name, entry in item.begun.items():
            stage = self._stages[name]
            # An attempt that was cut off, or failed, counts; but it does not use up the last one.
            spent = min(1, stage.max_attempts - 1)
            state = _kept_as(entry.state)
            if state is State.PENDING:
                self._waiting.append((id_, stage.id, spent if entry.state is State.IN_PROGRESS else 0, 0, 0))
                self._tx.count(stage.id, State.PENDING, 1)
                if stage.after_children is not None:
                    self._record("children_ended", id_, name, of=stage.after_children)
            elif state is State.RETRY_LATER:
                self._delayed.append((id_, stage.id, self._tx.now, spent, 0, 0, entry.error))
                self._tx.count(stage.id, State.RETRY_LATER, 1)
                self._record(
                    "attempt_failed", id_, name, attempt=1, error=entry.error, due_at=self._tx.now, imported=True
                )
            else:
                self._finish(id_, name, entry, data_hash)
        for problem in item.problems:
            known = problem.stage if problem.stage in self._stages else None
            named = {} if known == problem.stage else {"named": problem.stage}
            self._record("import_problem", id_, known, kind=problem.kind, found=problem.found, row=item.row, **named)

    def write(self) -> None:
        if self._delayed:
            follow_the_clock(self._tx)
        self._tx.run_rows("insert_outcomes", self._outcomes)
        self._tx.run_rows("enter_waiting", self._waiting)
        self._tx.run_rows("enter_delayed", self._delayed)
        if self._waiting or self._delayed:
            self._tx.tell_idle_workers()

    def _finish(self, id_: int, name: str, entry: Entry, data_hash: str) -> None:
        stage, state = self._stages[name], entry.state
        ended_at = self._tx.now if entry.ended_at is None else entry.ended_at
        attempts = {State.CANCELLED: 0, State.EXHAUSTED: stage.max_attempts}.get(state, 1)
        made_from = input_hash(data_hash, self._inputs[name]) if state in PASSED else None
        put_out = NOTHING if state in PASSED else None
        self._outcomes.append(
            (id_, stage.id, str(state), attempts, None, entry.started_at, ended_at, stage.version, made_from, put_out, 0, 1,
             entry.error, None)
        )  # fmt: skip
        if entry.started_at is None or entry.ended_at is None or state is State.CANCELLED:
            self._tx.count(stage.id, state, 1, version=stage.version)
        else:
            took = entry.ended_at - entry.started_at
            self._tx.count(
                stage.id, state, 1, version=stage.version, bucket=bucket(took), took_us=took, most_us=took
            )  # fmt: skip

    def _record(self, event: str, id_: int, stage: str | None, **facts: Any) -> None:
        row = next(iter(self._stages.values()))
        number = None if stage is None else self._stages[stage].id
        self._tx.record(event, pipeline=row.pipeline, item=id_, stage=number, **facts)


def _kept_as(state: State) -> State:
    """Nobody holds a lease on what was in progress when the old program ended."""
    return State.PENDING if state is State.IN_PROGRESS else state


def _read(
    rows: Iterable[OldRow],
    into: _Into,
    has_pipelines: bool,
    repeated: Mapping[tuple[bytes | None, bytes], int],
    report: Report,
) -> list[OldItem]:
    """Read rows, and tell the report what cannot be read of them."""
    items = []
    for old in rows:
        report.read += 1
        key, key_problems = read_key(old.key, old.row)
        problems = list(key_problems)
        pipeline = into.find(old.pipeline)
        if has_pipelines and old.pipeline is None:
            problems.append(Problem("pipeline_missing", None, ""))
        if pipeline is None:
            name = "" if old.pipeline is None else old.pipeline.decode(errors="replace")
            report.elsewhere[name if name in report.elsewhere or len(report.elsewhere) < ELSEWHERE else "…"] += 1
            problems = [problem for problem in problems if problem.kind == "pipeline_missing"]
        elif old.key is not None and repeated.get((old.pipeline, old.key), old.row) != old.row:
            report.repeated += 1
            problems = [Problem("key_repeated", None, "")]
        else:
            data = read_data(old.data)
            if old.key is not None and key_problems:
                data = with_key(data, old.key)
            stages = into.readers[pipeline].read(old.stages)
            problems += data.problems + stages.problems
            items.append(OldItem(old.row, pipeline, key, data, stages.begun, problems))
        for problem in problems:
            report.tell(problem, old.row, key)
    return items


def _write(store: Store | None, pipeline: str, items: Sequence[OldItem], dry_run: bool) -> list[OldItem]:
    """Import those that are not there yet. To import again what is there takes no write."""
    if not items or store is None:
        return list(items)
    wanted = [NewItem(item.key, "") for item in items]
    there = store.read(lambda tx: _there(tx, pipeline, wanted))
    left = [item for item in items if item.key not in there]
    if dry_run or not left:
        return left
    return store.write(lambda tx: import_items(tx, pipeline, left))


def _there(tx: Transaction, pipeline: str, items: list[NewItem]) -> set[str]:
    return set() if layout(tx).number_of(pipeline) is None else set(look_up(tx, pipeline, items))
