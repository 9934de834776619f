"""Import an old database: items, outcomes, results, open work, costs and events, one transaction per batch.

An item and its stages are written together, and existing keys are left alone: an import that is repeated, or resumed after a
kill, ends with the same result. What could not be read is in the report, and recorded as an event of the item.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from msgspec import UNSET

from holdfast.engine.layout import layout
from holdfast.engine.upsert import NewItem, look_up
from holdfast.errors import UsageError
from holdfast.legacy.import_logs import Logs
from holdfast.legacy.key_index import KeyIndex
from holdfast.legacy.mapping import Cells, Mapped, MappedByFunction, StagesMapped
from holdfast.legacy.old_database import BATCH, OldDatabase, OldRow, OldTable
from holdfast.legacy.read_values import (
    ImportProblem,
    read_data,
    read_key,
    read_priority,
    read_time,
    shown,
    text_of,
    with_key,
)
from holdfast.legacy.report import Again, ImportReport
from holdfast.legacy.stages_of_old_item import OldRecord, StagesReader
from holdfast.legacy.write_items import OldItem, import_items, kept_as
from holdfast.model.did_you_mean import there_are
from holdfast.model.stage import PipelineSpec
from holdfast.store import Store, Transaction

#: Side tables that are read together with the items.
_WITH_ITEMS = ("stages", "results")

AnyMapping = Mapped | MappedByFunction


class _Into:
    """The pipeline of each row: by its name in the old database, or the only pipeline."""

    def __init__(self, pipelines: Mapping[str, PipelineSpec], mapping: AnyMapping) -> None:
        self.specs = {spec.name: spec for spec in pipelines.values()}
        self.only = next(iter(self.specs)) if len(self.specs) == 1 else None
        after = {name: {stage.name: stage.after for stage in spec.stages} for name, spec in self.specs.items()}
        self.readers = {name: StagesReader(stages, mapping.states) for name, stages in after.items()}
        self.mapped: dict[str, StagesMapped] = {}
        if isinstance(mapping, Mapped):
            self.mapped = {name: mapping.for_stages(stages) for name, stages in after.items()}
        self._by_name = {name: spec.name for name, spec in pipelines.items()}

    def find(self, name: str | None) -> str | None:
        return self.only if name is None else self._by_name.get(name)


def import_legacy(
    store: Store | None,
    old: OldDatabase,
    mapping: AnyMapping,
    pipelines: Mapping[str, PipelineSpec],
    *,
    dry_run: bool = False,
    on_batch: Callable[[ImportReport], None] | None = None,
    most: int = BATCH,
) -> ImportReport:
    """Import every row, and return what was done, or with `dry_run` what would be done.

    `pipelines` says which name in the old database means which pipeline; they must be registered in the store. Rows without
    a name, or of a table without such a column, belong to the only one. For a dry run the store may be missing.
    """
    report = ImportReport()
    into = _Into(pipelines, mapping)
    with closing(KeyIndex()) as index:
        reading = _Reading(old, mapping, into, index, report)
        for items in reading.batches(most):
            for pipeline, spec in into.specs.items():
                mine = [item for item in items if item.pipeline == pipeline]
                born = _write(store, spec, mine, dry_run)
                report.imported += len(born)
                report.already_there += len(mine) - len(born)
                _count_in(report, spec, born)
            if on_batch is not None:
                on_batch(report)
        stages = {name: frozenset(stage.name for stage in spec.stages) for name, spec in into.specs.items()}
        logs = Logs(store, into.find, stages, lambda *key: index.knows(_digest(*key)), report, dry_run, most)
        if "costs" in reading.side_tables:
            logs.import_costs(reading.side_tables["costs"], mapping.side_tables["costs"])
        if "events" in reading.side_tables:
            logs.import_events(reading.side_tables["events"], mapping.side_tables["events"])
    if report.changed and store is not None and not dry_run:
        told = {kind: one.count for kind, one in report.problems.items()}
        facts = {name: getattr(report, name) for name in ("read", "imported", "already_there")}
        store.write(lambda tx: tx.record("legacy_imported", **facts, problems=told))
    return report


def check(old: OldDatabase, mapping: AnyMapping) -> bool:
    """Refuse a database without the key column, or without the columns that the user's mapping names. Return whether its rows
    name their pipeline."""
    table = old.table(mapping.table)
    if isinstance(mapping, MappedByFunction):
        return True
    if not table.has(key := mapping.item["key"].column):
        there = there_are(key, table.columns)
        raise UsageError(
            f"{old.where}: table {table.name!r} has no column {key!r}; {there}; say in a mapping which is the key"
        )
    for name, column in sorted(mapping.own):
        if not old.table(name).has(column):
            there = there_are(column, old.table(name).columns)
            raise UsageError(f"{old.where}: table {name!r} has no column {column!r}, which the mapping names; {there}")
    return "pipeline" in mapping.item and table.has(mapping.item["pipeline"].column)


class _Reading:
    """The rows of an old database, as items."""

    def __init__(
        self, old: OldDatabase, mapping: AnyMapping, into: _Into, index: KeyIndex, report: ImportReport
    ) -> None:
        self._mapping, self._into, self._index, self._report = mapping, into, index, report
        self._names_pipelines = check(old, mapping)
        self._table = old.table(mapping.table)
        self._columns = list(self._table.columns)
        if isinstance(mapping, Mapped):
            self._columns = self._choose(self._table, mapping.columns())
        if not self._names_pipelines and into.only is None:
            raise UsageError(
                f"{old.where} does not say which pipeline a row belongs to: import into one pipeline at a time"
            )
        #: The side tables that the old database has.
        self.side_tables: dict[str, OldTable] = {}
        for name, side in mapping.side_tables.items():
            table = old.find(side.table)
            if table is None:
                report.missing.append(f"table {side.table}")
            else:
                self.side_tables[name] = table
                self._choose(table, side.columns())
        for name in _WITH_ITEMS:
            if name in self.side_tables:
                index.fill(name, self._pairs(name))

    def batches(self, most: int) -> Iterator[list[OldItem]]:
        for rows in self._table.batches(self._columns, most):
            side_rows = {name: self._rows_of(name, rows) for name in _WITH_ITEMS if name in self.side_tables}
            yield [item for row in rows if (item := self._read(row, side_rows)) is not None]

    def _choose(self, table: OldTable, columns: set[str]) -> list[str]:
        """The columns that exist. Missing ones, and those that are not read, go into the report."""
        missing = sorted(column for column in columns if not table.has(column))
        prefix = "" if table is self._table else f"{table.name}."
        self._report.missing += [f"{prefix}{column}" for column in missing]
        low = {column.lower() for column in columns}
        rest = [column for column in table.columns if column.lower() not in low]
        self._report.not_taken |= {
            f"{prefix}{column}": n for column, n in zip(rest, table.filled(rest), strict=True) if n
        }
        return sorted(columns - {*missing})

    def _pairs(self, name: str) -> Iterator[tuple[bytes, int]]:
        """The number of each row of a side table, with the digest of its item."""
        side = self._mapping.side_tables[name]
        paths = [path for part in ("pipeline", "key") if (path := side.paths.get(part)) is not None]
        for rows in self.side_tables[name].batches(sorted({path.column for path in paths} | {*side.where})):
            for row, raw in rows:
                cells = Cells(raw, [])
                if side.fits(cells):
                    yield (
                        self._place(name, cells.get(side.paths.get("pipeline")), cells.get(side.paths.get("key"))),
                        row,
                    )

    def _place(self, name: str, pipeline: Any, key: Any) -> bytes:
        """The digest of the item that a row of a side table belongs to."""
        told_apart = self._names_pipelines and "pipeline" in self._mapping.side_tables[name].paths
        whose = text_of(pipeline) if told_apart and pipeline is not UNSET else ""
        return _digest(whose, "" if key is UNSET or key is None else text_of(key))

    def _rows_of(self, name: str, rows: Sequence[OldRow]) -> dict[bytes, list[Cells]]:
        assert isinstance(self._mapping, Mapped)
        item, side, table = self._mapping.item, self._mapping.side_tables[name], self.side_tables[name]
        places = []
        for _, raw in rows:
            cells = Cells(raw, [])
            places.append(self._place(name, self._mapping.pipeline_of(cells), cells.get(item["key"])))
        whose = self._index.rows_of(name, places)
        found: dict[bytes, list[Cells]] = {}
        columns = sorted(column for column in side.columns() if table.has(column))
        for row, raw in table.rows(sorted(whose), columns):
            found.setdefault(whose[row], []).append(Cells(raw, []))
        return found

    def _read(self, old: OldRow, side_rows: Mapping[str, Mapping[bytes, Sequence[Cells]]]) -> OldItem | None:
        """Read one row. What cannot be read goes into the report."""
        self._report.read += 1
        cells = Cells(old.cells, [])
        said, name, pipeline = self._said(cells, side_rows)
        if said is None:
            for problem in cells.problems:
                self._report.tell(problem, old.row, "")
            return None
        key, key_problems = read_key(said.key, old.row)
        problems, item = list(key_problems), None
        if self._names_pipelines and name is None and isinstance(self._mapping, Mapped):
            problems.append(ImportProblem("pipeline_missing", None, ""))
        if pipeline is None:
            self._report.tell_elsewhere(name or "")
            problems = [problem for problem in problems if problem.kind == "pipeline_missing"]
        elif not key_problems and not self._index.is_new(_digest(pipeline, key)):
            self._report.repeated += 1
            problems = [ImportProblem("key_repeated", None, "")]
        else:
            item = self._item(old, pipeline, key, said, problems)
            problems = [*item.problems]
        for problem in problems:
            self._report.tell(problem, old.row, key)
        return item

    def _said(
        self, cells: Cells, side_rows: Mapping[str, Mapping[bytes, Sequence[Cells]]]
    ) -> tuple[OldRecord | None, str | None, str | None]:
        """The record of an item, and its pipeline: the old name, and ours."""
        if isinstance(self._mapping, MappedByFunction):
            try:
                said = self._mapping.to_record(cells)
            except Exception as error:
                cells.problems.append(ImportProblem("mapping_failed", None, shown(f"{type(error).__name__}: {error}")))
                return None, None, None
            if said is None:
                self._report.left_out += 1
                return None, None, None
            name = None if said.pipeline is UNSET or said.pipeline is None else text_of(said.pipeline)
            return said, name, self._into.find(name)
        found = self._mapping.pipeline_of(cells)
        name = None if found is UNSET else text_of(found)
        pipeline = self._into.find(name)
        key_path = self._mapping.item["key"]
        if pipeline is None:
            return OldRecord(key=cells.get(key_path)), name, None
        rows = {one: those.get(self._place(one, found, cells.get(key_path)), ()) for one, those in side_rows.items()}
        return self._into.mapped[pipeline].to_record(cells, rows), name, pipeline

    def _item(self, old: OldRow, pipeline: str, key: str, said: OldRecord, problems: list[ImportProblem]) -> OldItem:
        data = read_data(said.data)
        if problems and said.key is not UNSET and said.key is not None and problems[0].kind == "key_unusable":
            data = with_key(data, said.key)
        priority = read_priority(said.priority, problems, largest_first=self._mapping.largest_first)
        added_at = read_time(None, "added", said.added, problems)
        stages = self._into.readers[pipeline].read(said)
        told = [*problems, *data.problems, *stages.problems]
        return OldItem(
            self._table.name, old.row, pipeline, key, data, priority, added_at, stages.begun, stages.again, told
        )


def _digest(pipeline: str, key: str) -> bytes:
    return hashlib.blake2b(f"{pipeline}\0{key}".encode(errors="replace"), digest_size=16).digest()


def _count_in(report: ImportReport, spec: PipelineSpec, items: Sequence[OldItem]) -> None:
    """Count imported items by state, and stages that run again."""
    states = Counter((stage, entry.state) for item in items for stage, entry in item.begun.items())
    for (stage, state), n in states.items():
        report.stages.setdefault(f"{spec.name}/{stage}", Counter())[str(kept_as(state))] += n
    for stage, n in Counter(stage for item in items for stage in item.again).items():
        again = report.again.setdefault(f"{spec.name}/{stage}", Again())
        estimate = spec.stage(stage).estimate
        again.count += n
        if isinstance(estimate, int):
            again.cost = (again.cost or 0) + n * estimate


def _write(store: Store | None, spec: PipelineSpec, items: Sequence[OldItem], dry_run: bool) -> list[OldItem]:
    """Import the items that do not exist yet. If all exist, nothing is written."""
    if not items or store is None:
        return list(items)
    wanted = [NewItem(item.key, "") for item in items]
    there = store.read(lambda tx: _there(tx, spec.name, wanted))
    left = [item for item in items if item.key not in there]
    if dry_run or not left:
        return left
    return store.write(partial(import_items, spec=spec, items=left))


def _there(tx: Transaction, pipeline: str, items: list[NewItem]) -> set[str]:
    return set() if layout(tx).number_of(pipeline) is None else set(look_up(tx, pipeline, items))
